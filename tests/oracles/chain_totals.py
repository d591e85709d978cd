"""Totals of a cell straight from its partition problem, for the bounds of chains drawn by hand."""

from __future__ import annotations

import numpy as np

from planner.cell import Cell
from planner.chain.problem import PartitionProblem
from planner.costs.bound import ChainTotals, least_busiest_s


def totals_of(problem: PartitionProblem, cell: Cell) -> ChainTotals:
    """The totals of a cell with this partition problem."""
    fastest = np.min(
        [costs.forward_s + costs.backward_s.min(axis=1) for costs in problem.costs], axis=0
    )
    first, last = np.triu_indices(problem.num_blocks)
    sends = (problem.send_forward_s + problem.send_backward_s)[1:, 1:]
    beside = min(slot.outside_blocks_s for slot in problem.slots)
    tails = [problem.tail_of(stage)[first, last + 1] for stage in range(problem.num_stages)]
    return ChainTotals(
        total_s=float(fastest.sum()) + cell.degrees.num_stages * beside,
        busiest_s=least_busiest_s(fastest, problem.kinds, cell.degrees.pp)
        + cell.degrees.vpp * beside,
        last_s=float(fastest[-1]) + beside,
        send_s=float(sends.min()) if sends.size else 0.0,
        tail_s=float(problem.tail_of(0)[0, 1:].min()),
        any_tail_s=float(min(tail.min() for tail in tails)),
    )
