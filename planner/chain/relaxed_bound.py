"""Lower bounds of a cell by linear and integer programming: fractions of blocks, within memory.

x_sbk is the number of blocks of group b in virtual stage s with strategy k; the blocks of a group
have equal costs. The step is linear in the stages' times T_s = F_s + B_s, so its minimum over
fractions of blocks is a linear program, and a lower bound for whole blocks. T_r is the time of rank
r, with all its stages; w_s and the tails are those of chain/problem.py.

    minimize step, of which
    step >= sum_{j<r} (T_j + send) + M T_r + tail      each rank r: it waits for the first forwards
                                                       of earlier stages, and they for its last
                                                       backward; if backwards are split, only the
                                                       forwards count
    1f1b and gpipe:
    step >= sum_s T_s + (p - 1) send + L + E
    L >= sum_{j>s} (T_j + send) + (M - w_s) T_s    1f1b, each s with M > w_s
    L >= (M - 1) F_s                               gpipe
    E >= tail_s - sum_{j<s} (B_j + up)             gpipe: also + (M - 1) B_j, j >= s

`send` is the minimum time of a crossing forward and back, and `up` half of it, the way back. A
stage's tail is the minimum tail of any stage plus the minimum addition of each of its blocks.

With `whole`, each rank has a whole number of blocks of each group: an integer program.

A rank's memory is counted at the moment with most micro-batches in flight: its states, the saved
bytes of these micro-batches, and gradients if all its stages have run a backward by then.

Gemma 2 9B on 8 H100: of 377 cells with a bound below the best plan, 358 have pipelines; with this
bound 6 of those are still below it (2026-12-01).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array, eye_array, hstack
from scipy.sparse import kron as kron_array

from planner.chain.problem import Array, PartitionProblem

_LOSS = 1e-6  # relative: HiGHS keeps constraints within 1e-7
_NODES = 200  # of the integer program; a limit in seconds would make answers differ
_GAP = 1e-3  # relative, of the integer program
_INFEASIBLE = 2  # scipy.optimize.milp, status


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNeeds:
    """Figures of a schedule's ranks for the linear program; p ranks, S virtual stages.

    owner        [S] the rank of each stage
    states       [n] bytes that each block adds to its rank, at least: without gradients, and of
                 gradients
    given_bytes  of every rank, whatever its blocks
    passed_bytes  per micro-batch, at most, of a tensor from a stage to the next on the same rank
    rise_bytes   [n] transient bytes of the backward of each block, at least
    crossing_s   minimum seconds of one crossing between stages, forward and back
    tail_s       minimum seconds of a stage after its last backward
    tails_s      [S, n] minimum seconds that a block adds to tail_s
    closed       the step has the closed form of chain/problem.py
    splits_backward   gradients of inputs and of weights are separate actions
    near_even    stages have n / S blocks, rounded down or up
    any_order    blocks may be reordered, but for the last
    """

    owner: Sequence[int]
    states: tuple[Array, Array]
    given_bytes: float = 0.0
    passed_bytes: float = 0.0
    rise_bytes: Array
    crossing_s: float = 0.0
    tail_s: float = 0.0
    tails_s: Array
    closed: bool = True
    splits_backward: bool = False
    near_even: bool = False
    any_order: bool = False


def relaxed_bound(problem: PartitionProblem, needs: RankNeeds, *, whole: bool = False) -> float:
    """Lower bound in seconds on the step time of a cell, for every assignment of its blocks to
    stages and of strategies to blocks; infinite if none fits, 0 if HiGHS has no answer.

    whole   every rank has whole blocks of each group; ten times as slow
    """
    program = _Program(problem, needs)
    program.add_rank_paths()
    if needs.closed:
        program.add_closed_form()
    program.add_memory()
    program.add_stage_sizes()
    return program.least_s(whole=whole)


class _Program:
    """The program of a cell: rows @ (x, step, L, E) <= limits, x [stages, groups, strategies]."""

    def __init__(self, problem: PartitionProblem, needs: RankNeeds) -> None:
        self.problem, self.needs = problem, needs
        slots = problem.slots
        self.groups, self.at_stage = _groups(problem.kinds, len(slots), any_order=needs.any_order)
        firsts = [group[0] for group in self.groups]
        self.shape = (len(slots), len(firsts), len(problem.strategies))
        costs = [problem.costs[slot.costs] for slot in slots]
        forward = np.asarray([each.forward_s[firsts] for each in costs])[:, :, None]
        self.forward = np.broadcast_to(forward, self.shape)
        self.backward = np.asarray([each.backward_s[firsts] for each in costs])
        self.whole = self.forward + self.backward
        self.counts = np.asarray([float(len(group)) for group in self.groups])
        tails = self.least(needs.tails_s)
        self.tails = np.broadcast_to(tails[:, :, None], self.shape)
        self.saved = np.asarray(
            [np.minimum(each.saved_bytes, each.first_saved_bytes)[firsts] for each in costs]
        )
        self.outside = np.asarray([slot.outside_blocks_s for slot in slots])
        self.in_flight = np.asarray([slot.in_flight for slot in slots])
        self.owner, self.stage = np.asarray(needs.owner), np.arange(len(slots))
        self.ranks = range(max(needs.owner) + 1)
        mean = (self.whole.min(axis=2) + tails).mean(axis=0)
        self.unit = float(mean @ self.counts) / len(slots) or 1.0
        self.rows: list[Array] = []
        self.limits: list[float] = []

    def least(self, figures: Array) -> Array:
        """[..., groups] the least figure of each group; shared parameters make some lower."""
        return np.stack([figures[..., group].min(axis=-1) for group in self.groups], axis=-1)

    def of(self, chosen: npt.NDArray[np.bool_], figures: Array) -> Array:
        """The figures of these stages, 0 for others."""
        return np.asarray(np.where(chosen[:, None, None], figures, 0.0))

    def add(self, work: Array, limit: float, *others: float) -> None:
        """work @ x + others @ (step, L, E) <= limit"""
        self.rows.append(np.concatenate([np.ravel(work), others or (0.0, 0.0, 0.0)]))
        self.limits.append(limit)

    def path(self, work: Array, fixed_s: float, *others: float) -> None:
        """Constraint of a path through the step: work @ x + fixed_s <= others @ (step, L, E)."""
        self.add(work / self.unit, -fixed_s / self.unit, *(-each for each in others))

    def add_rank_paths(self) -> None:
        """The work of each rank, and of those for which it waits."""
        micro, send_s = self.problem.num_microbatches, self.needs.crossing_s
        for r in self.ranks:
            mine, before = self.owner == r, self.stage < r
            way, waits_s = self.whole, float(self.outside[before].sum()) + r * send_s
            if self.needs.splits_backward:
                way, waits_s = self.forward, r * send_s / 2
            own_s = micro * float(self.outside[mine].sum()) + self.needs.tail_s
            self.path(
                self.of(before, way) + micro * self.of(mine, self.whole), waits_s + own_s, 1, 0, 0
            )

    def add_closed_form(self) -> None:
        """The closed form of 1f1b and gpipe."""
        slots, stage, of = self.problem.slots, self.stage, self.of
        stages, micro, send_s = len(slots), self.problem.num_microbatches, self.needs.crossing_s
        gpipe = self.problem.schedule == "gpipe"
        self.path(self.whole, float(self.outside.sum()) + (stages - 1) * send_s, 1, -1, -1)
        for s, slot in enumerate(slots):
            rounds = micro - 1 if gpipe else micro - slot.in_flight
            if gpipe:
                self.path(rounds * of(stage == s, self.forward), rounds * slot.forward_s, 0, 1, 0)
            elif rounds > 0:
                work = of(stage > s, self.whole) + rounds * of(stage == s, self.whole)
                later_s = float(self.outside[s + 1 :].sum()) + (stages - 1 - s) * send_s
                self.path(work, later_s + rounds * slot.outside_blocks_s, 0, 1, 0)
            done_s = sum(other.backward_s for other in slots[:s]) + s * send_s / 2
            for j in range(s, stages) if gpipe else (s,):
                again = (micro - 1) * gpipe * of(stage == j, self.backward)
                work = of(stage == s, self.tails) - of(stage < s, self.backward) + again
                self.path(work, self.needs.tail_s - done_s, 0, 0, 1)

    def add_memory(self) -> None:
        """The micro-batches in flight fit on every rank."""
        problem, needs, p = self.problem, self.needs, len(self.ranks)
        fixed, gradients = map(self.least, needs.states)
        per_rank = problem.num_stages // p
        i, j = np.triu_indices(problem.lattice.count - 1)
        edge = float(problem.edge_bytes[i, j + 1].min())
        # The last block of a stage runs first in its backward; the first block is not the last of a
        # stage with two.
        pairs = needs.near_even and problem.num_blocks >= 2 * problem.num_stages
        rise = min(needs.rise_bytes[not needs.any_order and pairs :])
        later = min(needs.rise_bytes[not needs.any_order :])
        for r in self.ranks:
            own = np.flatnonzero(self.owner == r).tolist()
            near = [s for s in own if s > 0 and self.owner[s - 1] == r]
            kept = int(self.in_flight[own].sum())
            # All backwards of a later stage, p at a time, precede the first of an earlier one.
            begun = problem.num_microbatches * per_rank - kept > (per_rank - 1) * p
            begun = begun and not needs.splits_backward
            each = fixed + gradients * begun
            size = problem.slots[own[0]].capacity_bytes
            if np.isinf(size):
                continue
            room = size - needs.given_bytes - kept * edge - begun * (later if r else rise)
            room += needs.passed_bytes * float(self.in_flight[near].sum())
            need = self.in_flight[:, None, None] * self.saved + each[None, :, None]
            self.add(self.of(self.owner == r, need) / size, room / size)

    def add_stage_sizes(self) -> None:
        """Near-even stages have equal numbers of blocks, but for one."""
        if self.needs.near_even:
            n, stages = self.problem.num_blocks, self.problem.num_stages
            for s in range(stages):
                inside = self.of(self.stage == s, np.ones(self.shape))
                self.add(inside, -(-n // stages))
                self.add(-inside, -(n // stages))

    def least_s(self, *, whole: bool) -> float:
        """Least seconds of the step."""
        stages, groups, strategies = self.shape
        size = stages * groups * strategies
        of_stage = kron_array(eye_array(groups), np.ones((1, strategies)))
        # More columns with `whole`: the number of blocks of each group on each rank.
        ranks = np.asarray(self.owner == np.asarray(self.ranks)[:, None], float)[: whole * stages]
        more = len(ranks) * groups
        numbers = hstack([kron_array(ranks, of_stage), csr_array((more, 3)), -eye_array(more)])
        each = hstack([kron_array(np.ones((1, stages)), of_stage), csr_array((groups, 3 + more))])
        allowed = [[at in (None, s) for at in self.at_stage] for s in range(stages)]
        most = np.where(np.repeat(allowed, strategies), np.inf, 0.0)
        columns = size + 3 + more
        answer = milp(
            np.arange(columns) == size,  # the step
            constraints=[
                LinearConstraint(np.pad(self.rows, ((0, 0), (0, more))), ub=self.limits),
                LinearConstraint(each, self.counts, self.counts),
                *([LinearConstraint(numbers, 0.0, 0.0)] if whole else []),
            ],
            bounds=Bounds(
                np.where(np.arange(columns) == size + 2, -np.inf, 0.0),  # E may be negative
                np.concatenate([most, np.full(3 + more, np.inf)]),
            ),
            integrality=np.repeat([0, whole], [size + 3, more]),
            options={"node_limit": _NODES, "mip_rel_gap": _GAP},
        )
        if answer.status == _INFEASIBLE:
            return np.inf
        least = answer.mip_dual_bound if whole else answer.fun
        return float(least or 0.0) * self.unit * (1 - _LOSS)


def _groups(
    kinds: tuple[int, ...], stages: int, *, any_order: bool
) -> tuple[list[list[int]], list[int | None]]:
    """Groups of blocks with equal costs, and the stage of those with only one: the last block and,
    in a given order, the first."""
    n = len(kinds)
    ends = {n - 1: stages - 1} if any_order or n == 1 else {0: 0, n - 1: stages - 1}
    inner: dict[int, list[int]] = {}
    for block in range(n):
        if block not in ends:
            inner.setdefault(kinds[block], []).append(block)
    groups = [*([block] for block in ends), *inner.values()]
    return groups, [*ends.values(), *(None for _ in inner)]
