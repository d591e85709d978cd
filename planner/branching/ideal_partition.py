"""The exact dynamic programme over ideals: stages are differences of nested sets of blocks.

As chain/partition.py, whose labels, bounds and dominance hold word for word: what stages before
a cut can see of those behind it does not depend on what kind of set the cut is. Only the pairs of
cuts that a stage may lie between are others: ideals of which one holds the other.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from planner.chain.ideals import BlockLattice, IdealPartition, IdealProblem
from planner.chain.partition import PartitionSolver
from planner.chain.problem import Array
from planner.chain.stage_labels import Index, LabelSet, StageLabels


def partition_ideals(problem: IdealProblem, *, below: float = np.inf) -> IdealPartition | None:
    """The partition along nested ideals with the least step time, or None where none fits (or none
    is under `below`). Exact up to a relative 1e-12."""
    labels = [StageLabels(problem.kinds, costs) for costs in problem.costs]
    found = _IdealSolver(problem, labels).solve(below)
    if found is None:
        return None
    cuts = (*found.starts, problem.lattice.count - 1)
    stages = [problem.lattice.blocks(i, j) for i, j in pairwise(cuts)]
    left = list(found.strategies)
    strategies = []
    for blocks in stages:
        strategies.append(tuple(left[: len(blocks)]))
        del left[: len(blocks)]
    return IdealPartition(
        stages=tuple(stages), strategies=tuple(strategies), step_time_s=found.step_time_s
    )


class _IdealSolver(PartitionSolver):
    def __init__(self, problem: IdealProblem, labels: list[StageLabels]) -> None:
        self.ideal = problem
        super().__init__(problem, labels)
        self.end = problem.lattice.count - 1
        self.pairs = nested_pairs(problem.lattice)

    def _sum_up(self, forward: list[Array], least: list[Array]) -> None:
        holds = self.ideal.lattice.holds.astype(float)
        self.forward = [_differences(holds @ f) for f in forward]
        self.backward = [_differences(holds @ b) for b in least]
        self.forward_before = holds @ np.min(forward, axis=0)
        self.backward_before = holds @ np.min(least, axis=0)
        self.time_before = self.forward_before + self.backward_before

    def _node(self, labels: StageLabels, i: int, j: int) -> LabelSet:
        return labels.of_kinds([self.ideal.kinds[b] for b in self.ideal.lattice.blocks(i, j)])

    def _edge(self, i: int, j: int) -> float:
        return float(self.ideal.edge_bytes[i])

    def _stage_table(self, stage: int, limit: float) -> tuple[Index, Index, Array, Array]:
        problem, lattice = self.ideal, self.ideal.lattice
        slot, after = problem.slots[stage], problem.num_stages - stage - 1
        start, end = self.pairs
        size, cuts = lattice.holds.sum(axis=1), np.asarray(lattice.cuts)
        allowed = (size[start] >= stage) & (size[end] <= problem.num_blocks - after)
        allowed &= (start == 0) if stage == 0 else cuts[start]
        allowed &= (end == self.end) if after == 0 else cuts[end]
        fastest = self.forward[slot.costs] + self.backward[slot.costs]
        allowed &= fastest[start, end] <= limit
        start, end = start[allowed], end[allowed]
        backward = self.backward[slot.costs][start, end].copy()
        for index in np.flatnonzero(~self._surely_fits(stage, start, end)).tolist():
            i, j = int(start[index]), int(end[index])
            node, label = self._best(stage, i, j)
            backward[index] = node.backward_s[label] if label >= 0 else np.inf
        return self._fitting(stage, start, end, backward)

    def _surely_fits(self, stage: int, start: Index, end: Index) -> np.ndarray:
        """Where every block's fastest strategy fits, even if the largest rise of any block met all
        that the stage keeps: those need no labels."""
        problem, slot = self.ideal, self.ideal.slots[stage]
        costs = problem.costs[slot.costs]
        fastest = costs.backward_s.argmin(axis=1)
        every = np.arange(problem.num_blocks)
        holds = problem.lattice.holds.astype(float)
        saved = holds @ costs.saved_bytes[every, fastest]
        kept = saved[end] - saved[start] + problem.edge_bytes[start]
        rise = float(costs.transient_bytes[every, fastest].max())
        fits = np.ones(start.size, dtype=bool)
        for load in slot.loads:
            need = problem.static_bytes[load.static][start, end] + load.in_flight * kept
            fits &= need + (rise if load.rises else 0.0) <= slot.capacity_bytes
        return fits


def nested_pairs(lattice: BlockLattice) -> tuple[Index, Index]:
    """All pairs (smaller, larger) of unlike ideals of which one holds the other."""
    holds = lattice.holds.astype(np.int32)
    size = holds.sum(axis=1)
    within = (holds @ holds.T == size[:, None]) & (size[:, None] < size[None, :])
    smaller, larger = np.nonzero(within)
    return smaller, larger


def _differences(totals: Array) -> Array:
    return np.asarray(totals[None, :] - totals[:, None])
