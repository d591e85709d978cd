"""Which orders of blocks that branch may hold a better plan, and how much better at most.

Every filling of a cell's stages along nested ideals is run through the timeline with every block at
its fastest: memory can only make it slower. An order of the blocks is bounded by the fastest of the
fillings whose stages, one after the other, make it up; fillings are many fewer than orders where
stages are few.
"""

from __future__ import annotations

from itertools import pairwise

from planner.cell import Cell
from planner.ideal_problem import IdealProblem
from planner.near_even import every_filling, near_even_fillings, timeline_seconds
from planner.problem import Array

MOST_FILLINGS = 20_000
MOST_ACTIONS = 4_000_000  # in the timelines of all fillings; some 3 million take a second
MOST_ORDERS = 60  # that are solved, each in some 50 ms

Order = tuple[int, ...]


def orders_by_bound(
    problem: IdealProblem, cell: Cell, weight_s: tuple[Array, ...], tail_s: float
) -> list[tuple[float, Order]] | None:
    """(seconds that no plan in it beats, order), the least first; None where there are too many.

    weight_s  [n] for each of the problem's costs: seconds of W
    tail_s    of any rank at least
    """
    lattice, stages = problem.lattice, cell.num_stages
    fillings = near_even_fillings if cell.schedule == "interleaved" else every_filling
    actions = stages * cell.num_microbatches * (3 if weight_s else 2)
    cuts = fillings(lattice, stages, min(MOST_FILLINGS, MOST_ACTIONS // actions))
    if cuts is None:
        return None
    seconds = timeline_seconds(problem, cell, cuts, weight_s) + tail_s
    found: dict[Order, float] = {}
    for row, step_s in zip(cuts, seconds.tolist(), strict=True):
        order = tuple(k for i, j in pairwise(row) for k in lattice.blocks(int(i), int(j)))
        found[order] = min(found.get(order, step_s), step_s)
    return sorted((step_s, order) for order, step_s in found.items())
