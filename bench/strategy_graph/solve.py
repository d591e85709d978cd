"""The engine: contract, then bound and search on two threads until they meet or time is up."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np

from bench.command import SOLVER_THREAD
from bench.strategy_graph.annealing import total_cost
from bench.strategy_graph.contraction import Contracted, NoStrategyError, contract, restrict
from bench.strategy_graph.core import Core, flatten, is_allowed
from bench.strategy_graph.dual_ascent import (
    Dual,
    ascend,
    overfull_moments,
    prove,
    refresh,
    start,
)
from bench.strategy_graph.incumbent import Incumbent
from bench.strategy_graph.integer_programme import solve_exactly
from bench.strategy_graph.least_memory import least_memory_choice
from bench.strategy_graph.memory import Memory, moments_of
from bench.strategy_graph.primal_search import Guide, follow, improve, is_compiled, searcher
from bench.strategy_graph.solution import Solution, Status
from planner.op_sharding.strategy_graph import Ints, StrategyGraph

RESERVE_S = 0.7
"""Time kept back at the end for the last move and the check of the answer."""
PATIENCE_S = 5.0
"""How long the search lasts at least where nothing allowed is known, limit or not."""
FEW_CHOICES = 5000
"""Where there are no more choices in all, each is looked at."""
ASCENT_SHARE, LEAST_ASCENT_S = 0.15, 1.0
"""The part of the time left after which the bound's ascent gives way to the integer programme."""
MOST_ENTRIES = 400_000
"""Up to so many table entries the integer programme is tried: HiGHS needs 6 s for the 50,000 of
instance A of the 2025 contest, 10 s for the 90,000 of C, and got no further than the linear
relaxation of the 720,000 of V in 150 s (2026-11-21)."""

COARSE = 2.0
"""How far above the least cost a scale may be: beyond, the programme is solved again at its own."""

LONGEST_WAIT_S = 3.0
"""How long a search that has to be compiled waits at most for the bound's first ascent and the
integer programme behind it, which close instances B and G of the 2025 contest (2026-11-21)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a solve stands."""

    time_s: float
    cost: int | None
    lower_bound: int | None


