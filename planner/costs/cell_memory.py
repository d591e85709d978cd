"""Memory of a cell, from the simulator's formulas: of stages with any range of blocks, a lower
bound for all plans, and micro-batches in flight. `Places` finds the ranks with equal costs."""

from __future__ import annotations

from collections import Counter

import numpy as np

from planner.cell import Cell
from planner.chain.ideals import BlockLattice
from planner.chain.problem import Array, Load
from planner.costs.priced_model import (
    Cache,
    HeldParameters,
    PricedModel,
    elementwise,
    held_in_ranges,
)
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.graph import ModelGraph
from simulator.memory.held import (
    Elements,
    Figures,
    exchange_bytes,
    executor_static_bytes,
    padded_elements,
)
from simulator.schedules.in_flight import in_flight as held_by_ranks

Shape = tuple[tuple[int, ...], ...]


class Places:
    """The places of a cluster. Two ranks share a place, and so their costs, if their devices are
    equal and their groups spread equally over the levels of interconnect."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[tuple[int, int, int, int, int], tuple[str, Shape, Shape]] = {}

    def of(self, cell: Cell, rank: int) -> tuple[str, Shape, Shape]:
        """Device name, shape of the rank's tp group, and shapes of the groups over which its states
        are sharded, in one tuple."""
        degrees = cell.degrees
        key = (degrees.pp, degrees.dp, degrees.dp_replicate, degrees.tp, rank)
        if key not in self._known:
            name = self._cluster.device_at(degrees.rank(pp=rank)).name
            tensor = self.shape(degrees.group("tp", pp=rank))
            replicas, size = degrees.group("dp", pp=rank), degrees.shard_replicas
            groups = (replicas[i : i + size] for i in range(0, degrees.dp, size))
            data = tuple(shape for group in groups for shape in self.shape(group))
            self._known[key] = (name, tensor, data)
        return self._known[key]

    def distinct(self, cell: Cell) -> list[int]:
        """The first rank of each place of a cell."""
        first: dict[tuple[str, Shape, Shape], int] = {}
        for rank in range(cell.degrees.pp):
            first.setdefault(self.of(cell, rank), rank)
        return list(first.values())

    def shape(self, devices: tuple[int, ...]) -> Shape:
        """Numbers of devices of a group per domain, for each level of interconnect."""
        return tuple(
            tuple(Counter(index // level.domain_size for index in devices).values())
            for level in self._cluster.levels
        )


# The moments of a step that `CellMemory.moments` counts, in the order of its static bytes.
_BEFORE, _FIRST, _BETWEEN, _STEADY, _LAST, _END = range(6)


class CellMemory:
    """Memory of cells, with a cache for values that cells share. A larger micro-batch needs more,
    so it is not computed if a smaller one already exceeds the memory.

    lattice  possible cuts between stages; None for a chain
    """

    def __init__(self, model: PricedModel, lattice: BlockLattice | None = None) -> None:
        self.model, self._lattice = model, lattice
        self._known = Cache()
        self.capacity_bytes = max(group.device.tensor_bytes for group in model.cluster.groups)

    def missing_bytes(self, cell: Cell) -> float:
        """Lower bound on the bytes by which some device exceeds its memory, for every plan of the
        cell; 0 or less if a plan may fit.

        The maximum of two moments: at the end of the step, some rank has at least the mean of
        parameters, optimizer states and gradients; and some rank runs the block that needs most,
        with the strategy that needs least.
        """
        degrees = cell.degrees
        sharing = (cell.zero_stage, degrees.dp, cell.shares)
        key = ("lacks", degrees.tp, cell.micro_batch, *sharing, degrees.pp)
        return self._known.computed(key, lambda: self._missing_bytes(cell))

    def _missing_bytes(self, cell: Cell) -> float:
        """The larger shortfall of the two moments of `missing_bytes`."""
        degrees, room = cell.degrees, self.capacity_bytes
        total, trained = (
            float(held.count[0, -1]) / degrees.pp
            for held in (self.parameters(degrees.tp), self.trained(degrees.tp))
        )
        mean = sum(self.states(cell, Elements(total=total, trained=trained, gradients=trained)))
        if mean > room:
            # It cannot fit: the rest of the shortfall is estimated from the smallest micro-batch.
            smallest = self.model.micro_batches[0]
            working = float(self._least_activations(degrees.tp, smallest).max())
            return mean + working - room
        least = self._least_activations(degrees.tp, cell.micro_batch)
        running = float((self._alone(cell) + least).max())
        return max(mean, running) - room

    def parameters(self, tp: int, shares: int = 1) -> HeldParameters:
        """Parameters of every range of blocks at a tp degree, sharded over `shares` replicas."""

        def find() -> HeldParameters:
            every = (p.spec for kind in self._graph(tp).kinds for p in kind.parameters)
            if shares > 1 and all(padded_elements(p, shares) == p.num_elements for p in every):
                return self.parameters(tp)
            return held_in_ranges(self._graph(tp), shares=shares, lattice=self._lattice)

        return self._known.computed(("held", tp, shares), find)

    def trained(self, tp: int, shares: int = 1) -> HeldParameters:
        """Trained parameters of every range of blocks, as in `parameters`."""

        def find() -> HeldParameters:
            every = (p.trainable for kind in self._graph(tp).kinds for p in kind.parameters)
            held = self.parameters(tp, shares)
            if all(every):
                return held
            return held_in_ranges(
                self._graph(tp), trained=True, shares=shares, lattice=self._lattice
            )

        return self._known.computed(("trained", tp, shares), find)

    def _graph(self, tp: int) -> ModelGraph:
        return self.model.graph(self.model.micro_batches[0], tp)

    def elements(self, cell: Cell, ranges: tuple[tuple[int, int], ...]) -> Elements:
        """Parameters of a rank with these ranges of blocks."""
        tp, shares = cell.degrees.tp, cell.shares
        total, trained = self.parameters(tp, shares), self.trained(tp, shares)
        return Elements(
            total=total.of(ranges),
            trained=trained.of(ranges),
            gradients=self.trained(tp).of(ranges),
        )

    def moments(
        self,
        cell: Cell,
        kept: tuple[int, ...],
        over: Array,
        first_bytes: Array,
        *,
        early: bool,
        branched: bool,
    ) -> tuple[tuple[Array, ...], tuple[tuple[Load, ...], ...]]:
        """For 1f1b and gpipe: static bytes of a stage between any two cuts at each moment that may
        be the peak of a step, and the loads of every stage.

        kept   micro-batches in flight per stage
        over   [m] bytes that cross each cut
        first_bytes  minimum bytes during the backward of a stage's first block, without other
                     micro-batches; a column, or one value per pair of cuts
        early  receives are posted early (simulator/memory/moments.py, rank_moments)
        branched  gradients of a stage's outputs exist for the whole step, as in stage_bytes

        Only moments that may be the peak are included. Gradients are allocated by the first
        backward, and from then on one gradient is being sent.
            more micro-batches than in flight   backwards with all in flight; the next activation
                                                has arrived, except during the last of them
            all in flight at once               the last forward; the end of the first backward; the
                                                second backward
            always                              the last backward; the end of the step
        """
        micro, arriving, ahead = cell.num_microbatches, over[:-1, None], over[None, :] * early
        fixed, gradients = self._state_ranges(cell)
        fixed = fixed + self.given_bytes(cell)
        passed = over[None, :] * branched
        exchange = self.exchange_bytes(cell, self.trained(cell.degrees.tp).count)
        later = gradients + arriving
        more = (
            passed + ahead,
            passed + later + first_bytes + ahead * (micro > 1),
            passed + later + ahead,
            passed + later + arriving,
            passed + later,
            later + exchange,
        )
        end = Load(in_flight=0, static=_END, rises=False)

        def loads(k: int) -> tuple[Load, ...]:
            last = [Load(in_flight=1, static=_LAST)] if micro > 1 else []
            if micro > k:
                steady = [Load(in_flight=k, static=_STEADY)] if micro > k + 1 else []
                return (end, *last, Load(in_flight=k, static=_BETWEEN), *steady)
            first = Load(in_flight=k - 1, static=_FIRST, rises=False)
            second = [Load(in_flight=k - 1, static=_BETWEEN)] if k > 2 else []
            return (end, *last, Load(in_flight=k, static=_BEFORE), first, *second)

        return tuple(np.ceil(fixed + each) for each in more), tuple(loads(k) for k in kept)

    def states(self, cell: Cell, held: Elements) -> tuple[float, float]:
        """Bytes of parameters with optimizer states, and of gradients. Temporary memory of FSDP2 is
        part of the blocks' costs (CellTimes.chain)."""
        found = executor_static_bytes(held, self.model.group(cell, 0))
        return found.parameters + found.optimizer, found.gradients

    def _state_ranges(self, cell: Cell) -> tuple[Array, Array]:
        """Two arrays [m - 1, m]: `states` of a stage between two cuts."""
        degrees = cell.degrees

        def find() -> tuple[Array, Array]:
            held = self.parameters(degrees.tp, cell.shares)
            trained = self.trained(degrees.tp, cell.shares)
            found = elementwise(
                lambda total, own, gradients: self.states(
                    cell, Elements(total=total, trained=own, gradients=gradients)
                ),
                held.count,
                trained.count,
                self.trained(degrees.tp).count,
            )
            return found[..., 0], found[..., 1]

        key = ("states", degrees.tp, cell.zero_stage, cell.shares, degrees.pp > 1)
        return self._known.computed(key, find)

    def given_bytes(self, cell: Cell) -> float:
        """Bytes of inputs and targets of all micro-batches on a rank."""
        graph = self.model.graph(cell.micro_batch, cell.degrees.tp)
        return float(graph.sample_bytes * cell.micro_batch * cell.num_microbatches)

    def exchange_bytes(self, cell: Cell, total: Figures) -> Figures:
        """Temporary bytes of the gradient exchange after the last backward (memory/held.py)."""
        return exchange_bytes(total, self.model.group(cell, 0))

    def _alone(self, cell: Cell) -> Array:
        """[n] bytes of the states of each block; with gradients if there are several
        micro-batches."""
        degrees, several = cell.degrees, cell.num_microbatches > 1

        def find() -> Array:
            blocks = range(len(self.parameters(degrees.tp).count))
            alone = (self.elements(cell, ((block, block + 1),)) for block in blocks)
            states = [self.states(cell, held) for held in alone]
            return np.asarray([f + (g if several else 0.0) for f, g in states])

        key = ("alone", degrees.tp, cell.zero_stage, cell.shares, several, degrees.pp > 1)
        return self._known.computed(key, find)

    def least_states(self, cell: Cell) -> tuple[Array, Array]:
        """[n] bytes that each block adds to its rank, at least: of parameters with optimizer
        states, and of gradients. Parameters that several blocks share count only if these are the
        two ends of a chain, which are in different stages."""
        tp, shares = cell.degrees.tp, cell.shares

        def least(held: HeldParameters) -> list[int]:
            found = [sum(sizes) for sizes in held.own]
            for size in held.at_ends:
                found[0] += size
                found[-1] += size
            return found

        total, trained = self.parameters(tp, shares), self.trained(tp, shares)
        sizes = zip(least(total), least(trained), least(self.trained(tp)), strict=True)
        found = [
            self.states(cell, Elements(total=n, trained=own, gradients=gradients))
            for n, own, gradients in sizes
        ]
        fixed, gradients = np.asarray(found).T
        return fixed, gradients

    def _least_activations(self, tp: int, micro_batch: int) -> Array:
        """[n] minimum bytes for running each block, over all strategies. If a smaller micro-batch
        already exceeds the memory, the value for that one."""

        def find() -> Array:
            smaller = [size for size in self.model.micro_batches if size < micro_batch]
            if smaller:
                least = self._least_activations(tp, smaller[-1])
                if least.max() > self.capacity_bytes:
                    return least
            least = self.model.least_bytes(micro_batch, tp)
            return np.asarray(least[self.model.kinds(micro_batch, tp)])

        return self._known.computed(("activations", tp, micro_batch), find)


