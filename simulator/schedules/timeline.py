"""The timeline: start and end of each action of a schedule.

Actions of a rank run one after another in the schedule's order. An action also waits for its
neighbor's output, which arrives after the time of a send. The start times are the longest paths of
this directed acyclic graph. The graph is built once per schedule and cached. One pass over arrays
computes the times, at about 3 million actions a second (one core of an EPYC, 2026-11-21). The
actions' topological order is from `executable_order`; networkx takes 4 to 16 times as long
(131,072 and 1,024 actions, 2026-11-24).
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InputError
from simulator.schedules.durations import Durations as Durations
from simulator.schedules.schedule import (
    Action,
    ActionKind,
    Schedule,
    dependencies,
    executable_order,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Start and end seconds of every action, in the order of `actions` (rank by rank).

    lasts  index of each rank's last action
    """

    actions: tuple[Action, ...]
    ranks: tuple[int, ...]
    start_s: tuple[float, ...]
    end_s: tuple[float, ...]
    lasts: tuple[int, ...]

    def rank_end_s(self, rank: int) -> float:
        """End of a rank's last action, in seconds."""
        return self.end_s[self.lasts[rank]]

    def rank_start_s(self, rank: int) -> float:
        """Start of a rank's first action, in seconds."""
        return self.start_s[self.lasts[rank - 1] + 1 if rank else 0]


@dataclass(frozen=True, slots=True)
class _Graph:
    """The schedule's dependencies as integers; `order` is topological.

    length   index of each action's seconds in `Durations.lengths`
    before   previous action of the same rank, -1 for none
    source   neighbor's action to wait for, -1 for none (the action's own forward is before it in
             any valid schedule)
    crossing index of the message's seconds in (0, *send_forward_s, *send_backward_s), followed by
             the same sends with `ramp_send_s` added
    """

    actions: tuple[Action, ...]
    ranks: tuple[int, ...]
    lasts: tuple[int, ...]
    order: tuple[int, ...]
    length: tuple[int, ...]
    before: tuple[int, ...]
    source: tuple[int, ...]
    crossing: tuple[int, ...]


_ROWS = {
    ActionKind.FORWARD: 0,
    ActionKind.BACKWARD: 1,
    ActionKind.BACKWARD_INPUT: 2,
    ActionKind.BACKWARD_WEIGHT: 3,
}
_GRAPHS: dict[int, tuple[Schedule, _Graph]] = {}
_GRAPHS_KEPT = 64


def _graph(schedule: Schedule) -> _Graph:
    """The cached graph of a schedule, by identity: hashing thousands of actions costs more."""
    known = _GRAPHS.get(id(schedule))
    if known is not None and known[0] is schedule:
        return known[1]
    made = _make_graph(schedule)
    if len(_GRAPHS) >= _GRAPHS_KEPT:
        _GRAPHS.pop(next(iter(_GRAPHS)))
    # The cache keeps the schedule alive, so that no other object gets its id.
    _GRAPHS[id(schedule)] = (schedule, made)
    return made


def _make_graph(schedule: Schedule) -> _Graph:
    actions: list[Action] = []
    ranks: list[int] = []
    before: list[int] = []
    lasts: list[int] = []
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
        lasts.append(len(actions) - 1)
    waits = [_wait(action, index, schedule) for action in actions]
    source = tuple(wait[0] for wait in waits)
    stages = schedule.num_stages
    return _Graph(
        actions=tuple(actions),
        ranks=tuple(ranks),
        lasts=tuple(lasts),
        order=executable_order(schedule),
        length=tuple(_ROWS[action.kind] * stages + action.stage for action in actions),
        before=tuple(before),
        source=source,
        crossing=tuple(wait[1] for wait in waits),
    )


def _wait(
    action: Action, index: dict[tuple[int, str, int], int], schedule: Schedule
) -> tuple[int, int]:
    """(neighbor's action to wait for, index of the message with its result)."""
    for need in dependencies(action, schedule.num_stages, schedule.copies):
        if need.stage == action.stage:
            continue
        number = index[(need.stage, need.kind.value, need.microbatch)]
        if schedule.stage_to_rank[need.stage] == schedule.stage_to_rank[action.stage]:
            return number, 0
        ahead = need.stage < action.stage
        cut = max(need.stage, action.stage)
        last = 0 if ahead else schedule.num_microbatches - 1
        ramp = action.microbatch == last and cut < len(schedule.ranks)
        return number, 1 + cut + schedule.num_stages * (2 * ramp + (not ahead))
    return -1, 0


def simulate(schedule: Schedule, durations: Durations) -> Timeline:
    """Timeline of the schedule with these durations; complexity is linear in the actions."""
    if len(durations.forward_s) != schedule.num_stages:
        raise InputError(
            f"the schedule has {schedule.num_stages} stages, durations are given for "
            f"{len(durations.forward_s)}"
        )
    graph = _graph(schedule)
    lengths = durations.lengths()
    sends = [*durations.send_forward_s, *durations.send_backward_s]
    crossings = [0.0, *sends, *(send_s + durations.ramp_send_s for send_s in sends)]
    before, source, crossing, length = graph.before, graph.source, graph.crossing, graph.length
    start = [0.0] * len(length)
    end = [0.0] * (len(length) + 1)  # one more, always 0: index -1 reads it
    for number in graph.order:
        time_s = end[before[number]]
        awaited = source[number]
        if awaited >= 0:
            arrival = end[awaited] + crossings[crossing[number]]
            if arrival > time_s:
                time_s = arrival
        start[number] = time_s
        end[number] = time_s + lengths[length[number]]
    end.pop()
    return Timeline(
        actions=graph.actions,
        ranks=graph.ranks,
        start_s=tuple(start),
        end_s=tuple(end),
        lasts=graph.lasts,
    )


def longest_rank_s(timeline: Timeline) -> float:
    """Largest time between a rank's first and last action, in seconds.

    The cost of Qi et al. (arXiv 2401.10241, section 5.3 and equation 3). It is less than the
    makespan if ranks start and end at different times, which needs an optimizer step without
    synchronization of all ranks (their section 4).
    """
    ranks = range(len(timeline.lasts))
    return max(timeline.rank_end_s(rank) - timeline.rank_start_s(rank) for rank in ranks)
