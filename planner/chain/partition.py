"""The exact dynamic program: cut blocks into stages and choose strategies, provably optimal.

Cuts are ideals of the blocks' data flow (chain/ideals.py); in a chain these are its prefixes.
Stages are placed from the last to the first. A label at (stage, first cut) has the parts of the
objective that matter to earlier stages: for 1f1b the sum of later times, the longest steady path so
far and the latest end; for gpipe the slowest forward and backward and their sums. All of them
increase with a stage's backward time. So inside a stage only the fastest strategies that fit in
memory are needed (chain/stage_labels.py), and between stages only undominated labels. A label
dominates another if no column of it is larger.

Two prunings keep the result exact. A stage is not built if its time alone makes the objective worse
than a known plan. A label is dropped if its completion, with all remaining blocks at their fastest
and evenly divided, is worse than a known plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np

from planner.chain.ideals import Index
from planner.chain.problem import Array, Partition, PartitionProblem, step_time
from planner.chain.stage_labels import LabelSet, StageLabels

_SLACK = 1e-12  # relative; sums taken in another order differ by a few ulp

Added = tuple[Array, Array, Array, Array, Array]
"""(forward, backward, tail, send forward, send backward) seconds of an added stage."""


@dataclass(slots=True, kw_only=True)
class _Frontier:
    """Labels of one stage: their first cuts, their columns, and the labels that they extend."""

    start: Index
    columns: Array
    behind: Index


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTable:
    """Possible stages: the pairs of cuts, and the seconds with the fastest strategies that fit in
    memory."""

    start: Index
    end: Index
    forward: Array
    backward: Array


def labels_of(problem: PartitionProblem) -> list[StageLabels]:
    """Stage labels for each of the problem's costs. They do not depend on memory capacities."""
    return [StageLabels(problem.kinds, costs) for costs in problem.costs]


def partition(
    problem: PartitionProblem,
    *,
    below: float = np.inf,
    labels: list[StageLabels] | None = None,
) -> Partition | None:
    """The partition with the shortest step; None if none fits or takes less than `below` seconds.

    Exact up to a relative 1e-12. Ties go to the first partition found: fewer blocks in later
    stages, then strategies of lower index.

    labels  labels of a problem that differs only in capacities, to reuse them
    """
    return PartitionSolver(problem, labels).solve(below)


