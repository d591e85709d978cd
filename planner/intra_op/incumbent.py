"""The best choice found so far, shared by the threads that search and the one that bounds."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

import numpy as np

from planner.intra_op.audit import audit
from planner.intra_op.contraction import Contracted
from planner.intra_op.strategy_graph import Ints, StrategyGraph


def expanded(contracted: Contracted, choice: Ints) -> list[int]:
    """A strategy for every original node from one for every node of the core."""
    return [
        int(own[choice[group]] if group >= 0 else own[0])
        for own, group in zip(contracted.choice, contracted.group.tolist(), strict=True)
    ]


@dataclass(slots=True, kw_only=True)
class Incumbent:
    """The cheapest allowed strategies, checked exactly, and the highest proved bound."""

    graph: StrategyGraph
    strategies: tuple[int, ...] | None = None
    cost: int | None = None
    bound: float = -np.inf
    infeasible: str | None = None
    """Why there is no allowed choice, where that is proven."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def ceiling(self) -> float:
        """The cost to beat."""
        return np.inf if self.cost is None else float(self.cost)

    def offer(self, contracted: Contracted, choice: Ints) -> bool:
        """Takes a choice if it is allowed and cheaper; says whether it is allowed."""
        strategies = expanded(contracted, choice)
        found = audit(self.graph, strategies)
        if not found.is_allowed:
            return False
        with self.lock:
            if self.cost is None or found.cost < self.cost:
                self.cost, self.strategies = found.cost, tuple(strategies)
        return True

    def raise_bound(self, bound: float) -> None:
        """Takes a proved bound if it is higher."""
        with self.lock:
            self.bound = max(self.bound, bound)

    @property
    def lower_bound(self) -> int | None:
        """The bound as a whole number (costs are whole), never above the cost."""
        if not np.isfinite(self.bound):
            return None
        rounded = int(np.ceil(self.bound))
        return rounded if self.cost is None else min(rounded, self.cost)

    @property
    def is_settled(self) -> bool:
        """Whether the cost is proven to be the least."""
        return self.infeasible is not None or (
            self.cost is not None and self.cost == self.lower_bound
        )
