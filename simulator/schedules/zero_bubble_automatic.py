"""ZB-1p and ZB-2p: schedules from a greedy search for given durations and memory.

Qi et al., Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 3.1. The search simulates the
pipeline round by round and selects F, I or W on every rank. The paper leaves three choices open;
both options of each are tried and the shortest schedule is kept. With the times of their table 9 it
reproduces all 24 bubble rates of their table 5 for ZB-1p and ZB-2p to the last printed digit
(tests/simulator/test_schedule_published.py).

Memory is counted as in the paper, in units of a micro-batch's activations on a rank: F allocates 1,
I frees all but `kept_for_weights`, W frees the rest.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from profiles.errors import InputError
from simulator.schedules.action import Action, ActionKind
from simulator.schedules.durations import Durations
from simulator.schedules.schedule import Rows, ScheduleKind, ScheduleOptions, register

_ROUNDING = 1e-9  # rounding error of sums of memory fractions


@register(
    ScheduleKind(
        name="zb-1p",
        splits_backward=True,
        follows_durations=True,
        held=lambda p, m, v: ((min(m, p),),) * p,
    )
)
def zb_1p(num_ranks: int, num_microbatches: int, options: ScheduleOptions) -> Rows:
    """Search limited to the memory of 1F1B: p micro-batches on every rank."""
    return automatic("zb-1p", num_ranks, num_microbatches, options, memory_limit=num_ranks)


@register(
    ScheduleKind(
        name="zb-2p",
        splits_backward=True,
        follows_durations=True,
        held=lambda p, m, v: ((min(m, 2 * p - 1),),) * p,
    )
)
def zb_2p(num_ranks: int, num_microbatches: int, options: ScheduleOptions) -> Rows:
    """Search limited to twice the memory of 1F1B, enough for almost no bubble (section 5.4)."""
    return automatic("zb-2p", num_ranks, num_microbatches, options, memory_limit=2 * num_ranks)


def automatic(
    name: str,
    num_ranks: int,
    num_microbatches: int,
    options: ScheduleOptions,
    *,
    memory_limit: float,
) -> Rows:
    """Shortest schedule of the search for `options.durations` within the memory limit.

    memory_limit  of every rank, in micro-batches' activations; at least num_ranks
    """
    durations = options.durations or Durations.even(num_ranks)
    if durations.num_stages != num_ranks:
        raise InputError(
            f"{name} over {num_ranks} ranks needs durations of {num_ranks} stages, got "
            f"{durations.num_stages}"
        )
    if memory_limit < num_ranks:
        raise InputError(
            f"{name} needs memory for {num_ranks} micro-batches on {num_ranks} ranks, the limit is "
            f"{memory_limit:g}; use v-half or v-min for less"
        )
    tried = []
    for fit, yields, small in itertools.product((True, False), repeat=3):
        search = _Search(num_microbatches, durations, memory_limit, options.kept_for_weights)
        search.first_round(only_fitting=fit)
        for _ in range(1, num_microbatches):
            search.forwards(may_yield=yields, fill_small_gaps=small)
            search.backwards(fill_small_gaps=small)
        tried.append(search.finish())
    _, rows = min(tried, key=lambda outcome: outcome[0])
    return rows


@dataclass(slots=True)
class _Rank:
    """State of a rank in the search; `done` counts its F, I and W, `seconds` gives their times."""

    stage: int
    seconds: dict[ActionKind, float]
    clock_s: float = 0.0
    idle_s: float = 0.0
    held: float = 0.0
    done: dict[ActionKind, int] = field(default_factory=dict)
    ends_s: dict[ActionKind, list[float]] = field(default_factory=dict)
    row: list[Action] = field(default_factory=list)

    @property
    def owes_weights(self) -> bool:
        return self.done[_W] < self.done[_I]


_F, _I, _W = ActionKind.FORWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT


class _Search:
    def __init__(
        self, num_microbatches: int, durations: Durations, limit: float, kept: float
    ) -> None:
        self._micro, self._limit = num_microbatches, limit + _ROUNDING
        self._change = {_F: 1.0, _I: kept - 1.0, _W: -kept}
        self._down, self._up = durations.send_forward_s, durations.send_backward_s
        times = zip(durations.forward_s, durations.input_s(), durations.weight_s(), strict=True)
        self._ranks = [
            _Rank(
                stage=stage,
                seconds={_F: forward_s, _I: input_s, _W: weight_s},
                done=dict.fromkeys((_F, _I, _W), 0),
                ends_s={_F: [], _I: [], _W: []},
            )
            for stage, (forward_s, input_s, weight_s) in enumerate(times)
        ]

    def first_round(self, *, only_fitting: bool) -> None:
        """Warm-up: the first F and I of every rank, and between them as many F as memory allows.

        only_fitting  skip an F that would delay the first I, which leaves a gap shorter than an F
        """
        for rank in self._ranks:
            self._run(rank, _F, self._arrival(rank, _F))
        more = self._fitting_forwards(only_fitting)
        for before, rank in itertools.pairwise(self._ranks):
            # Every rank runs at least one F more than the next rank, while any are left.
            taken = before.done[_F] + more[before.stage]
            most = taken if taken == self._micro else taken - 1
            more[rank.stage] = min(more[rank.stage], max(0, most - rank.done[_F]))
        for rank in self._ranks:
            for _ in range(more[rank.stage]):
                self._run(rank, _F, self._arrival(rank, _F))
        for rank in reversed(self._ranks):
            self._run(rank, _I, self._arrival(rank, _I))

    def _fitting_forwards(self, only_fitting: bool) -> list[int]:
        """Per rank: number of F that it can run within memory before its first gradient arrives."""
        more = [0] * len(self._ranks)
        last = self._ranks[-1]
        gradient_s = last.clock_s + last.seconds[_I]
        for rank in reversed(self._ranks[:-1]):
            arrival_s = gradient_s + self._up[rank.stage + 1]
            clock_s, count = rank.clock_s, rank.done[_F]
            room = min(self._micro, int(self._limit - rank.held) + count)
            while count < room and clock_s < arrival_s:
                if only_fitting and clock_s + rank.seconds[_F] > arrival_s:
                    break
                clock_s += rank.seconds[_F]
                count += 1
            more[rank.stage] = count - rank.done[_F]
            gradient_s = max(clock_s, arrival_s) + rank.seconds[_I]
        return more

    def forwards(self, *, may_yield: bool, fill_small_gaps: bool) -> None:
        """One F on every rank with one left, except ranks that let the next rank catch up."""
        runs = [rank.done[_F] < self._micro for rank in self._ranks]
        for rank, after in itertools.pairwise(self._ranks):
            if may_yield and runs[rank.stage] and self._yields(rank, after):
                runs[rank.stage] = False
        for rank in reversed(self._ranks[:-1]):
            runs[rank.stage] = runs[rank.stage] and runs[rank.stage + 1]
        for rank in self._ranks:
            if not runs[rank.stage]:
                continue
            while rank.held + self._change[_F] > self._limit:
                self._run(rank, _W)
            self._place(rank, _F, fill_small_gaps)

    def _yields(self, rank: _Rank, after: _Rank) -> bool:
        """Whether a rank two F ahead of the next can skip one without enlarging the bubble."""
        if rank.done[_F] < after.done[_F] + 2:
            return False
        # Arrival of the gradient of the next rank's coming round.
        due_s = after.clock_s + after.seconds[_F] + after.seconds[_I] + self._up[after.stage]
        if rank.clock_s >= due_s:
            return True
        first_s, held, owed = 0.0, rank.held, rank.done[_I] - rank.done[_W]
        while held + self._change[_F] > self._limit and owed:
            first_s, held, owed = first_s + rank.seconds[_W], held + self._change[_W], owed - 1
        if rank.clock_s + first_s + rank.seconds[_F] <= due_s:
            return False
        return due_s - rank.clock_s <= self._most_idle_s() - rank.idle_s

    def backwards(self, *, fill_small_gaps: bool) -> None:
        """One I at every rank, last rank first."""
        for rank in reversed(self._ranks):
            if rank.stage == 0 and rank.done[_F] == self._micro:
                # No rank waits for the first rank's gradient, so it can free its memory first.
                while rank.owes_weights:
                    self._run(rank, _W)
            self._place(rank, _I, fill_small_gaps)

    def finish(self) -> tuple[float, Rows]:
        """(seconds of the longest rank, actions of every rank), after the remaining W."""
        for rank in self._ranks:
            while rank.owes_weights:
                self._run(rank, _W)
        starts = [rank.ends_s[_F][0] - rank.seconds[_F] for rank in self._ranks]
        longest = max(r.clock_s - start for r, start in zip(self._ranks, starts, strict=True))
        return longest, tuple(tuple(rank.row) for rank in self._ranks)

    def _place(self, rank: _Rank, kind: ActionKind, fill_small_gaps: bool) -> None:
        """Run F or I when its input has arrived, and W while waiting.

        A last W that ends after the arrival delays the action. It runs if the wait would make this
        rank the most idle one, otherwise only with `fill_small_gaps`.
        """
        arrival_s = self._arrival(rank, kind)
        while rank.owes_weights and rank.clock_s + rank.seconds[_W] <= arrival_s:
            self._run(rank, _W)
        gap_s = arrival_s - rank.clock_s
        if rank.owes_weights and gap_s > 0.0:
            longer = gap_s > self._most_idle_s() - rank.idle_s
            if longer or fill_small_gaps:
                self._run(rank, _W)
        self._run(rank, kind, arrival_s)

    def _arrival(self, rank: _Rank, kind: ActionKind) -> float:
        """Arrival of the neighbor's result for the rank's next F or I, in s; 0 at the ends."""
        number, stage = rank.done[kind], rank.stage
        if kind is _F:
            return self._ranks[stage - 1].ends_s[_F][number] + self._down[stage] if stage else 0.0
        if stage == len(self._ranks) - 1:
            return 0.0
        return self._ranks[stage + 1].ends_s[_I][number] + self._up[stage + 1]

    def _most_idle_s(self) -> float:
        return max(rank.idle_s for rank in self._ranks)

    def _run(self, rank: _Rank, kind: ActionKind, arrival_s: float = 0.0) -> None:
        start_s = max(rank.clock_s, arrival_s)
        if rank.done[_F]:
            rank.idle_s += start_s - rank.clock_s
        rank.clock_s = start_s + rank.seconds[kind]
        rank.held += self._change[kind]
        rank.row.append(Action(rank.stage, kind, rank.done[kind]))
        rank.ends_s[kind].append(rank.clock_s)
        rank.done[kind] += 1
