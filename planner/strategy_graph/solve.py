"""The cheapest strategies of a graph within a memory limit, with a proven bound.

The graph is contracted (contraction.py). If memory does not bind and the graph is narrow,
elimination is exact (elimination.py); with a price on memory at the fullest moment it gives a bound
and a first answer (Lagrange). A search finds cheap answers in little time (tree_search.py), and an
integer program proves the best one if time allows (integer_program.py).
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from planner.strategy_graph.contraction import contract
from planner.strategy_graph.elimination import Optimum, eliminate
from planner.strategy_graph.integer_program import solve_program
from planner.strategy_graph.problem import FORBIDDEN, Strategies, StrategyGraph, sum_over_time
from planner.strategy_graph.tree_search import tree_search

MOST_ENTRIES = 400_000
"""The most table entries for the integer program of a whole graph: HiGHS needs 6 s for the 62,000
of instance B of the 2025 contest, and got no further than the linear relaxation of the 720,000 of V
in 150 s (2026-11-21)."""
LEAST_PROGRAM_S = 2e-5
"""Seconds per table entry below which the integer program is not tried: on models' blocks it needs
3e-5 to 5e-5 to finish, and found nothing in 1e-5 (2026-11-24)."""
SEARCH_S, SEARCH_SHARE = 1e-5, 0.1
"""The search before the integer program: seconds per table entry, but no larger part of the time
left. It finds the scale of the program's costs."""
PROGRAM_SHARE = 0.7
"""The part of the time left for the integer program; the search has the rest if that is not
enough."""
_LAGRANGE_STEPS = 24


class Status(StrEnum):
    """What is known of an answer."""

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The best strategies found.

    strategies, cost  None if nothing allowed was found
    bound   no allowed choice costs less; None if none exists
    reason  the proof, or what ended the search
    """

    status: Status
    strategies: Strategies | None
    cost: int | None
    bound: int | None
    reason: str


def solve(problem: StrategyGraph, *, time_limit_s: float, seed: int = 0) -> Solution:
    """The cheapest strategies found within the time.

    Contraction and elimination are not interrupted. Equal inputs give equal costs if optimality is
    proven; what is found otherwise depends on the time.
    """
    end = time.monotonic() + time_limit_s
    contraction = contract(problem)
    if contraction is None:
        return _none(
            "forbidden costs and single usages above the limit leave no combination of strategies"
        )
    small = contraction.problem

    def answer(strategies: Strategies, bound: float, reason: str) -> Solution:
        cost = small.cost_of(strategies)
        is_least = cost <= bound
        return Solution(
            status=Status.OPTIMAL if is_least else Status.FEASIBLE,
            strategies=contraction.expand(strategies),
            cost=cost,
            bound=min(cost, math.ceil(bound)),
            reason=reason,
        )

    free = eliminate(small)
    if free is not None and free.cost >= FORBIDDEN:
        return _none("no combination of strategies is allowed")
    if free is not None and small.fits(free.strategies):
        return answer(free.strategies, free.cost, "proven by elimination")
    bound, first = float(_separate_bound(small)), None
    if small.usage_limit is not None:
        if _least_peak(small) > small.usage_limit:
            return _none("even the least usage of every node is above the limit")
        if free is not None:
            priced, first = lagrangian_bound(small, free)
            bound = max(bound, priced)
    if first is not None and small.cost_of(first) <= bound:
        return answer(first, bound, "proven by a price on memory")
    rng = np.random.default_rng(seed)
    entries, left = sum(table.size for table in small.edge_costs), end - time.monotonic()
    if entries <= MOST_ENTRIES and left >= LEAST_PROGRAM_S * entries:
        until = time.monotonic() + min(SEARCH_S * entries, SEARCH_SHARE * left)
        first = tree_search(small, first or small.least_used(), end=until, rng=rng)
        until = time.monotonic() + PROGRAM_SHARE * (end - time.monotonic())
        scale = max(bound, small.cost_of(first) if first is not None else 0)
        found = solve_program(small, scale_cost=scale, time_limit_s=until - time.monotonic())
        if found.is_least and found.strategies and small.cost_of(found.strategies) < scale / 2:
            # HiGHS's tolerance, a part of the scale, was too large.
            scale = small.cost_of(found.strategies)
            found = solve_program(small, scale_cost=scale, time_limit_s=until - time.monotonic())
        if found.bound == np.inf:
            return _none("proven by HiGHS")
        bound = max(bound, found.bound)
        choices = [choice for choice in (found.strategies, first) if choice is not None]
        first = min(choices, key=small.cost_of, default=None)
        if first is not None and small.cost_of(first) <= math.ceil(bound):
            return answer(first, math.ceil(bound), "bound and cost meet")
        if first is not None and found.is_least:
            reason = "bound and cost meet within the tolerance of the integer program, 1e-6"
            return answer(first, bound, reason)
    best = tree_search(small, first or small.least_used(), end=end, rng=rng)
    if best is None:
        return Solution(
            status=Status.UNKNOWN,
            strategies=None,
            cost=None,
            bound=math.ceil(bound),
            reason="nothing within memory was found in the time given; "
            "that nothing exists is not proven",
        )
    return answer(best, math.ceil(bound), "the time limit was reached")


def lagrangian_bound(problem: StrategyGraph, free: Optimum) -> tuple[int, Strategies | None]:
    """A cost that no allowed choice undercuts, and the cheapest choice met that fits.

    Memory is priced at one moment, then eliminated. The moment is the fullest of the choice without
    a limit, `free`; the price is found by bisection on whether the priced choice fits. Every price
    of 0 or more gives a bound (weak duality).
    """
    limit = problem.usage_limit
    assert limit is not None
    moment = int(problem.usage_over_time(free.strategies).argmax())
    usages = problem.usages_at(moment)
    best, low, high = free.cost, 0.0, None
    fitting: dict[Strategies, int] = {}
    price = max(1.0, free.cost) / max(limit, 1)
    for _ in range(_LAGRANGE_STEPS):
        priced = tuple(
            costs + np.floor(price * usages[node]).astype(np.int64) if node in usages else costs
            for node, costs in enumerate(problem.node_costs)
        )
        found = eliminate(problem, node_costs=priced)
        assert found is not None  # the tables have the sizes of those before
        best = max(best, found.cost - int(np.ceil(price * limit)))
        if problem.fits(found.strategies):
            fitting[found.strategies] = problem.cost_of(found.strategies)
        used = sum(int(own[found.strategies[node]]) for node, own in usages.items())
        if used > limit:
            low = price
        else:
            high = price
        price = 4 * price if high is None else (low + high) / 2
    return best, min(fitting, key=lambda choice: fitting[choice], default=None)


def _separate_bound(problem: StrategyGraph) -> int:
    """The sum of the least cost of every node and of every edge."""
    return sum(int(values.min()) for values in (*problem.node_costs, *problem.edge_costs))


def _least_peak(problem: StrategyGraph) -> int:
    """The peak of memory if every tensor used its least."""
    least = np.array([int(used.min()) for used in problem.usages], dtype=np.int64)
    return int(sum_over_time(problem.intervals, least).max())


def _none(reason: str) -> Solution:
    return Solution(status=Status.INFEASIBLE, strategies=None, cost=None, bound=None, reason=reason)
