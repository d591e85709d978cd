"""How a rank of a split schedule may run its blocks: the fastest choices of strategies that fit.

A choice counts by the seconds of each of its stages' I alone, as F and W do not depend on it and no
longer stage makes a shorter timeline. So of all that fit only those stay that no other beats in
every stage. Labels of a stage grow block by block; of two labels one goes where the other needs no
more of anything. Stages of equal kinds share their labels, ranks with equal stages their choices.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from planner.problem import Array
from planner.split_problem import SplitProblem, StageFigures, rank_peaks

Index = npt.NDArray[np.intp]
Ranges = tuple[tuple[int, int], ...]
# Columns of a label.
_SAVED, _HALF, _FORWARD_RISE, _BACKWARD_RISE, _FIRST, _SECONDS = range(6)
_PAIRS = 20_000  # choices of a rank that are priced at once


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOptions:
    """Choices of a rank for given ranges: seconds [K, v] of each stage's I, label [K, v]."""

    seconds: Array
    label: Index


@dataclass(slots=True, kw_only=True)
class Labels:
    """Undominated labels of a sequence of kinds; `parent` is the label of `shorter` behind each."""

    columns: Array
    last: Index
    parent: Index
    shorter: Labels | None
    longer: dict[int, Labels] = field(default_factory=dict)

    @property
    def seconds(self) -> Array:
        """[labels] of I."""
        return np.asarray(self.columns[:, _SECONDS])

    def strategies(self, label: int) -> tuple[int, ...]:
        """Of each block."""
        chosen: list[int] = []
        node: Labels = self
        while node.shorter is not None:
            chosen.append(int(node.last[label]))
            label, node = int(node.parent[label]), node.shorter
        return tuple(reversed(chosen))


class SplitOptions:
    """The choices of every rank of one problem."""

    def __init__(self, problem: SplitProblem) -> None:
        self.problem = problem
        chain = problem.chain
        self._position = {kind: at for at, kind in reversed(list(enumerate(chain.kinds)))}
        none = np.full(1, -1, dtype=np.intp)
        self._roots = [
            Labels(columns=np.zeros((1, 6)), last=none, parent=none, shorter=None)
            for _ in chain.costs
        ]
        self._known: dict[tuple[object, ...], RankOptions] = {}

    def of(self, rank: int, ranges: Ranges) -> RankOptions:
        """The rank's choices with these ranges; none (K = 0) where they do not fit."""
        kinds = self.problem.chain.kinds
        key = (rank, *(kinds[i:j] for i, j in ranges))
        if key not in self._known:
            self._known[key] = self._choose(rank, ranges)
        return self._known[key]

    def strategies(self, rank: int, ranges: Ranges, labels: Index) -> tuple[tuple[int, ...], ...]:
        """Strategies of each stage's blocks for the labels of a choice."""
        stages = self.problem.schedule.stages_of(rank)
        return tuple(
            self.labels(stage, *blocks).strategies(int(label))
            for stage, blocks, label in zip(stages, ranges, labels, strict=True)
        )

    def _choose(self, rank: int, ranges: Ranges) -> RankOptions:
        stages = self.problem.schedule.stages_of(rank)
        nodes = [self.labels(s, *blocks) for s, blocks in zip(stages, ranges, strict=True)]
        free = np.asarray([[int(node.columns[:, _SECONDS].argmin()) for node in nodes]])
        if self._fits(rank, ranges, nodes, free)[0]:
            return RankOptions(seconds=_seconds(nodes, free), label=free)
        found = np.zeros((0, len(nodes)), dtype=np.intp)
        for labels in _combinations([len(node.last) for node in nodes]):
            fitting = labels[self._fits(rank, ranges, nodes, labels)]
            found = np.concatenate([found, fitting])
            found = found[undominated(_seconds(nodes, found))]
        return RankOptions(seconds=_seconds(nodes, found), label=found)

    def _fits(
        self, rank: int, ranges: Ranges, nodes: list[Labels], labels: Index
    ) -> npt.NDArray[np.bool_]:
        stages = self.problem.schedule.stages_of(rank)
        figures = tuple(
            self.figures(stage, blocks, node.columns[labels[:, turn]])
            for turn, (stage, blocks, node) in enumerate(zip(stages, ranges, nodes, strict=True))
        )
        capacity = self.problem.chain.slots[stages[0]].capacity_bytes
        return np.asarray(rank_peaks(self.problem, rank, ranges, figures) <= capacity)

    def figures(self, stage: int, blocks: tuple[int, int], columns: Array) -> StageFigures:
        """What the labels of a stage with these blocks, given as their columns, keep and need."""
        i, j = blocks
        edge = float(self.problem.chain.edge_bytes[i, j])
        sent = self.problem.held.handed_on_late(stage, i, j)
        return StageFigures(
            kept_bytes=columns[:, _SAVED] + edge,
            half_bytes=columns[:, _HALF],
            forward_rise_bytes=columns[:, _FORWARD_RISE] - sent,
            backward_rise_bytes=columns[:, _BACKWARD_RISE],
            first_bytes=columns[:, _FIRST] + edge - sent,
        )

    def labels(self, stage: int, start: int, end: int) -> Labels:
        """The undominated ways to run a stage of these blocks."""
        index = self.problem.chain.slots[stage].costs
        node = self._roots[index]
        for kind in self.problem.chain.kinds[start:end]:
            known = node.longer.get(kind)
            if known is None:
                known = node.longer[kind] = self._grow(node, index, self._position[kind])
            node = known
        return node

    def _grow(self, node: Labels, index: int, block: int) -> Labels:
        problem = self.problem
        costs = problem.chain.costs[index]
        count, options = len(node.last), costs.backward_s.shape[1]
        parent = np.repeat(np.arange(count), options)
        last = np.tile(np.arange(options), count)
        before = node.columns[parent]
        saved = costs.saved_bytes[block, last]
        ahead = problem.forward_transient_bytes[index][block, last]
        back = problem.held.backward_transient_bytes[index][block, last]
        aside = problem.weight_bytes[index][block, last]
        whole = node.shorter is None
        columns = np.column_stack(
            [
                before[:, _SAVED] + saved,
                before[:, _HALF] + aside,
                ahead if whole else np.maximum(before[:, _FORWARD_RISE] - saved, ahead),
                back if whole else np.maximum(before[:, _BACKWARD_RISE] - saved + aside, back),
                saved + back if whole else before[:, _FIRST] + aside,
                before[:, _SECONDS]
                + costs.backward_s[block, last]
                - problem.weight_s[index][block],
            ]
        )
        kept = undominated(columns)
        return Labels(columns=columns[kept], last=last[kept], parent=parent[kept], shorter=node)


def _seconds(nodes: list[Labels], labels: Index) -> Array:
    return np.column_stack(
        [node.columns[labels[:, turn], _SECONDS] for turn, node in enumerate(nodes)]
    )


def _combinations(counts: list[int]) -> Iterator[Index]:
    """[up to _PAIRS, v] labels, all combinations in turn."""
    total = int(np.prod(counts))
    for begin in range(0, total, _PAIRS):
        numbers = np.arange(begin, min(total, begin + _PAIRS))
        yield np.column_stack(np.unravel_index(numbers, counts)).astype(np.intp)


def undominated(columns: Array) -> Index:
    """Indices of the rows that no other is at or under in every column, equal rows once."""
    rest = np.lexsort(columns.T)
    kept: list[int] = []
    while rest.size:
        best = rest[0]
        kept.append(int(best))
        rest = rest[1:]
        rest = rest[(columns[rest] < columns[best]).any(axis=1)]
    return np.asarray(kept, dtype=np.intp)
