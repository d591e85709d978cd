"""`BestFirst`: the branch-and-bound search of the planner.

Candidates are opened in the order of their lower bounds until none is below the best value found.
Only then are the others pruned.

The caller defines the candidates (cells, layouts, waves of meshes, sets of devices) and how one is
opened. Opening a candidate may offer an answer, yield further candidates, or explore candidates in
the same search. A time limit or an interrupt ends a search early; its answers remain, with the
bound proven so far.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

Found = TypeVar("Found")
Item = TypeVar("Item")
Candidate = tuple[float, int, Item]
"""(lower bound on its answers, position among candidates of equal bounds, candidate)."""
Rank = tuple[Any, ...]
"""Sort key of answers, lowest first: the minimized value, then ties."""
Progress = Callable[[float, float, float, float], None]
"""Called with bound, incumbent (infinite before the first), gap and seconds so far."""


@dataclass(slots=True, kw_only=True)
class BestFirst(Generic[Found]):
    """The state of one search.

    clock, time_limit_s  seconds; read before a candidate is opened
    progress    called after every refined candidate
    best        least value so far; at first an upper limit
    first_only  end at the first answer: enough to know that one exists
    found       best answer of each family, with its rank
    refined     number of candidates that were evaluated
    complete    False if a limit or an interrupt ended the search
    """

    clock: Callable[[], float]
    time_limit_s: float | None = None
    progress: Progress | None = None
    best: float = math.inf
    first_only: bool = False
    found: dict[Hashable, tuple[Rank, Found]] = field(default_factory=dict)
    refined: int = 0
    complete: bool = True
    _start: float = field(init=False)
    _proved: float = math.inf
    _heads: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._start = self.clock()

    @property
    def bound(self) -> float:
        """Lower bound on the value of every answer, refined or not; at most the best."""
        return float(min(self.best, self._proved, *self._heads))

    @property
    def has_time(self) -> bool:
        """Whether time is left."""
        return self.time_limit_s is None or self.clock() - self._start <= self.time_limit_s

    def ranked(self) -> list[tuple[Rank, Found]]:
        """The best answer of each family with its rank, best first."""
        return sorted(self.found.values(), key=lambda pair: pair[0])

    def offer(self, family: Hashable, rank: Rank, found: Found) -> None:
        """Add an answer. Each family keeps its best; ties go to the first."""
        if family not in self.found or rank < self.found[family][0]:
            self.found[family] = (rank, found)
        self.best = min(self.best, rank[0])

    def count_refined(self, bound: float = math.inf) -> None:
        """Count a refined candidate. `bound` is a lower bound on its answers that were not
        found."""
        self.refined += 1
        self.prove(bound)

    def prove(self, bound: float) -> None:
        """Record a lower bound on answers outside of this search."""
        self._proved = min(self._proved, bound)

    def must_have_time(self) -> None:
        """Raises TimeoutError after the time limit."""
        if not self.has_time:
            raise TimeoutError

    @contextmanager
    def until_the_end(self) -> Iterator[None]:
        """Context in which a time limit or an interrupt ends the search."""
        try:
            yield
        except (KeyboardInterrupt, TimeoutError):
            self.complete = False

    def explore(
        self,
        candidates: Sequence[Candidate[Item]],
        open_one: Callable[[Item], Iterable[Candidate[Item]] | None],
    ) -> list[Candidate[Item]]:
        """Open candidates, given in the order of their bounds, as long as one may be better than
        the best; returns the rest.

        Raises TimeoutError and KeyboardInterrupt (`until_the_end`).
        """
        left, level = list(candidates[::-1]), len(self._heads)
        self._heads.append(math.inf)
        while left and left[-1][0] < self.best:
            # Before it is opened, its answers may be as good as its bound.
            self._heads[level] = left[-1][0]
            self.must_have_time()
            refined = self.refined
            further = open_one(left[-1][2])
            left.pop()
            for each in further or ():
                bisect.insort(left, each, key=lambda one: (-one[0], -one[1]))
            self._heads[level] = left[-1][0] if left else math.inf
            if self.first_only and self.found:
                raise TimeoutError
            if self.progress and self.refined > refined:
                gap = (self.best - self.bound) / self.best if self.found else math.inf
                self.progress(self.bound, self.best, gap, self.clock() - self._start)
        self._heads.pop()
        return left[::-1]

    def open_runners_up(
        self,
        rest: Iterable[Candidate[Item]],
        open_one: Callable[[Item], object],
        *,
        runners_up: int,
        most: int,
        worth: Callable[[Item], bool] = lambda item: True,
    ) -> None:
        """Open remaining candidates, in the order of their bounds, until no remaining bound is
        below the values of enough families. An answer equal to the best may rank before it.

        most   maximum number of candidates
        worth  whether to open a candidate
        """
        opened = 0
        with suppress(KeyboardInterrupt, TimeoutError):
            for bound, _, item in rest:
                if opened >= most or (bound > self.best and bound >= self.shown(runners_up)):
                    return
                self.must_have_time()
                if worth(item):
                    opened += 1
                    open_one(item)

    def shown(self, runners_up: int) -> float:
        """The value of the worst of the best `runners_up` + 1 answers; infinite if there are
        fewer."""
        values = sorted(rank[0] for rank, _ in self.found.values())
        return float(values[runners_up]) if len(values) > runners_up else math.inf
