"""`reported_peak_bytes`: what a framework's first rank reserves, where its program is written.

Two peaks are possible, with a host that is never ahead of its device and with one that is. Which
one a run shows is not known; the one with the smaller expected relative error is predicted.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from profiles.hardware.catalogue.catalog import get_device
from simulator.training_run.framework.host_lead import HostLead, shipped_host_lead
from simulator.training_run.nanotron.nanotron_program import ProgramPeak, peak_of_program
from simulator.training_run.nanotron.nanotron_shapes import nanotron_shapes
from simulator.training_run.run.training_run import TrainingRun

# Beside the counted tensors: those of up to 1 MiB in a pool of their own, and the norms' partial
# sums. The peaks of the 85 rows of the Ultra-Scale sweep without tensor parallelism are 0.2 GiB
# above the program's at the median (2026-11-21).
SMALL_TENSORS_BYTES = 0.2 * 2**30


def reported_peak_bytes(run: TrainingRun, lead: HostLead | None = None) -> float | None:
    """The predicted peak; None where no program covers the run."""
    lead = lead or shipped_host_lead()
    low = program_peak(run, 0)
    if low is None:
        return None
    share = lead.share_of(run)
    high = low
    if run.tp > 1 and share > 0.5:
        high = program_peak(run, lead.launches_of(run)) or low
    return SMALL_TENSORS_BYTES + likelier_bytes(low.reserved_bytes, high.reserved_bytes, share)


def likelier_bytes(low: float, high: float, share: float) -> float:
    """The median of the two peaks under weights 1 / peak, `high` having the probability `share`:
    it has the least expected relative error."""
    return high if share / high > (1.0 - share) / low else low


def program_peak(run: TrainingRun, launches_ahead: int) -> ProgramPeak | None:
    """Of the first rank, with a host that is ahead by so many launches; None where no program
    covers the run."""
    return _program_peak(replace(run, id="", defaults=()), launches_ahead)


@functools.lru_cache(maxsize=4096)
def _program_peak(run: TrainingRun, launches_ahead: int) -> ProgramPeak | None:
    shapes = nanotron_shapes(run)
    if shapes is None:
        return None
    return peak_of_program(
        shapes,
        capacity_bytes=get_device(run.device).usable_bytes,
        launches_ahead=launches_ahead,
    )
