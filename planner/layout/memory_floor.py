"""What layouts need of memory at least: footprints of lighter ones, each standing for many.

A layout needs no less than the same with micro-batches of one sequence, 1F1B in the place of a
schedule that keeps more, and one stage per rank: activations grow with the micro-batch, and
interleaved 1F1B keeps more than 1F1B (Korthikanti et al., arXiv 2205.05198, section 4.2.3). The
schedules that may keep less have as floor what a rank holds without activations.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.layout.layouts import RECOMPUTE, SCHEDULES, Layouts
from simulator.in_flight import most_in_flight
from simulator.schedule import schedule_kind
from simulator.training_run.footprint import rank_footprint
from simulator.training_run.training_run import TrainingRun

_AXES = ("tp", "cp", "ep", "pp", "dp", "zero_stage", "option")


def needed_floor_bytes(base: TrainingRun, layouts: Layouts) -> NDArray[np.float64]:
    """[layouts] bytes; a layout needs at least so many on some device."""
    if not len(layouts):
        return np.zeros(0)
    lasting, passing = _floors(base, layouts, layouts.recompute)
    partial = np.flatnonzero(layouts.recompute_layers)
    if partial.size:
        some = layouts.rows(partial)
        _, kept = _floors(base, some, np.full(len(some), RECOMPUTE.index("none")))
        again = np.minimum(1.0, some.recompute_layers * some.vpp / _fewest_layers(base, some))
        passing[partial] = kept + again * (passing[partial] - kept)
    return np.asarray(lasting + passing)


def fewest_recomputed_layers(
    base: TrainingRun, layouts: Layouts, capacity_bytes: float
) -> NDArray[np.int64]:
    """[layouts] of full recomputation: layers of each virtual stage that must be run again at
    least, 1 or more, so that the floor is within the capacity."""
    lasting, full = _floors(base, layouts, layouts.recompute)
    _, none = _floors(base, layouts, np.full(len(layouts), RECOMPUTE.index("none")))
    over = lasting + none - capacity_bytes
    saved = np.maximum(none - full, 1.0)
    share = np.clip(over / saved, 0.0, 1.0)
    layers = np.floor(share * _fewest_layers(base, layouts) / layouts.vpp * (1 - 1e-12))
    return np.asarray(np.maximum(1, layers), dtype=np.int64)


def _fewest_layers(base: TrainingRun, layouts: Layouts) -> NDArray[np.int64]:
    """Layers of the first rank, or fewer: the embedding may count as one (stage_layers)."""
    return np.asarray(np.maximum(1, base.model.num_layers // layouts.pp - 1))


def _floors(
    base: TrainingRun, layouts: Layouts, recompute: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[layouts] each: bytes of the first rank that last, and at least those that pass."""
    named = [SCHEDULES.index(name) for name in SCHEDULES if _may_keep_less(name)]
    less = np.isin(layouts.schedule, named) & (layouts.pp > 1)
    keys = np.column_stack([layouts.key(*_AXES), recompute, less])
    _, first, where = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    floors = np.asarray(
        [
            _floor(layouts.run(base, i), RECOMPUTE[int(recompute[i])], bool(less[i]))
            for i in first.tolist()
        ]
    )
    lasting, per_sequence = floors[where.ravel()].T
    # In flight are min(m, pp - rank) of them; the first rank keeps min(m, pp).
    count = base.global_batch // (layouts.dp * layouts.micro_batch)
    most = base.global_batch // layouts.dp
    share = np.minimum(count, layouts.pp) / np.minimum(most, layouts.pp)
    return lasting, np.asarray(per_sequence * layouts.micro_batch * share)


@functools.cache
def _may_keep_less(schedule: str) -> bool:
    """Whether a schedule's first rank may keep less than under 1F1B: it has other layers, or fewer
    micro-batches in flight (16 of them on 4 ranks show the kind)."""
    kind = schedule_kind(schedule)
    if kind.stages_per_rank == 0:
        return False
    chunks = kind.stages_per_rank * kind.copies
    return chunks > 1 or most_in_flight(schedule, 4, 16)[0] < most_in_flight("1f1b", 4, 16)[0]


def _floor(run: TrainingRun, recompute: str, keeps_less: bool) -> tuple[float, float]:
    """(what lasts, what a micro-batch of one sequence adds) on the first rank, in bytes."""
    light = replace(
        run, micro_batch=1, schedule="1f1b", vpp=1, recompute=recompute, recompute_layers=0
    )
    found = rank_footprint(light, 0)
    lasting = found.static.total + found.always
    return lasting, 0.0 if keeps_less else min(found.activations, found.needed_bytes - lasting)
