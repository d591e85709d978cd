"""What layouts need of memory at least: footprints of lighter ones, each standing for many.

A layout needs no less than the same with micro-batches of one sequence, 1F1B in the place of a
schedule that keeps more, and one stage per rank: activations grow with the micro-batch, and
interleaved 1F1B keeps more than 1F1B (Korthikanti et al., arXiv 2205.05198, section 4.2.3). The
schedules that may keep less have as floor what a rank holds without activations.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.layout.layouts import SCHEDULES, Layouts
from simulator.training_run.footprint import footprint
from simulator.training_run.training_run import TrainingRun

_KEEP_LESS = tuple(SCHEDULES.index(name) for name in ("v-half", "v-min", "zbv", "dualpipev"))
_AXES = ("tp", "cp", "ep", "pp", "dp", "zero_stage", "recompute")


def needed_floor_bytes(base: TrainingRun, layouts: Layouts) -> NDArray[np.float64]:
    """[layouts] bytes; a layout needs at least so many on some device."""
    if not len(layouts):
        return np.zeros(0)
    less = np.isin(layouts.schedule, _KEEP_LESS) & (layouts.pp > 1)
    keys = np.column_stack([layouts.key(*_AXES), less])
    _, first, where = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    floors = np.asarray([_floor(layouts.run(base, int(i)), bool(less[i])) for i in first.tolist()])
    lasting, per_sequence = floors[where.ravel()].T
    # In flight are min(m, pp - rank) of them; the first rank keeps min(m, pp).
    count = base.global_batch // (layouts.dp * layouts.micro_batch)
    most = base.global_batch // layouts.dp
    share = np.minimum(count, layouts.pp) / np.minimum(most, layouts.pp)
    return np.asarray(lasting + per_sequence * layouts.micro_batch * share)


def _floor(run: TrainingRun, keeps_less: bool) -> tuple[float, float]:
    """(what lasts, what a micro-batch of one sequence adds) on the first rank, in bytes."""
    light = footprint(replace(run, micro_batch=1, schedule="1f1b", vpp=1)).ranks[0]
    lasting = light.static.total + light.always
    return lasting, 0.0 if keeps_less else min(light.activations, light.needed_bytes - lasting)
