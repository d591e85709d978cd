"""The best contiguous split of a graph, with a proven bound.

1. Blocks that take no time join a neighbour (satellites), where that cannot cost anything.
2. Rows of blocks (topological orders) are cut optimally: a first split.
3. All ideals are listed, and the exact programme runs under a rising ceiling from the lower bound:
   a run that finds nothing lifts the bound to its ceiling, one that finds a split proves it best.
4. Where the ideals are too many: the same on the problem with more order (a better split), and on
   the problem without its lightest blocks (a better bound).
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.graph_partition.bound import work_bound_s
from bench.graph_partition.check import check_split
from bench.graph_partition.figures import Figures, figures_of
from bench.graph_partition.ideals import Ideals, chain, enumerate_ideals
from bench.graph_partition.infeasible import memory_obstacle, memory_problem, plain_obstacle
from bench.graph_partition.problem import (
    DeviceKind,
    GraphProblem,
    NoSplit,
    Share,
    Split,
    topological,
)
from bench.graph_partition.program import run_program
from bench.graph_partition.reduce import Reduction, hosts_together, reduce_problem
from bench.graph_partition.thin import with_window, without_blocks
from profiles.errors import InputError

_ENTRIES = 60_000_000  # ideals x states at most: 13 bytes each, under a gigabyte
_MOST_IDEALS = 2_000_000  # links and sets take another few hundred bytes an ideal
_FIRST_STEP = 0.01  # of the bound: the first ceiling is this much over it; doubled after each run
_FAR = 0.05  # of the bound: a first split further off is bettered before all ideals are tried
_WIDTHS = (2, 4, 6, 8, 11, 14, 18, 24, 32)  # of windows; each run costs a few times the one before
_EQUAL = 1e-9  # relative: the programme's own exactness


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is known so far; `max_load_s` is infinite before a split is found."""

    max_load_s: float
    bound_s: float
    elapsed_s: float


def solve(
    problem: GraphProblem,
    time_limit_s: float,
    progress: Callable[[Progress], None] | None = None,
    *,
    most_ideals: int = _MOST_IDEALS,
) -> Split | NoSplit:
    """The split with the least largest load found within the limit, and a bound for all splits.

    Exact (`Split.proven`) where the graph has up to `most_ideals` ideals and time suffices. The
    same problem gives the same answer if the time limit does not bind. Raises InputError for a time
    limit that is not above 0.
    """
    if not time_limit_s > 0:
        raise InputError(f"time_limit_s is {time_limit_s}; it must be above 0")
    whole = hosts_together(problem)
    search = _Search(whole.problem, time.monotonic() + time_limit_s, progress, most_ideals)
    reason = plain_obstacle(problem)
    if reason:
        return NoSplit(reason=reason, proven=True, bound_s=float("inf"))
    search.raise_bound(work_bound_s(whole.problem))
    search.run()
    found = search.answer()
    if isinstance(found, NoSplit):
        return found
    return dataclasses.replace(found, shares=whole.expand(found.shares))


