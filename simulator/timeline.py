"""The timeline: when each action of a schedule starts and ends.

Actions of a rank run one after another in the schedule's order; an action also waits for its own
forward and for its neighbour's output, which takes the time of a send to arrive. That makes a
directed acyclic graph whose longest paths are the times. The graph is built once per schedule and
kept; running it is one pass over arrays.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from profiles.errors import InputError
from simulator.schedule import Action, ActionKind, Schedule, dependencies


@dataclass(frozen=True, slots=True, kw_only=True)
class Durations:
    """Seconds per virtual stage: forward, backward (I and W split it), and sends.

    send_forward_s[s], send_backward_s[s]   for the tensors that cross the cut before stage s, down
    and up; entry 0 is not used
    weight_share   part of a backward that its W is, where a schedule splits it
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    send_forward_s: tuple[float, ...]
    send_backward_s: tuple[float, ...]
    weight_share: float = 0.5

    def __post_init__(self) -> None:
        counts = {
            len(x)
            for x in (self.forward_s, self.backward_s, self.send_forward_s, self.send_backward_s)
        }
        if len(counts) != 1:
            raise InputError(f"durations are needed for the same stages, got {sorted(counts)}")

    def of(self, action: Action) -> float:
        if action.kind is ActionKind.FORWARD:
            return self.forward_s[action.stage]
        backward = self.backward_s[action.stage]
        if action.kind is ActionKind.BACKWARD:
            return backward
        weight = action.kind is ActionKind.BACKWARD_WEIGHT
        return backward * (self.weight_share if weight else 1 - self.weight_share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Start and end seconds of every action, in the order of `actions` (rank by rank)."""

    actions: tuple[Action, ...]
    ranks: tuple[int, ...]
    start_s: tuple[float, ...]
    end_s: tuple[float, ...]

    @property
    def makespan_s(self) -> float:
        return max(self.end_s)

    def rank_end_s(self, rank: int) -> float:
        return max(end for r, end in zip(self.ranks, self.end_s, strict=True) if r == rank)


@dataclass(frozen=True, slots=True)
class _Graph:
    """The schedule's dependencies as integers; `order` is topological.

    waits[i]  (index of the action waited for, cut crossed or -1, whether downwards) pairs
    """

    actions: tuple[Action, ...]
    ranks: tuple[int, ...]
    order: tuple[int, ...]
    before: tuple[int, ...]
    waits: tuple[tuple[tuple[int, int, bool], ...], ...]


@functools.lru_cache(maxsize=64)
def _graph(schedule: Schedule) -> _Graph:
    actions: list[Action] = []
    ranks: list[int] = []
    before: list[int] = []
    index: dict[tuple[int, str, int], int] = {}
    for rank, row in enumerate(schedule.ranks):
        for position, action in enumerate(row):
            number = len(actions)
            before.append(number - 1 if position else -1)
            actions.append(action)
            ranks.append(rank)
            letter = action.kind.value
            index[(action.stage, letter, action.microbatch)] = number
            if letter == "I":
                index.setdefault((action.stage, "B", action.microbatch), number)
            elif letter == "B":
                index.setdefault((action.stage, "I", action.microbatch), number)
    waits = tuple(_waits(action, index, schedule) for action in actions)
    return _Graph(tuple(actions), tuple(ranks), _topological(before, waits), tuple(before), waits)


def _waits(
    action: Action, index: dict[tuple[int, str, int], int], schedule: Schedule
) -> tuple[tuple[int, int, bool], ...]:
    found = []
    for need in dependencies(action, schedule.num_stages):
        number = index[(need.stage, need.kind.value, need.microbatch)]
        same = schedule.stage_to_rank[need.stage] == schedule.stage_to_rank[action.stage]
        cut = -1 if same or need.stage == action.stage else max(need.stage, action.stage)
        found.append((number, cut, need.stage < action.stage))
    return tuple(found)


def _topological(
    before: list[int], waits: tuple[tuple[tuple[int, int, bool], ...], ...]
) -> tuple[int, ...]:
    after: list[list[int]] = [[] for _ in before]
    missing = [0] * len(before)
    for number, previous in enumerate(before):
        for source in (previous, *(w[0] for w in waits[number])):
            if source >= 0:
                after[source].append(number)
                missing[number] += 1
    ready = [number for number, count in enumerate(missing) if count == 0]
    order: list[int] = []
    while ready:
        number = ready.pop()
        order.append(number)
        for following in after[number]:
            missing[following] -= 1
            if missing[following] == 0:
                ready.append(following)
    return tuple(order)


def simulate(schedule: Schedule, durations: Durations) -> Timeline:
    """The timeline of the schedule with these durations; complexity linear in the actions."""
    if len(durations.forward_s) != schedule.num_stages:
        raise InputError(
            f"the schedule has {schedule.num_stages} stages, durations are given for "
            f"{len(durations.forward_s)}"
        )
    graph = _graph(schedule)
    length = [durations.of(action) for action in graph.actions]
    down, up = durations.send_forward_s, durations.send_backward_s
    start = [0.0] * len(length)
    end = [0.0] * len(length)
    before, waits = graph.before, graph.waits
    for number in graph.order:
        previous = before[number]
        time_s = end[previous] if previous >= 0 else 0.0
        for source, cut, downwards in waits[number]:
            arrival = end[source]
            if cut >= 0:
                arrival += down[cut] if downwards else up[cut]
            if arrival > time_s:
                time_s = arrival
        start[number] = time_s
        end[number] = time_s + length[number]
    return Timeline(
        actions=graph.actions, ranks=graph.ranks, start_s=tuple(start), end_s=tuple(end)
    )