class PartitionSolver:
    """Solves one problem."""

    def __init__(self, problem: PartitionProblem, labels: list[StageLabels] | None = None) -> None:
        self.problem, self.lattice = problem, problem.lattice
        self.labels = labels or labels_of(problem)
        self.fastest = [
            StageLabels(problem.kinds, costs, fastest_only=True) for costs in problem.costs
        ]
        # Minimum seconds of a stage in addition to its blocks'.
        self.extra_forward_s = min(slot.forward_s for slot in problem.slots)
        self.extra_backward_s = min(slot.backward_s for slot in problem.slots)
        self.extra_s = self.extra_forward_s + self.extra_backward_s
        # Seconds before each cut with every block at its fastest: for each of the costs, and the
        # minimum.
        self.forward = [self.lattice.before(costs.forward_s) for costs in problem.costs]
        self.backward = [
            self.lattice.before(costs.backward_s.min(axis=1)) for costs in problem.costs
        ]
        self.forward_before = self.lattice.before(
            np.min([c.forward_s for c in problem.costs], axis=0)
        )
        self.backward_before = self.lattice.before(
            np.min([c.backward_s.min(axis=1) for c in problem.costs], axis=0)
        )
        self.time_before = self.forward_before + self.backward_before

    def stage_time_limit(self, upper: float) -> float:
        """Upper limit on the time T of a stage's blocks in any plan faster than `upper`: a step
        takes at least M T, and at least W + (M - w) T, where W is the time of all stages."""
        if not np.isfinite(upper):
            return np.inf
        micro, gpipe = self.problem.num_microbatches, self.problem.schedule == "gpipe"
        window = 1 if gpipe else max(slot.in_flight for slot in self.problem.slots)
        limit = upper / micro
        if micro > window:
            whole = float(self.time_before[-1]) + self.problem.num_stages * self.extra_s
            limit = min(limit, (upper - whole) / (micro - window))
        return limit * (1 + 1e-9) - self.extra_s

    def solve(self, below: float) -> Partition | None:
        """The best partition below `below` seconds; None if there is none."""
        tables = self.stage_tables(below)
        if any(table.start.size == 0 for table in tables):
            return None
        return self._cut(tables, below)

    def stage_tables(self, below: float) -> list[StageTable]:
        """The possible stages at each position of a plan below `below` seconds."""
        limit = self.stage_time_limit(below)
        return [self._stage_table(stage, limit) for stage in range(self.problem.num_stages)]

    def _stage_table(self, stage: int, limit: float) -> StageTable:
        problem, lattice = self.problem, self.lattice
        slot, behind = problem.slots[stage], problem.num_stages - stage - 1
        start, end = lattice.pairs
        cuts, last = np.asarray(lattice.cuts), lattice.count - 1
        ahead, back = self.forward[slot.costs], self.backward[slot.costs]
        allowed = lattice.sizes[start] >= stage
        allowed &= lattice.sizes[end] <= problem.num_blocks - behind
        allowed &= cuts[start] if stage else start == 0
        allowed &= cuts[end] if behind else end == last
        start, end = start[allowed], end[allowed]
        forward, backward = ahead[end] - ahead[start], back[end] - back[start]
        quick = forward + backward <= limit
        start, end, forward = start[quick], end[quick], forward[quick]
        backward = self.fastest_s(stage, start, end)
        ok = np.isfinite(backward)
        return StageTable(
            start=start[ok],
            end=end[ok],
            forward=slot.forward_s + forward[ok],
            backward=slot.backward_s + backward[ok],
        )

    def fastest_s(self, stage: int, start: Index, end: Index) -> Array:
        """[ranges] backward seconds of the blocks between pairs of cuts with the fastest strategies
        that fit; infinite if none fit."""
        numbers = np.arange(start.size)
        if self.lattice.is_chain:  # equal sequences of kinds cost the same: each is looked up once
            numbers = _range_numbers(self.problem.kinds)[start, end]
        _, first, where = np.unique(numbers, return_index=True, return_inverse=True)
        fastest = np.full(first.size, np.inf)
        for index, at in enumerate(first.tolist()):
            node, label = self.fastest_fitting(stage, int(start[at]), int(end[at]))
            if label >= 0:
                fastest[index] = node.backward_s[label]
        return np.asarray(fastest[where])

    def fastest_fitting(self, stage: int, i: int, j: int) -> tuple[LabelSet, int]:
        """The labels of the blocks between two cuts, and the index of the fastest that fits; -1 for
        none."""
        slot, problem = self.problem.slots[stage], self.problem
        kinds = [problem.kinds[block] for block in self.lattice.blocks(i, j)]
        edge = float(problem.edge_bytes[i, j])
        budgets = [
            (
                load,
                slot.capacity_bytes
                - problem.static_bytes[load.static][i, j]
                - load.in_flight * edge,
            )
            for load in slot.loads
        ]
        node = self.fastest[slot.costs].of(kinds)
        label = node.cheapest(budgets)
        if label < 0:
            node = self.labels[slot.costs].of(kinds)
            label = node.cheapest(budgets)
        return node, label

    def _cut(self, tables: list[StageTable], upper: float) -> Partition | None:
        problem, p = self.problem, self.problem.num_stages
        is_gpipe = problem.schedule == "gpipe"
        grow = _grow_gpipe if is_gpipe else _grow_1f1b
        bound = self._bound_gpipe if is_gpipe else self._bound_1f1b
        columns = np.zeros((1, 5 if is_gpipe else 4))
        columns[0, -1] = -np.inf
        frontier = _Frontier(
            start=np.full(1, self.lattice.count - 1),
            columns=columns,
            behind=np.zeros(1, dtype=np.intp),
        )
        history: list[_Frontier] = []
        for stage in range(p - 1, -1, -1):
            table = tables[stage]
            first = np.searchsorted(frontier.start, table.end, side="left")
            count = np.searchsorted(frontier.start, table.end, side="right") - first
            pair = np.repeat(np.arange(table.start.size), count)
            offset = np.arange(pair.size) - np.repeat(np.cumsum(count) - count, count)
            behind = first[pair] + offset
            i, j = table.start[pair], table.end[pair]
            down = up = np.zeros(pair.size)
            if stage < p - 1:
                down, up = (
                    problem.send_forward_s[stage + 1, j],
                    problem.send_backward_s[stage + 1, j],
                )
            tail = problem.tail_of(stage)[i, j]
            added = (table.forward[pair], table.backward[pair], tail, down, up)
            columns = grow(problem, stage, frontier.columns[behind], added)
            lower = bound(columns, i, stage)
            alive = np.flatnonzero(lower <= upper * (1 + _SLACK))
            if alive.size == 0:
                return None
            slack = _SLACK / p * float(lower[alive].min())
            keep = alive[_undominated_by_start(i[alive], columns[alive], lower[alive], slack)]
            frontier = _Frontier(start=i[keep], columns=columns[keep], behind=behind[keep])
            history.append(frontier)
        label = int(np.argmin(bound(frontier.columns, frontier.start, 0)))
        starts = []
        for frontier in reversed(history):
            starts.append(int(frontier.start[label]))
            label = int(frontier.behind[label])
        return self.filled(tuple(starts))

    def filled(self, starts: tuple[int, ...]) -> Partition:
        """The partition with these cuts, each stage with the fastest strategies that fit it."""
        strategies: list[int] = []
        for stage, (i, j) in enumerate(pairwise((*starts, self.lattice.count - 1))):
            node, label = self.fastest_fitting(stage, i, j)
            strategies.extend(node.strategies(label))
        time_s = step_time(self.problem, starts, tuple(strategies))
        return Partition(starts=starts, strategies=tuple(strategies), step_time_s=time_s)

    def _bound_1f1b(self, columns: Array, start: Index, stage: int) -> Array:
        """Lower bound on the objective of any completion; exact for stage 0."""
        time, steady, own, end = columns.T
        left = self.time_before[start] + stage * self.extra_s
        rounds = self.problem.num_microbatches - self.problem.slots[0].in_flight
        if stage > 0 and rounds > 0:
            # Some remaining stage takes at least the mean; at least `time` comes after it.
            steady = np.maximum(steady, time + rounds * left / stage)
        longest = np.maximum(steady, own)
        return np.asarray(time + left + longest + (end if stage == 0 else 0.0))

    def _bound_gpipe(self, columns: Array, start: Index, stage: int) -> Array:
        down, slowest_f, up, slowest_b, end = columns.T
        rounds = self.problem.num_microbatches - 1
        forward = self.forward_before[start] + stage * self.extra_forward_s
        backward = self.backward_before[start] + stage * self.extra_backward_s
        if stage > 0:
            slowest_f = np.maximum(slowest_f, forward / stage)
            slowest_b = np.maximum(slowest_b, backward / stage)
            end = np.maximum(end, up + backward + rounds * slowest_b)
        return np.asarray(down + forward + rounds * slowest_f + end)


