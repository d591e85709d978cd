"""How many micro-batches' activations each pipeline rank keeps at once."""

from __future__ import annotations

import functools

from simulator.held_activations import Kept, most_held
from simulator.schedule import build_schedule
from simulator.training_run.training_run import TrainingRun

# Schedules are periodic after the warm-up: with more micro-batches than this times the ranks none
# keeps more at once (tests/simulator/test_footprint.py).
_ENOUGH = 4


def most_in_flight(run: TrainingRun) -> tuple[float, ...]:
    """Per pipeline rank the most activations kept at once, in units of one micro-batch's on one
    virtual stage.

    1F1B keeps min(m, p - rank) (Narayanan et al., arXiv 2104.04473, section 2.2.1), GPipe m,
    interleaved 1F1B p v + p - 1 - 2 rank chunks (Korthikanti et al., arXiv 2205.05198, section
    4.2.3: 1 + (p - 1) / (p v) times 1F1B's), ZB-1p and ZB-2p what their limits allow, p and 2 p - 1
    (Qi et al., arXiv 2401.10241, sections 2.3 and 3.1); others are counted off their actions.
    """
    p, v, m = run.pp, max(1, run.vpp), run.num_microbatches
    if p == 1:
        return (1.0,)
    if run.schedule in ("1f1b", "none"):
        return tuple(float(min(m, p - rank)) for rank in range(p))
    if run.schedule == "gpipe":
        return (float(m * v),) * p
    if run.schedule == "interleaved":
        return tuple(float(min(m * v, 2 * (p - rank - 1) + (v - 1) * p + 1)) for rank in range(p))
    if run.schedule in ("zb-1p", "zb-h1"):
        return (float(min(m, p)),) * p
    if run.schedule in ("zb-2p", "zb-h2"):
        return (float(min(m, 2 * p - 1)),) * p
    return _counted(run.schedule, p, min(m, _ENOUGH * p), v)


@functools.cache
def _counted(name: str, p: int, m: int, v: int) -> tuple[float, ...]:
    schedule = build_schedule(name, num_ranks=p, num_microbatches=m, stages_per_rank=v)
    return most_held(schedule, Kept.units(schedule.num_stages))
