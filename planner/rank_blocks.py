"""An interleaved rank of equal blocks in numbers: what any layout of its blocks keeps and takes.

All blocks of the chain are of one kind but for a few at its ends, which the first and the last
stage hold in any near-even split. So a stage is known by how many blocks it has under each
strategy, and a rank by those counts for each of its stages.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.in_flight import average_held, moments
from planner.interleaved_problem import InterleavedProblem
from planner.problem import Array

Counts = npt.NDArray[np.intp]
_MOST_AT_END = 3  # of S strategies each: S to this power


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """How many blocks at the chain's ends are of other kinds than those between."""

    before: int
    behind: int


def ends_of(problem: InterleavedProblem) -> Ends | None:
    """The chain's ends; None where they reach beyond the first and the last stage, or hold so many
    blocks that their strategies are too many to try one by one."""
    kinds, n = problem.chain.kinds, problem.least_blocks
    inner = set(kinds[n : len(kinds) - n])
    if len(inner) != 1:
        return None
    equal = [kind in inner for kind in kinds]
    before, behind = equal.index(True), equal[::-1].index(True)
    if not all(equal[before : len(kinds) - behind]) or max(before, behind) > _MOST_AT_END:
        return None
    return Ends(before=before, behind=behind)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statics:
    """Bytes of a rank whatever its strategies, with so many stages of one block more.

    room_bytes  of the capacity, beside parameters, optimizer states and messages
    """

    room_bytes: float
    gradient_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Ways to fill a stage: equal blocks per strategy [K, S], their seconds [K], all bytes kept per
    micro-batch [K] and the rise above them while it runs backward [K]."""

    counts: Counts
    seconds: Array
    kept_bytes: Array
    rise_bytes: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Strategies of the blocks at the chain's ends, with their seconds."""

    strategies: tuple[int, ...]
    seconds: float