def _grow_1f1b(problem: PartitionProblem, stage: int, columns: Array, added: Added) -> Array:
    """Columns after adding `stage`: total time of this and all later stages; longest steady path
    and longest work of one stage, both beyond that time; latest end."""
    time, steady, own, end = columns.T
    forward, backward, tail, down, up = added
    behind, here = time + (down + up), forward + backward
    rounds = problem.num_microbatches - problem.slots[stage].in_flight
    if rounds > 0:
        steady = np.maximum(steady, behind + rounds * here)
    own = np.maximum(own, (problem.num_microbatches - 1) * here - behind)
    end = np.maximum(tail, end - (backward + up))
    if stage == 0:
        steady = np.maximum(steady, own + tail - end)
    # Work that is shorter than the steady path stays shorter: both only shift from here on.
    return np.stack([behind + here, steady, np.maximum(own, steady), end], axis=1)


def _grow_gpipe(problem: PartitionProblem, stage: int, columns: Array, added: Added) -> Array:
    """Columns (forward and sends, slowest forward, backward, slowest backward, latest end)."""
    down, slowest_f, up, slowest_b, end = columns.T
    forward, backward, tail, send_down, send_up = added
    up = up + send_up + backward
    slowest_b = np.maximum(slowest_b, backward)
    end = np.maximum(end, up + (problem.num_microbatches - 1) * slowest_b + tail)
    down = down + send_down + forward
    return np.stack([down, np.maximum(slowest_f, forward), up, slowest_b, end], axis=1)


def _undominated_by_start(start: Index, columns: Array, lower: Array, slack: float) -> Index:
    """Indices, sorted by start, of the labels not dominated by another of the same start.

    slack  seconds by which a label must be better to count as undominated
    """
    order = np.lexsort((*columns.T[::-1], lower, start))
    edges = np.flatnonzero(np.diff(start[order])) + 1
    return order[undominated(np.r_[0, edges, order.size], columns[order], slack)]


@cache
def _range_numbers(kinds: tuple[int, ...]) -> Index:
    """[n, n+1]: a number for blocks [i, j), the same for equal sequences of kinds."""
    n = len(kinds)
    numbers: dict[tuple[int, int], int] = {}
    found = np.zeros((n, n + 1), dtype=np.intp)
    for i in range(n):
        current = 0
        for j in range(i, n):
            current = numbers.setdefault((current, kinds[j]), len(numbers) + 1)
            found[i, j + 1] = current
    return found


def undominated(edges: Index, columns: Array, slack: float) -> Index:
    """Positions, ascending, of the labels not dominated by an earlier kept label of their group.

    edges    [groups + 1] where each group begins, and the number of labels at the end
    columns  [labels, columns] sorted in each group so that no label is dominated by a later one
    slack    in the columns' unit: a label that is better by at most this counts as dominated (sums
             of equal numbers in another order differ by a few units in the last place)
    """
    kept: list[int] = []
    for begin, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        rest = np.arange(begin, end)
        while rest.size:
            best = rest[0]
            kept.append(int(best))
            rest = rest[1:]
            rest = rest[(columns[rest] + slack < columns[best]).any(axis=1)]
    return np.asarray(kept, dtype=np.intp)
