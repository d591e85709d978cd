"""The exact cost and peak memory of given strategies, by plain sums over whole numbers.

Shares no code with the solver, so that an error there cannot hide here. Python's integers do not
overflow: sums above 2**63 are exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from shardwright_placements.strategy_graph.problem import FORBIDDEN, StrategyGraph


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What some strategies cost and use."""

    cost: int
    """The sum of all node and edge costs, forbidden ones included."""
    peak_usage: int
    """The most memory at any time."""
    peak_time: int | None
    """The first time at which it is reached; None where no node lives."""
    forbidden: str | None
    """The first forbidden choice in words; None where there is none."""
    usage_limit: int | None
    """The problem's limit."""

    @property
    def is_allowed(self) -> bool:
        """Whether the strategies keep within memory and forbid nothing."""
        within = self.usage_limit is None or self.peak_usage <= self.usage_limit
        return within and self.forbidden is None


def audit(graph: StrategyGraph, strategies: Sequence[int]) -> Audit:
    """The cost and peak of one strategy per node.

    Raises ValueError where a node has no such strategy or strategies are not one per node.
    """
    if len(strategies) != graph.nodes:
        raise ValueError(f"{len(strategies)} strategies for {graph.nodes} nodes")
    cost = 0
    forbidden: str | None = None
    change: dict[int, int] = defaultdict(int)
    for node, chosen in enumerate(strategies):
        if not 0 <= chosen < len(graph.node_costs[node]):
            raise ValueError(f"node {node} has no strategy {chosen}")
        price = int(graph.node_costs[node][chosen])
        if price >= FORBIDDEN and forbidden is None:
            forbidden = f"strategy {chosen} of node {node}"
        cost += price
    for node, usages, (start, end) in zip(
        graph.holders.tolist(), graph.usages, graph.intervals.tolist(), strict=True
    ):
        if end > start:
            change[start] += int(usages[strategies[node]])
            change[end] -= int(usages[strategies[node]])
    for (first, second), table in zip(graph.edges.tolist(), graph.edge_costs, strict=True):
        price = int(table[strategies[first], strategies[second]])
        if price >= FORBIDDEN and forbidden is None:
            forbidden = (
                f"strategies {strategies[first]} and {strategies[second]} "
                f"of nodes {first} and {second} together"
            )
        cost += price
    load, peak, peak_time = 0, 0, None
    for time in sorted(change):
        load += change[time]
        if peak_time is None or load > peak:
            peak, peak_time = load, time
    return Audit(
        cost=cost,
        peak_usage=peak,
        peak_time=peak_time,
        forbidden=forbidden,
        usage_limit=graph.usage_limit,
    )