def edges(over: Array, tables: Array, *, branched: bool = False) -> Array:
    """[m - 1, m] bytes per micro-batch that a stage keeps in addition to the inputs and saved
    tensors of its blocks: its outputs and tables (simulator/memory/blocks.py, stage_bytes).

    over      [m] bytes that cross each cut
    tables    [m - 1, m] of `table_bytes`
    branched  blocks save their outputs instead of their inputs, so the stage's inputs are added
              here
    """
    kept = over[:-1, None] if branched else np.ceil(over)[None, :]
    return kept + np.ceil(tables)


def table_bytes(graph: ModelGraph, lattice: BlockLattice) -> Array:
    """[m - 1, m] the largest `table_bytes` of the blocks of a stage between two cuts."""
    found = np.zeros((lattice.count - 1, lattice.count))
    for size in sorted({kind.table_bytes for kind in graph.kinds} - {0}):
        readers = [k for k, block in enumerate(graph.blocks) if block.table_bytes == size]
        inside = lattice.holds[:, readers].sum(axis=1)
        found[inside[None, :] > inside[:-1, None]] = size
    return found


def in_flight(cell: Cell) -> tuple[int, ...]:
    """Micro-batches that each virtual stage keeps at the last moment at which its rank keeps most
    (with a split backward: at the first, and only micro-batches whose I has not run)."""
    held = held_by_ranks(
        cell.schedule, cell.degrees.pp, cell.num_microbatches, cell.degrees.vpp, until_input=True
    )
    found = [0] * cell.degrees.num_stages
    for rank, stages in enumerate(held):
        for count, stage in zip(stages, cell.stages_of(rank), strict=True):
            found[stage] = count
    return tuple(found)