def solve(
    problem: StrategyGraph,
    *,
    time_limit_s: float,
    seed: int = 0,
    progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """The cheapest strategies found within `time_limit_s` of wall time, and a proved lower bound.

    Ctrl-C ends the search with what it has found. Reading the problem into a smaller one is not
    interrupted, so a limit of 0 still answers with what it finds in a moment. Equal inputs and
    seeds give equal costs where optimality is proven; a run that the clock ends may differ by what
    the clock allows.
    """
    begun = time.monotonic()
    deadline = begun + max(time_limit_s, 0.0) - min(RESERVE_S, 0.1 * max(time_limit_s, 0.0))
    try:
        contracted = contract(problem)
    except NoStrategyError:
        return _answer(
            None, begun, "forbidden costs and single usages above the limit leave no choice"
        )
    incumbent = Incumbent(graph=problem, contracted=contracted)
    core = flatten(contracted)
    memory = moments_of(problem, contracted)
    if core.nodes == 0:
        incumbent.offer(contracted, np.zeros(0, dtype=np.int64))
        incumbent.raise_bound(
            float(contracted.constant if incumbent.cost is None else incumbent.cost)
        )
        reason = None if incumbent.cost is not None else "the only choice needs too much memory"
        return _answer(incumbent, begun, reason)
    shared = _Shared(contracted, core, memory, incumbent, deadline, seed)
    if shared.dual.window.capacity.size and shared.dual.window.capacity.min() < 0:
        return _answer(incumbent, begun, "even the least usage of every node is above the limit")
    if math.prod(len(values) for values in contracted.costs) <= FEW_CHOICES:
        return _answer(incumbent, begun, shared.enumerate())
    ascend(shared.dual, 1, np.inf)
    shared.publish()
    shared.begin()
    threads = [
        threading.Thread(target=shared.guarded, args=(work,), name=SOLVER_THREAD, daemon=True)
        for work in (shared.bound, shared.search)
    ]
    for thread in threads:
        thread.start()
    interrupted: str | None = None
    while any(thread.is_alive() for thread in threads):
        try:
            for thread in threads:
                thread.join(0.1)
        except KeyboardInterrupt:
            shared.is_interrupted, interrupted = True, "it was interrupted"
        alive = [thread.ident for thread in threads if thread.is_alive()]
        if shared.is_over() and shared.is_deaf.issuperset(alive):
            # Their threads end by themselves, or with the process (bench/command.py).
            break
        if progress is not None:
            progress(
                Progress(
                    time_s=time.monotonic() - begun,
                    cost=round(incumbent.ceiling) if np.isfinite(incumbent.ceiling) else None,
                    lower_bound=incumbent.lower_bound,
                )
            )
    if shared.error is not None:
        raise shared.error
    incumbent.check()
    return _answer(incumbent, begun, None, is_closed=shared.is_closed, ended=interrupted)


class _Shared:
    """What the two threads share: the incumbent, the guide, when to stop."""

    def __init__(
        self,
        contracted: Contracted,
        core: Core,
        memory: Memory,
        incumbent: Incumbent,
        deadline: float,
        seed: int,
    ) -> None:
        self.contracted, self.core, self.memory = contracted, core, memory
        self.incumbent, self.deadline, self.seed = incumbent, deadline, seed
        self.dual: Dual = start(core, memory)
        self.guide: Guide | None = None
        self.error: BaseException | None = None
        self.patience = deadline
        self.is_deaf: set[int | None] = set()
        """Threads in what does not look at the clock: HiGHS (now and then only), a compiler."""
        self.may_compile = threading.Event()
        self.is_closed = False
        self.is_interrupted = False

    def guarded(self, work: Callable[[], None]) -> None:
        """Runs one thread's work; an error ends both and is raised by the caller."""
        try:
            work()
        except Exception as error:
            self.error = error

    def is_over(self) -> bool:
        """Whether to stop; where nothing allowed is known yet, a moment after the deadline."""
        end = self.deadline if np.isfinite(self.incumbent.ceiling) else self.patience
        return (
            self.error is not None
            or self.is_closed
            or self.is_interrupted
            or self.incumbent.is_settled
            or time.monotonic() >= end
        )

    @contextmanager
    def deaf(self) -> Iterator[None]:
        """While this thread cannot be told to end."""
        own = threading.get_ident()
        self.is_deaf.add(own)
        try:
            yield
        finally:
            self.is_deaf.discard(own)

    def publish(self) -> None:
        """Proves the dual's bound and hands its prices to the search."""
        proof = prove(self.dual)
        self.incumbent.raise_bound(proof.bound)
        self.guide = Guide(
            moments=self.dual.window.moments,
            price=self.dual.best_price.copy(),
            choice=self.dual.choice.copy(),
        )

    def enumerate(self) -> str | None:
        """Looks at every choice; says why there is none where none is allowed."""
        priced: list[tuple[float, tuple[int, ...]]] = []
        for combination in itertools.product(*(range(len(c)) for c in self.contracted.costs)):
            priced.append((self.cost_of(np.array(combination, dtype=np.int64)), combination))
        for _, combination in sorted(priced):
            choice = np.array(combination, dtype=np.int64)
            if len(overfull_moments(self.memory, choice, 1)):
                continue
            if self.incumbent.offer(self.contracted, choice):
                assert self.incumbent.cost is not None
                self.incumbent.raise_bound(float(self.incumbent.cost))
                return None
        return "every choice was tried: each is forbidden or above the limit"

    def begin(self) -> None:
        """Something allowed, however dear, before the search for something cheap."""
        core = self.core
        choice = least_memory_choice(core, self.memory, self.dual.window.moments)
        if choice is not None and is_allowed(core, choice):
            self.incumbent.note(choice, self.cost_of(choice))

    def cost_of(self, choice: Ints) -> float:
        """The cost of one strategy per node of the core."""
        core = self.core
        return core.constant + total_cost(
            core.node_start, core.arc_start, core.arc_head, core.arc_table, core.tables,
            core.cost, choice,
        )  # fmt: skip

    def close(self) -> None:
        """The integer programme on what could still be cheaper than the incumbent."""
        self.incumbent.check()
        if self.incumbent.cost is None:
            return
        proof, cost = prove(self.dual), float(self.incumbent.cost)
        # Costs are whole: a strategy that cannot bring the cost to one less is of no use.
        could = proof.bound + proof.through <= cost - 1.0
        starts = self.core.node_start.tolist()
        kept = [np.flatnonzero(could[a:b]) for a, b in itertools.pairwise(starts)]
        left = np.array([len(k) for k in kept], dtype=np.int64)
        if sum(int(left[u] * left[v]) for u, v, _ in self.contracted.tables) > MOST_ENTRIES:
            return
        try:
            small = restrict(self.contracted, kept)
        except NoStrategyError:
            self.incumbent.raise_bound(cost)
            return
        if not small.costs:
            self.incumbent.offer(small, np.zeros(0, dtype=np.int64))
            # The one choice that is left, or nothing, is the cheapest.
            self.incumbent.raise_bound(min(cost, float(self.incumbent.cost)))
            return
        with self.deaf():
            self.may_compile.set()
            found = solve_exactly(
                small,
                moments_of(self.incumbent.graph, small),
                self.dual.window.moments,
                ceiling=cost,
                seconds_left=lambda: self.deadline - time.monotonic(),
            )
        if found.choice is not None:
            self.incumbent.offer(small, found.choice)
        # What is left out costs at least `cost`.
        self.incumbent.raise_bound(min(found.bound, cost))
        # The tolerance is a part of the cost that set the scale: where that was far above what is
        # found (a first choice is any that fits), the programme is solved again at its scale.
        reached = self.incumbent.cost - small.constant
        if found.is_least and cost - small.constant > COARSE * max(reached, 1.0):
            self.close()
        else:
            self.is_closed = found.is_least

    def bound(self) -> None:
        """The bounding thread: ascends, tries the integer programme, ascends; then searches too."""
        while not self.is_over():
            before = self.dual.bound
            self.ascend()
            if self.dual.is_stalled:
                if self.dual.bound - before < 1e-4 * abs(self.dual.bound):
                    break
                refresh(self.dual)
            if not self.is_over():
                self.close()
            self.may_compile.set()
        if not self.is_over():
            self.close()
        self.may_compile.set()
        self._search(self.seed + 1)

    def ascend(self) -> None:
        """The ascent until it stalls or its share of the time is over."""
        share = ASCENT_SHARE * (self.deadline - time.monotonic())
        end = time.monotonic() + max(share, LEAST_ASCENT_S)
        published = time.monotonic()
        while not self.is_over() and not self.dual.is_stalled and time.monotonic() < end:
            ascend(self.dual, 2, self.incumbent.ceiling)
            if time.monotonic() - published > 0.5:
                published = time.monotonic()
                self.publish()
        self.publish()

    def search(self) -> None:
        """The searching thread.

        A compiler holds the interpreter's lock, so where there is something to compile it waits
        until the bound's first ascent is over and HiGHS, which needs no lock, is at it.
        """
        if not is_compiled():
            self.may_compile.wait(LONGEST_WAIT_S)
        if not self.is_over():
            self._search(self.seed)

    def _search(self, seed: int) -> None:
        assert self.guide is not None
        guide = self.guide
        with nullcontext() if is_compiled() else self.deaf():
            one = searcher(self.core, self.memory, self.incumbent, seed, guide)
            improve(one)
        # Counted from here, where the loops are compiled.
        self.patience = max(self.patience, time.monotonic() + PATIENCE_S)
        while True:
            improve(one)
            if self.is_over():
                break
            if self.guide is not guide:
                guide = self.guide
                follow(one, guide)


def _answer(
    incumbent: Incumbent | None,
    begun: float,
    infeasible: str | None,
    *,
    is_closed: bool = False,
    ended: str | None = None,
) -> Solution:
    bound = None if incumbent is None else incumbent.lower_bound
    if incumbent is not None and incumbent.cost is not None:
        settled = incumbent.cost == bound
        status = Status.OPTIMAL if settled else Status.FEASIBLE
        reason = ended or "the time limit was reached"
        if settled:
            reason = "bound and cost meet"
        elif is_closed:
            reason = "bound and cost meet within the tolerance of the integer programme, 1e-6"
    elif infeasible is not None:
        status, reason, bound = Status.INFEASIBLE, infeasible, None
    else:
        status = Status.UNKNOWN
        reason = (
            "nothing within memory was found in the time given; that nothing exists is not proven"
        )
    return Solution(
        status=status,
        strategies=None if incumbent is None else incumbent.strategies,
        cost=None if incumbent is None else incumbent.cost,
        lower_bound=bound,
        time_s=time.monotonic() - begun,
        reason=reason,
    )
