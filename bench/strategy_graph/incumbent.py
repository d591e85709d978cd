"""The best choice found so far, shared by the threads that search and the one that bounds."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field

import numpy as np

from bench.strategy_graph.audit import audit
from bench.strategy_graph.contraction import Contracted
from planner.op_sharding.strategy_graph import Ints, StrategyGraph


def expanded(contracted: Contracted, choice: Ints) -> list[int]:
    """A strategy for every original node from one for every node of the core."""
    return [
        int(own[choice[group]] if group >= 0 else own[0])
        for own, group in zip(contracted.choice, contracted.group.tolist(), strict=True)
    ]


@dataclass(slots=True, kw_only=True)
class Incumbent:
    """The cheapest allowed strategies, checked exactly, and the highest proved bound.

    A check takes a tenth of a second on large graphs, so the search only notes its choices; the
    latest is checked when `check` is called.
    """

    graph: StrategyGraph
    contracted: Contracted
    strategies: tuple[int, ...] | None = None
    cost: int | None = None
    bound: float = -np.inf
    noted: Ints | None = None
    """The cheapest choice of the search, as strategies of the contracted graph's nodes."""
    ceiling: float = np.inf
    """The cost to beat: of what was noted or checked."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, choice: Ints, cost: float) -> None:
        """Takes a choice that keeps within memory, if it is cheaper."""
        with self.lock:
            if cost < self.ceiling - 0.25:
                self.ceiling, self.noted = cost, choice.copy()

    def offer(self, contracted: Contracted, choice: Ints) -> bool:
        """Checks a choice of any contraction and takes it if cheaper; whether it is allowed."""
        strategies = expanded(contracted, choice)
        found = audit(self.graph, strategies)
        if not found.is_allowed:
            return False
        with self.lock:
            if self.cost is None or found.cost < self.cost:
                self.cost, self.strategies = found.cost, tuple(strategies)
            self.ceiling = min(self.ceiling, float(found.cost))
        return True

    def check(self) -> None:
        """Checks what the search noted last."""
        with self.lock:
            noted, ceiling = self.noted, self.ceiling
        if noted is None or (self.cost is not None and self.cost <= ceiling):
            return
        if not self.offer(self.contracted, noted):
            with self.lock:
                self.ceiling = np.inf if self.cost is None else float(self.cost)
                self.noted = None

    def raise_bound(self, bound: float) -> None:
        """Takes a proved bound if it is higher."""
        with self.lock:
            self.bound = max(self.bound, bound)

    @property
    def lower_bound(self) -> int | None:
        """The bound as a whole number (costs are whole), never above the cost."""
        if not np.isfinite(self.bound):
            return None
        rounded = math.ceil(self.bound)
        return rounded if self.cost is None else min(rounded, self.cost)

    @property
    def is_settled(self) -> bool:
        """Whether the cost to beat is proven to be the least."""
        return np.isfinite(self.ceiling) and math.ceil(self.bound) >= self.ceiling
