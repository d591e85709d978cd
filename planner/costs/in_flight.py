"""Micro-batches in flight: how many a stage keeps at once under a cell's schedule.

An interleaved rank r of p (Narayanan et al., arXiv 2104.04473, section 2.2, in the order of
simulator/schedules/interleaved.py) runs W = (v-1) p + 2 (p-1-r) forwards ahead, then a forward and
a backward in turn. Forwards take its v stages in turn, p micro-batches each; backwards take them in
the opposite order. So what each stage has begun and ended after so many actions is a division with
remainder, and no schedule need be built.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from planner.cell import Cell
from simulator.schedules.in_flight import in_flight as held_by_ranks

Counts = npt.NDArray[np.intp]


def in_flight(cell: Cell) -> tuple[int, ...]:
    """Micro-batches that each virtual stage keeps when its rank keeps most, for the last time (for
    the first, where the backward is split: those before their I, of which all is kept)."""
    held = held_by_ranks(cell.schedule, cell.pp, cell.num_microbatches, cell.vpp, until_input=True)
    found = [0] * cell.num_stages
    for rank, stages in enumerate(held):
        for count, stage in zip(stages, cell.stages_of(rank), strict=True):
            found[stage] = count
    return tuple(found)
