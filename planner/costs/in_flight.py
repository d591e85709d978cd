"""Micro-batches in flight: how many a stage keeps at once under a cell's schedule."""

from __future__ import annotations

from planner.cell import Cell
from simulator.schedules.in_flight import in_flight as held_by_ranks


def in_flight(cell: Cell) -> tuple[int, ...]:
    """Micro-batches that each virtual stage keeps when its rank keeps most, for the last time (for
    the first, where the backward is split: those before their I, of which all is kept)."""
    degrees = cell.degrees
    held = held_by_ranks(
        cell.schedule, degrees.pp, cell.num_microbatches, degrees.vpp, until_input=True
    )
    found = [0] * degrees.num_stages
    for rank, stages in enumerate(held):
        for count, stage in zip(stages, cell.stages_of(rank), strict=True):
            found[stage] = count
    return tuple(found)