class RankBlocks:
    """A rank with v stages, S strategies, its equal blocks and those at the chain's ends.

    equal     [v] equal blocks of each stage, without extra blocks
    seconds, saved_bytes, back   [S] of an equal block: forward and backward; kept per micro-batch;
              rise while it runs backward
    choices   ways to run the blocks at the chain's ends, the fastest first
    fullest   the last of the moments at which most is in flight
    average   micro-batches in flight on average, empty where the step is too short to settle
    least_edges   [v] kept per micro-batch beyond what the blocks save, at least
    """

    def __init__(self, problem: InterleavedProblem, ends: Ends, rank: int) -> None:
        chain, p = problem.chain, problem.num_ranks
        self.problem, self.rank, self.v = problem, rank, problem.per_rank
        self.stages = tuple(problem.stages_of(rank))
        index = chain.slots[rank].costs
        self.costs = chain.costs[index]
        self.back_bytes = problem.backward_transient_bytes[index]
        self.last_costs = chain.costs[chain.slots[self.stages[-1]].costs]
        self.middle = ends.before
        self.back = self.back_bytes[self.middle]
        self.saved_bytes = self.costs.saved_bytes[self.middle]
        self.seconds = self.costs.forward_s[self.middle] + self.costs.backward_s[self.middle]
        self.front = tuple(range(ends.before)) if rank == 0 else ()
        first_behind = chain.num_blocks - ends.behind
        self.rear = tuple(range(first_behind, chain.num_blocks)) if rank == p - 1 else ()
        self.equal = np.full(self.v, problem.least_blocks)
        self.equal[0] -= len(self.front)
        self.equal[-1] -= len(self.rear)
        self.by_saved = np.lexsort((self.seconds, self.saved_bytes))
        self.choices = self._choices()
        self.moments = moments(p, chain.num_microbatches, self.v, rank)
        self.average = average_held(p, chain.num_microbatches, self.v, rank)
        total = self.moments.held.sum(axis=1)
        self.fullest = len(total) - 1 - int(total[::-1].argmax())
        self.least_edges = self.edges(np.zeros(self.v, dtype=np.intp))
        if problem.num_extras:
            self.least_edges = np.minimum(
                self.least_edges, self.edges(np.ones(self.v, dtype=np.intp))
            )
        self._known: dict[int, Statics] = {}

    @property
    def alike(self) -> tuple[object, ...]:
        """What ranks have in common whose figures differ by their moments and statics alone."""
        return (self.front, self.rear, self.problem.chain.slots[self.rank].costs)

    def _choices(self) -> tuple[Choice, ...]:
        """Strategies of the blocks at the chain's ends, equal ones once."""
        found: dict[tuple[tuple[float, ...], ...], Choice] = {}
        blocks = self.front + self.rear
        for strategies in itertools.product(range(self.saved_bytes.size), repeat=len(blocks)):
            at = (list(blocks), list(strategies))
            figures = tuple(
                tuple(table[at].tolist())
                for table in (
                    self.costs.backward_s,
                    self.costs.saved_bytes,
                    self.last_costs.transient_bytes,
                )
            )
            seconds = float(self.costs.forward_s[at[0]].sum() + sum(figures[0]))
            found.setdefault(figures, Choice(strategies=strategies, seconds=seconds))
        return tuple(sorted(found.values(), key=lambda c: (c.seconds, c.strategies)))

    def statics(self, extras: int) -> Statics:
        """Room and gradients of the rank with the first `extras` of its stages a block longer."""
        if extras not in self._known:
            sizes = [self.problem.least_blocks + (at < extras) for at in range(self.v)]
            ranges = tuple(map(self.problem.example, self.stages, sizes))
            fixed, gradients = self.problem.states(ranges)
            arriving, leaving = self.problem.room_for_messages
            for stage, (i, j) in zip(self.stages, ranges, strict=True):
                received, sent = self.problem.crossing(stage, i, j)
                fixed += arriving * received + leaving * sent
            capacity = self.problem.chain.slots[self.rank].capacity_bytes
            self._known[extras] = Statics(room_bytes=capacity - fixed, gradient_bytes=gradients)
        return self._known[extras]

    def edges(self, longer: Counts) -> Array:
        """[v] kept per micro-batch beyond what the blocks save."""
        sizes = self.problem.least_blocks + longer
        ranges = map(self.problem.example, self.stages, sizes.tolist())
        return np.asarray([self.problem.chain.edge_bytes[i, j] for i, j in ranges])

    def kept_at_ends(self, choice: Choice) -> Array:
        """[v] saved per micro-batch by the blocks at the chain's ends."""
        found = np.zeros(self.v)
        for block, strategy in zip(self.front + self.rear, choice.strategies, strict=True):
            found[0 if block in self.front else -1] += self.costs.saved_bytes[block, strategy]
        return found

    def peaks(self, laid: Counts, longer: Counts, choice: Choice) -> Array:
        """[len(laid)] highest bytes of activations, gradients and held messages over the step."""
        kept = laid @ self.saved_bytes + self.edges(longer) + self.kept_at_ends(choice)
        rises = self.rises(laid, choice)
        share = self.statics(int(longer.sum())).gradient_bytes / self.v
        known = self.moments
        need = kept @ known.held.T + rises[:, known.stage] + share * known.begun
        if self.problem.holds_sent:
            need += known.done @ self.crossings(longer)
        return np.asarray(need.max(axis=1))

    def crossings(self, longer: Counts) -> Array:
        """[v] bytes received and sent by each stage per micro-batch, with `longer` blocks more."""
        sizes = (self.problem.least_blocks + longer).tolist()
        ranges = map(self.problem.example, self.stages, sizes)
        return np.asarray(
            [
                sum(self.problem.crossing(s, i, j))
                for s, (i, j) in zip(self.stages, ranges, strict=True)
            ]
        )

    def rises(self, laid: Counts, choice: Choice) -> Array:
        """[len(laid), v] rise of each stage."""
        last = self.v - 1
        tables = [(self.last_costs if turn == last else self.costs) for turn in range(self.v)]
        return np.column_stack(
            [
                self._rise(turn, laid[:, turn], choice, table.transient_bytes, self.falling())
                for turn, table in enumerate(tables)
            ]
        )

    def _rise(
        self, turn: int, counts: Counts, choice: Choice, transient: Array, order: list[int]
    ) -> Array:
        """[len(counts)] rise of a stage with its equal blocks in this order of strategies."""
        behind, found = np.zeros(len(counts)), np.full(len(counts), -np.inf)
        chosen = self.at_end(turn, choice)
        rear = [row for row in chosen if row[0] in self.rear]
        front = [row for row in chosen if row[0] in self.front]
        for block, strategy in reversed(rear):
            found = np.maximum(found, transient[block, strategy] - behind)
            behind = behind + self.costs.saved_bytes[block, strategy]
        for k in reversed(order):
            above = np.maximum(found, transient[self.middle, k] - behind)
            found = np.where(counts[:, k] > 0, above, found)
            behind = behind + counts[:, k] * self.saved_bytes[k]
        for block, strategy in reversed(front):
            found = np.maximum(found, transient[block, strategy] - behind)
            behind = behind + self.costs.saved_bytes[block, strategy]
        return found

    def at_end(self, turn: int, choice: Choice) -> list[tuple[int, int]]:
        """(block, strategy) of a stage's blocks at the chain's ends."""
        found = zip(self.front + self.rear, choice.strategies, strict=True)
        mine = (self.front if turn == 0 else ()) + (self.rear if turn == self.v - 1 else ())
        return [(block, strategy) for block, strategy in found if block in mine]

    def ways(self, turn: int, longer: int, choice: Choice) -> Ways:
        """All ways to fill one stage, with one block more or not."""
        counts = compositions(int(self.equal[turn]) + longer, self.saved_bytes.size)
        stage, size = self.stages[turn], self.problem.least_blocks + longer
        kept = float(self.problem.chain.edge_bytes[self.problem.example(stage, size)])
        kept += sum(float(self.costs.saved_bytes[row]) for row in self.at_end(turn, choice))
        return Ways(
            counts=counts,
            seconds=counts @ self.seconds,
            kept_bytes=counts @ self.saved_bytes + kept,
            rise_bytes=self._rise(turn, counts, choice, self.back_bytes, _falling(self.back)),
        )

    def falling(self) -> list[int]:
        """The order of strategies in which the equal blocks of a stage are laid out."""
        return _falling(self.costs.transient_bytes[self.middle])


def _falling(above: Array) -> list[int]:
    """Strategies by falling transient: swapping two neighbours so never raises a stage's peak."""
    return sorted(range(len(above)), key=lambda k: (-above[k], k))


@functools.cache
def compositions(total: int, parts: int) -> Counts:
    """[K, parts]: all ways to write `total` as a sum of whole numbers of 0 or more."""
    if parts == 1:
        return np.asarray([[total]], dtype=np.intp)
    rows = [
        np.column_stack([np.full(len(rest), first), rest])
        for first in range(total + 1)
        for rest in (compositions(total - first, parts - 1),)
    ]
    return np.concatenate(rows)
