"""The cheapest strategies of a graph within a memory limit, with a proven bound.

The graph is contracted first (contraction.py). If the memory limit is not reached and the graph is
narrow, elimination is exact (elimination.py). Otherwise an integer program proves the best answer
for graphs that are small enough (integer_program.py), and a search finds cheap answers for larger
ones (tree_search.py).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from shardwright_placements.strategy_graph.contraction import contract
from shardwright_placements.strategy_graph.elimination import eliminate
from shardwright_placements.strategy_graph.integer_program import solve_program
from shardwright_placements.strategy_graph.problem import (
    FORBIDDEN,
    Strategies,
    StrategyGraph,
    sum_over_time,
)
from shardwright_placements.strategy_graph.tree_search import tree_search

MOST_ENTRIES = 400_000
"""The most table entries for the integer program of a whole graph: HiGHS needs 6 s for the 62,000
of instance B of the 2025 contest, and got no further than the linear relaxation of the 720,000 of V
in 150 s (2026-11-21)."""
LEAST_PROGRAM_S = 2e-5
"""Seconds per table entry below which the integer program is not tried: on models' blocks it needs
3e-5 to 5e-5 to finish, and found nothing in 1e-5 (2026-11-24)."""
PROGRAM_SHARE = 0.7
"""The part of the time left for the integer program; the search has the rest if that is not
enough."""


class Status(StrEnum):
    """Status of an answer."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The best strategies found.

    strategies, cost  None if nothing allowed was found
    bound   lower bound on the cost of every allowed choice; None if none exists
    reason  the proof, or why the search ended
    """

    status: Status
    strategies: Strategies | None = None
    cost: int | None = None
    bound: int | None = None
    reason: str


def solve(problem: StrategyGraph, *, time_limit_s: float, seed: int = 0) -> Solution:
    """The cheapest strategies found within the time; those of the integer program are optimal
    within its tolerance, 1e-6.

    Contraction and elimination are not interrupted. Equal inputs give equal costs if optimality is
    proven; other answers depend on the time.
    """
    end = time.monotonic() + time_limit_s
    contraction = contract(problem)
    if contraction is None:
        return _none(
            "forbidden costs and single usages above the limit leave no combination of strategies"
        )
    small = contraction.problem

    def answer(best: Strategies, bound: float, proof: str) -> Solution:
        cost = small.cost_of(best)
        is_least = bool(proof) or cost <= math.ceil(bound)
        return Solution(
            status=Status.OPTIMAL if is_least else Status.FEASIBLE,
            strategies=contraction.expand(best),
            cost=cost,
            bound=min(cost, math.ceil(bound)),
            reason=proof or ("bound and cost meet" if is_least else "the time limit was reached"),
        )

    free = eliminate(small)
    if free is not None and small.cost_of(free) >= FORBIDDEN:
        return _none("no combination of strategies is allowed")
    if free is not None and small.fits(free):
        return answer(free, small.cost_of(free), "proven by elimination")
    if small.usage_limit is not None and _least_peak(small) > small.usage_limit:
        return _none("even the least usage of every node is above the limit")
    bound = float(sum(int(x.min()) for x in (*small.node_costs, *small.edge_costs)))
    found: list[Strategies] = []
    entries, left = sum(table.size for table in small.edge_costs), end - time.monotonic()
    rng = np.random.default_rng(seed)
    if entries <= MOST_ENTRIES and left >= LEAST_PROGRAM_S * entries:
        first = tree_search(small, small.least_used(), end=time.monotonic(), rng=rng)
        found += [first] if first is not None else []
        scale = max(bound, small.cost_of(first) if first is not None else 0)
        program = solve_program(small, scale_cost=scale, time_limit_s=PROGRAM_SHARE * left)
        if program.bound == np.inf:
            return _none("proven by the integer program")
        bound = max(bound, program.bound)
        if program.strategies is not None and program.is_least:
            return answer(program.strategies, bound, "proven by the integer program")
        found += [program.strategies] if program.strategies is not None else []
    start = min(found, key=small.cost_of, default=small.least_used())
    best = tree_search(small, start, end=end, rng=rng)
    if best is None:
        return Solution(
            status=Status.UNKNOWN,
            bound=math.ceil(bound),
            reason="nothing within memory was found in the time given; "
            "that nothing exists is not proven",
        )
    return answer(best, bound, "")


def _least_peak(problem: StrategyGraph) -> int:
    """The peak memory if every tensor used its minimum."""
    least = np.array([int(used.min()) for used in problem.usages], dtype=np.int64)
    return int(sum_over_time(problem.intervals, least).max())


def _none(reason: str) -> Solution:
    return Solution(status=Status.INFEASIBLE, reason=reason)
