"""Longest paths through a schedule's actions, as counts: how often each stage's F, I, W and sends
lie on the path.

A path is there whatever the durations, so that its length is a lower bound on every timeline of the
schedule, linear in the durations; the longest one is the timeline itself (simulator/timeline.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulator.action import ActionKind
from simulator.durations import Durations
from simulator.schedule import Schedule, dependencies
from simulator.timeline import simulate

Counts = npt.NDArray[np.intp]
FORWARD, INPUT, WEIGHT, DOWN, UP = range(5)
COLUMNS = 5
_ADDED = {
    ActionKind.FORWARD: (FORWARD,),
    ActionKind.BACKWARD_INPUT: (INPUT,),
    ActionKind.BACKWARD_WEIGHT: (WEIGHT,),
    ActionKind.BACKWARD: (INPUT, WEIGHT),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelinePath:
    """A path that ends with the tail of `rank`.

    counts  [stages, 5] how often it takes each stage's F, I and W (B is both) and the sends over
            the cut before the stage, down and up
    """

    rank: int
    counts: Counts

    @property
    def key(self) -> tuple[int, bytes]:
        """Equal for equal paths."""
        return (self.rank, self.counts.tobytes())


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestPath:
    """The step's seconds and the path that makes them."""

    step_time_s: float
    path: TimelinePath


class PathFinder:
    """The paths of one schedule."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._actions = [action for row in schedule.ranks for action in row]
        self._firsts = np.cumsum([0, *map(len, schedule.ranks)]).tolist()
        starts = set(self._firsts)
        self._before = [-1 if at in starts else at - 1 for at in range(len(self._actions))]
        self._source = self._sources()

    def _sources(self) -> list[int]:
        """The neighbour's action that each action waits for, -1 for none."""
        index = {}
        for at, action in enumerate(self._actions):
            index[action.stage, action.kind, action.microbatch] = at
        either = (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
        found = []
        for action in self._actions:
            source = -1
            for need in dependencies(action, self.schedule.num_stages):
                if need.stage == action.stage:
                    continue
                kinds = (need.kind,) if need.kind not in either else either
                keys = ((need.stage, kind, need.microbatch) for kind in kinds)
                source = next(index[key] for key in keys if key in index)
            found.append(source)
        return found

    @property
    def num_actions(self) -> int:
        return len(self._actions)

    def longest(self, durations: Durations, tails_s: list[float]) -> LongestPath:
        """The step by the event timeline with each rank's tail, and its longest path."""
        timeline = simulate(self.schedule, durations)
        ends = [timeline.rank_end_s(rank) + tail_s for rank, tail_s in enumerate(tails_s)]
        rank = ends.index(max(ends))
        counts = self._no_counts()
        end, at = timeline.end_s, timeline.lasts[rank]
        sends = (durations.send_forward_s, durations.send_backward_s)
        while at >= 0:
            self._add(counts, at)
            before, source = self._before[at], self._source[at]
            if source >= 0:
                cut = self._crossing(at)
                arrival = end[source] + (sends[cut[1] - DOWN][cut[0]] if cut else 0.0)
                if before < 0 or arrival > end[before]:
                    if cut:
                        counts[cut] += 1
                    at = source
                    continue
            at = before
        return LongestPath(step_time_s=ends[rank], path=TimelinePath(rank=rank, counts=counts))

    def work_of(self, rank: int) -> TimelinePath:
        """To the rank's first action, and all its work."""
        counts = self._no_counts()
        for at in range(self._firsts[rank], self._firsts[rank + 1]):
            self._add(counts, at)
        at = self._firsts[rank]
        while self._source[at] >= 0:
            cut = self._crossing(at)
            if cut:
                counts[cut] += 1
            at = self._source[at]
            self._add(counts, at)
        return TimelinePath(rank=rank, counts=counts)

    def _no_counts(self) -> Counts:
        return np.zeros((self.schedule.num_stages, COLUMNS), dtype=np.intp)

    def _add(self, counts: Counts, at: int) -> None:
        action = self._actions[at]
        for column in _ADDED[action.kind]:
            counts[action.stage, column] += 1

    def _crossing(self, at: int) -> tuple[int, int] | None:
        """(stage behind the cut, DOWN or UP) of the message that an action waits for."""
        action, source = self._actions[at], self._actions[self._source[at]]
        owner = self.schedule.stage_to_rank
        if owner[action.stage] == owner[source.stage]:
            return None
        if action.kind is ActionKind.FORWARD:
            return (action.stage, DOWN)
        return (source.stage, UP)
