"""How a rank of several stages in turn may run its blocks: the fastest choices of strategies that
fit, within a time.

As planner/split_options.py, for any number of stages: choices grow stage by stage, and a partial
one goes where the stages to come cannot be fast enough at their fastest, or cannot be within the
memory at some moment keeping the least they can.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.problem import Array
from planner.split_moments import split_moments
from planner.split_options import RankOptions, SplitOptions, undominated
from planner.split_problem import SplitProblem

Ranges = tuple[tuple[int, int], ...]
_MOST = 20_000  # partial choices of a rank; beyond it none are listed
_AT_ONCE = 10_000  # of them are looked at
_EXACT = 1e-9  # relative


@dataclass(frozen=True, slots=True, kw_only=True)
class _Room:
    """Of the moments of a rank, what is left for its stages [moments], how many micro-batches each
    keeps [moments, v], and masks of what runs."""

    bytes: Array
    whole: npt.NDArray[np.intp]
    turn: npt.NDArray[np.intp]
    forward: npt.NDArray[np.bool_]
    first: npt.NDArray[np.bool_]


class LoopOptions:
    """The choices of every rank of one problem whose stages run B whole."""

    def __init__(self, problem: SplitProblem) -> None:
        self.problem = problem
        self.stages = SplitOptions(problem)
        self._known: dict[tuple[object, ...], tuple[float, RankOptions | None]] = {}

    def of(self, rank: int, ranges: Ranges, limit_s: float) -> RankOptions | None:
        """The rank's choices with these ranges that take up to `limit_s` per micro-batch, forward
        and backward; no choice (K = 0) where none fits, None where there are too many."""
        kinds = self.problem.chain.kinds
        key = (rank, *(kinds[i:j] for i, j in ranges))
        known = self._known.get(key)
        if known is None or known[0] < limit_s:
            known = self._known[key] = (limit_s, self._choose(rank, ranges, limit_s))
        return known[1]

    def _choose(self, rank: int, ranges: Ranges, limit_s: float) -> RankOptions | None:
        stages = self.problem.schedule.stages_of(rank)
        nodes = [self.stages.labels(s, *blocks) for s, blocks in zip(stages, ranges, strict=True)]
        left_s = limit_s * (1 + _EXACT) - self._fixed_s(rank, ranges)
        seconds = [node.seconds for node in nodes]
        fastest = np.asarray([times.min() for times in seconds])
        nothing = RankOptions(
            seconds=np.zeros((0, len(nodes))), label=np.zeros((0, len(nodes)), dtype=np.intp)
        )
        if fastest.sum() > left_s:
            return nothing
        room = self._room(rank, ranges)
        if room is None:
            return nothing
        takes = [
            self._takes(rank, turn, ranges, room, node.columns) for turn, node in enumerate(nodes)
        ]
        free = [int(times.argmin()) for times in seconds]
        used = np.sum([take[k] for take, k in zip(takes, free, strict=True)], axis=0)
        if (used <= room.bytes).all():
            return RankOptions(seconds=fastest[None, :], label=np.asarray([free], dtype=np.intp))
        tight = np.sum([take.max(axis=0) for take in takes], axis=0) > room.bytes
        takes = [take[:, tight] for take in takes]
        least = np.stack([take.min(axis=0) for take in takes])
        used, spent = least.sum(axis=0)[None, :], np.asarray([fastest.sum()])
        limit = room.bytes[tight]
        label = np.zeros((1, 0), dtype=np.intp)
        for turn, (take, times) in enumerate(zip(takes, seconds, strict=True)):
            source, way = np.nonzero(spent[:, None] + (times - fastest[turn]) <= left_s)
            if len(source) > 8 * _MOST:
                return None
            fitting, needs = [], []
            for begin in range(0, len(source), _AT_ONCE):
                part = slice(begin, begin + _AT_ONCE)
                need = used[source[part]] + (take[way[part]] - least[turn])
                fits = np.flatnonzero((need <= limit).all(axis=1))
                fitting.append(begin + fits)
                needs.append(need[fits])
                if sum(map(len, fitting)) > _MOST:
                    return None
            kept = np.concatenate([np.zeros(0, dtype=np.intp), *fitting])
            used = np.concatenate([used[:0], *needs])
            source, way = source[kept], way[kept]
            spent = spent[source] + (times[way] - fastest[turn])
            label = np.column_stack([label[source], way])
        each = np.column_stack([times[label[:, turn]] for turn, times in enumerate(seconds)])
        kept = undominated(each)
        return RankOptions(seconds=each[kept], label=label[kept])

    def _fixed_s(self, rank: int, ranges: Ranges) -> float:
        """Seconds of F and W, which no choice changes."""
        chain, found = self.problem.chain, 0.0
        for stage, (i, j) in zip(self.problem.schedule.stages_of(rank), ranges, strict=True):
            index = chain.slots[stage].costs
            found += float(chain.costs[index].forward_s[i:j].sum())
            found += float(self.problem.weight_s[index][i:j].sum())
        return found

    def _room(self, rank: int, ranges: Ranges) -> _Room | None:
        """What is left for the stages at each moment; None where nothing is at the end."""
        problem = self.problem
        held, schedule = problem.held, problem.schedule
        micro = schedule.num_microbatches
        known = split_moments(schedule.name, problem.num_ranks, micro, problem.per_rank, rank)
        fixed, gradients = held.states(ranges)
        share = gradients / len(ranges)
        arriving, leaving = held.room_for_messages
        crossing = np.zeros(len(ranges))
        stages = schedule.stages_of(rank)
        for turn, (stage, (i, j)) in enumerate(zip(stages, ranges, strict=True)):
            received, sent = held.crossing(stage, i, j)
            fixed += arriving * received + leaving * sent
            crossing[turn] = (received + sent) * held.holds_sent
        capacity = problem.chain.slots[stages[0]].capacity_bytes
        if fixed + gradients + micro * float(crossing.sum()) > capacity:
            return None
        return _Room(
            bytes=capacity - fixed - share * known.begun - known.done @ crossing,
            whole=known.whole,
            turn=known.turn,
            forward=(known.backward == 0) & (known.weights == 0),
            first=known.first.astype(bool),
        )

    def _takes(self, rank: int, turn: int, ranges: Ranges, room: _Room, columns: Array) -> Array:
        """[K, moments] bytes that each way to run a stage takes at each moment."""
        problem = self.problem
        stage = problem.schedule.stages_of(rank)[turn]
        figures = self.stages.figures(stage, ranges[turn], columns)
        share = problem.held.states(ranges)[1] / len(ranges)
        kept = figures.kept_bytes[:, None]
        rise = np.where(
            room.forward, figures.forward_rise_bytes[:, None], figures.backward_rise_bytes[:, None]
        )
        first = share + figures.first_bytes[:, None] - kept
        rise = np.maximum(np.maximum(rise, 0.0), np.where(room.first, first, 0.0))
        return np.asarray(kept * room.whole[:, turn] + np.where(room.turn == turn, rise, 0.0))