class _Search:
    def __init__(
        self,
        problem: GraphProblem,
        deadline: float,
        progress: Callable[[Progress], None] | None,
        most_ideals: int,
    ) -> None:
        self.problem, self.deadline, self.progress = problem, deadline, progress
        self.started = time.monotonic()
        self.shares: tuple[Share, ...] | None = None
        self.max_load_s = float("inf")
        self.bound_s = 0.0
        self.obstacle = ""  # set where it is proven that no split exists
        states = (problem.accelerators + 1) * (problem.hosts + 1)
        self.most_ideals = max(2, min(most_ideals, _ENTRIES // states))
        # No device's load exceeds this, whatever the split.
        self.worst_s = max(
            sum(problem.accelerator_s) + sum(t.transfer_s for t in problem.tensors),
            sum(problem.host_s),
        )

    def run(self) -> None:
        if self.problem.hosts:
            everything = tuple(range(len(self.problem.names)))
            self._offer((Share(kind=DeviceKind.HOST, blocks=everything),))
        reduction = reduce_problem(self.problem)
        self._cut_rows(reduction)
        if self.shares is None:
            self._fit_memory()
        if self._closed() or self.obstacle:
            return
        if reduction.exact:
            self._exact(reduction)
            return
        # Memory may bind, and some joined blocks weigh: bound with their bytes left out, then cut
        # with them counted, then, if that leaves a gap, without any join.
        self._exact(reduce_problem(self.problem, relax_memory=True))
        if not self._closed():
            self._exact(reduction)
        if not self._closed():
            self._exact(reduce_problem(self.problem, heavy_joins=False))

    def answer(self) -> Split | NoSplit:
        if self.shares is not None:
            bound = self.max_load_s if self._closed() else self.bound_s
            return Split(shares=self.shares, max_load_s=self.max_load_s, bound_s=bound)
        reason = self.obstacle or "no split was found within the time limit; allow more time"
        return NoSplit(reason=reason, proven=bool(self.obstacle), bound_s=self.bound_s)

    def out_of_time(self) -> bool:
        return time.monotonic() > self.deadline

    def raise_bound(self, bound_s: float) -> None:
        if bound_s > self.bound_s:
            self.bound_s = bound_s
            self._report()

    def _offer(self, shares: tuple[Share, ...]) -> None:
        checked = check_split(self.problem, shares)
        if not checked.faults and checked.max_load_s < self.max_load_s:
            self.shares, self.max_load_s = shares, checked.max_load_s
            self._report()

    def _closed(self) -> bool:
        return self.max_load_s <= self.bound_s * (1 + _EQUAL)

    def _report(self) -> None:
        if self.progress is not None:
            elapsed = time.monotonic() - self.started
            self.progress(
                Progress(max_load_s=self.max_load_s, bound_s=self.bound_s, elapsed_s=elapsed)
            )

    def _cut_rows(self, reduction: Reduction) -> None:
        small = reduction.contraction.problem
        count = len(small.names)
        backwards = topological(count, [(b, a) for a, b in small.order], deep=True)[::-1]
        rows = [
            topological(count, small.order, deep=True),
            backwards,
            topological(count, small.order),
        ]
        for row in rows:
            found = run_program(
                figures_of(small, row), chain(count), self.worst_s, out_of_time=self.out_of_time
            )
            if found.shares is not None:
                self._offer(reduction.contraction.expand(found.shares))

    def _fit_memory(self) -> None:
        """No row fits the memory, there is no host: take the split with the least memory."""
        left_s = self.deadline - time.monotonic()
        if left_s <= 0:
            return
        found = solve(memory_problem(self.problem), left_s, most_ideals=self.most_ideals)
        if isinstance(found, NoSplit):
            return
        self._offer(found.shares)
        if self.shares is None and found.bound_s > self.problem.capacity_bytes * (1 + _EQUAL):
            self.obstacle = memory_obstacle(self.problem, found.bound_s)

    def _exact(self, reduction: Reduction) -> None:
        small = reduction.contraction.problem
        row = topological(len(small.names), small.order, deep=True)
        figures = figures_of(small, row)
        ideals = enumerate_ideals(figures.count, figures.pairs, self.most_ideals)
        if ideals is not None:
            if self.max_load_s > self.bound_s * (1 + _FAR) and not reduction.relaxed:
                self._widen(reduction, row, widths=(2, 5))
            self._climb(reduction, figures, ideals)
            return
        if not reduction.relaxed:
            self._widen(reduction, row)
        if reduction.exact or reduction.relaxed:
            self._bound_by_heaviest(small)

    def _climb(self, reduction: Reduction, figures: Figures, ideals: Ideals) -> None:
        """The exact programme under rising ceilings, until one finds a split or the known one."""
        low = self.bound_s
        step = max(low, self.worst_s * 1e-6) * _FIRST_STEP
        while low < self.max_load_s:
            top = min(self.max_load_s, self.worst_s)
            ceiling = min(low + step, top)
            if ceiling + 0.5 * step > top:
                ceiling = top
            found = run_program(figures, ideals, ceiling, out_of_time=self.out_of_time)
            if not found.finished:
                return
            if found.shares is not None:
                if reduction.exact or reduction.relaxed:
                    self.raise_bound(found.max_load_s * (1 - _EQUAL / 2))
                self._offer(reduction.contraction.expand(found.shares))
                return
            if reduction.exact or reduction.relaxed:
                self.raise_bound(min(ceiling, self.max_load_s))
            if ceiling >= self.worst_s:
                return
            low, step = ceiling, 2 * step

    def _widen(
        self, reduction: Reduction, row: list[int], widths: tuple[int, ...] = _WIDTHS
    ) -> None:
        """Better splits from windows on a row of blocks, widening while ideals and time allow."""
        small = reduction.contraction.problem
        for width in widths:
            if self.out_of_time() or self._closed():
                return
            narrow = with_window(small, row, width)
            figures = figures_of(narrow, row)
            ideals = enumerate_ideals(figures.count, figures.pairs, self.most_ideals)
            if ideals is None:
                return
            found = run_program(
                figures, ideals, min(self.max_load_s, self.worst_s), out_of_time=self.out_of_time
            )
            if found.shares is not None:
                self._offer(reduction.contraction.expand(found.shares))

    def _bound_by_heaviest(self, small: GraphProblem) -> None:
        """A better bound from the problem without as few of its lightest blocks as is possible."""
        by_weight = sorted(
            range(len(small.names)), key=lambda b: (small.accelerator_s[b] + small.host_s[b], b)
        )
        fewest, most = (
            0,
            len(by_weight),
        )  # dropped: too many ideals at `fewest`, none left at `most`
        best: tuple[Figures, Ideals] | None = None
        while most - fewest > 1 and not self.out_of_time():
            middle = (fewest + most) // 2
            rest = without_blocks(small, frozenset(by_weight[:middle]))
            figures = figures_of(rest, topological(len(rest.names), rest.order, deep=True))
            ideals = enumerate_ideals(figures.count, figures.pairs, self.most_ideals)
            if ideals is None:
                fewest = middle
            else:
                most, best = middle, (figures, ideals)
        if best is None:
            return
        low, step = self.bound_s, self.bound_s * _FIRST_STEP
        while low < self.max_load_s and step > 0:
            ceiling = min(low + step, self.max_load_s)
            found = run_program(*best, ceiling, out_of_time=self.out_of_time)
            if not found.finished:
                return
            if found.shares is not None:
                self.raise_bound(found.max_load_s * (1 - _EQUAL))
                return
            self.raise_bound(ceiling)
            low, step = ceiling, 2 * step
