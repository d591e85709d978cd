"""What the engine returns: strategies with their cost, and what is proven about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """What is known when the engine stops."""

    OPTIMAL = "optimal"
    """The cost equals the lower bound: nothing is cheaper."""
    FEASIBLE = "feasible"
    """The strategies are allowed; something cheaper may exist, down to the lower bound."""
    INFEASIBLE = "infeasible"
    """Proven: no choice of strategies keeps within memory without a forbidden one."""
    UNKNOWN = "unknown"
    """Nothing allowed was found in the time given, and nothing is proven."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The best strategies found."""

    status: Status
    strategies: tuple[int, ...] | None
    """The strategy of every node, None where none is known to be allowed."""
    cost: int | None
    """Their exact cost, None where there are no strategies."""
    lower_bound: int | None
    """No allowed choice costs less (proved); None where infeasibility is proven or nothing is."""
    time_s: float
    """Wall time of the call."""
    reason: str
    """In a sentence: what is binding where nothing was found, else what was reached."""

    @property
    def gap(self) -> float | None:
        """(cost - lower bound) / cost: 0 is optimal. None where either is unknown."""
        if self.cost is None or self.lower_bound is None:
            return None
        if self.cost == self.lower_bound:
            return 0.0
        return (self.cost - self.lower_bound) / max(abs(self.cost), 1)
