"""The ideal problem of a cell, priced as planner/costs/costs.py prices the chain's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from planner.cell import Cell
from planner.chain.ideals import BlockLattice, IdealProblem
from planner.chain.problem import Array
from planner.costs.cell_memory import CellMemory, in_flight
from planner.costs.cell_times import CellTails
from planner.costs.costs import SimulatorCosts
from planner.costs.priced_model import PricedModel, kept_parameters
from profiles.model.graph import ModelGraph
from simulator.memory.held import parameter_name


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldInIdeals:
    """As priced_model.HeldParameters, for the blocks of one ideal without another's [m, m].

    held  [m, n] whether an ideal holds a block
    own   per block the elements of each parameter that only it holds
    tied  (elements, blocks) of each parameter that several blocks hold
    at_ends  none: which rank has which end is not known before the blocks are in order
    """

    count: Array
    largest: Array
    held: Array
    own: tuple[tuple[int, ...], ...]
    tied: tuple[tuple[int, tuple[int, ...]], ...]
    at_ends: tuple[int, ...] = ()

    def ranged(self, per_parameter: Callable[[int], float]) -> Array:
        """[m, m]: sum over the held parameters of a figure of their size."""
        sizes = {size for block in self.own for size in block} | {size for size, _ in self.tied}
        known = {size: per_parameter(size) for size in sorted(sizes)}
        total = self.held @ np.asarray([sum(known[size] for size in block) for block in self.own])
        found = total[None, :] - total[:, None]
        for size, blocks in self.tied:
            inside = self.held[:, list(blocks)].sum(axis=1)
            found = found + known[size] * (inside[None, :] > inside[:, None])
        return np.asarray(np.maximum(found, 0.0))


def held_in_ideals(graph: ModelGraph, lattice: BlockLattice, *, trained: bool) -> HeldInIdeals:
    """The parameters of every stage between two ideals, or those of them that are trained."""
    holders: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    kept = [kept_parameters(graph.kinds[ref.kind], trained=trained) for ref in graph.chain]
    for position, ref in enumerate(graph.chain):
        for parameter in kept[position]:
            name = parameter_name(ref, parameter)
            sizes[name] = parameter.spec.num_elements
            if position not in holders.setdefault(name, []):
                holders[name].append(position)
    alone: list[list[int]] = [[] for _ in graph.chain]
    tied = []
    for name, blocks in holders.items():
        if len(blocks) == 1:
            alone[blocks[0]].append(sizes[name])
        else:
            tied.append((sizes[name], tuple(blocks)))
    whole = [float(sum(p.spec.num_elements for p in own)) for own in kept]
    held = lattice.holds.astype(float)
    largest = _most_between(held, whole)
    bare = HeldInIdeals(
        count=largest,
        largest=largest,
        held=held,
        own=tuple(tuple(block) for block in alone),
        tied=tuple(tied),
    )
    return replace(bare, count=bare.ranged(float))


def _most_between(held: Array, figures: list[float]) -> Array:
    """[m, m]: the largest figure of the blocks of one ideal without another's."""
    most = np.zeros((len(held), len(held)))
    for figure in sorted(set(figures)):
        inside = held[:, [k for k, other in enumerate(figures) if other == figure]].sum(axis=1)
        most = np.where(inside[None, :] > inside[:, None], figure, most)
    return most


class IdealCosts:
    """Ideal problems of cells whose blocks have one lattice."""

    def __init__(self, costs: SimulatorCosts, lattice: BlockLattice) -> None:
        self._costs, self._lattice = costs, lattice
        self._memory = _IdealMemory(costs.model, lattice)
        self._tails = CellTails(costs.model, costs.places, self._memory)
        self._first = _first_blocks(lattice)
        self._crossing: dict[tuple[int, int], Array] = {}

    def problem(self, cell: Cell) -> IdealProblem:
        """The cell's problem, as SimulatorCosts.problem has it for a chain."""
        degrees = cell.degrees
        costs, graph = self._costs, self._costs.model.graph(cell.micro_batch, degrees.tp)
        chain = costs.problem(cell)
        over = self._over(cell, graph)
        last = len(over) - 1
        arriving = np.where(np.arange(last + 1) == last, 0.0, over)
        m = self._lattice.count
        statics: tuple[Array, ...] = (np.zeros((m, m)),)
        tails = statics * len(costs.places.distinct(cell))
        if degrees.vpp == 1 and not cell.splits_backward:
            first_bytes = costs.first_bytes(cell)[self._first]
            statics, _ = self._memory.moments_at(
                cell, in_flight(cell), arriving[:, None], over[None, :], first_bytes
            )
            tails = tuple(self._tails.of_ranges(cell, rank) for rank in costs.places.distinct(cell))
        sizes, where = np.unique(over, return_inverse=True)
        sends = np.asarray(
            [
                [costs.times.send_s(cell, s, size) for size in sizes.tolist()]
                for s in range(degrees.num_stages)
            ]
        )[:, where]
        kinds = tuple(ref.kind for ref in graph.chain)
        return IdealProblem(
            lattice=self._lattice,
            kinds=kinds,
            schedule=chain.schedule,
            num_microbatches=chain.num_microbatches,
            costs=chain.costs,
            slots=chain.slots,
            static_bytes=statics,
            tails_s=tails,
            edge_bytes=np.ceil(over),
            send_forward_s=sends,
            send_backward_s=sends,
        )

    def _over(self, cell: Cell, graph: ModelGraph) -> Array:
        """[m] bytes per micro-batch that cross the cut at each ideal."""
        key = (cell.micro_batch, cell.degrees.tp)
        if key not in self._crossing:
            held = self._lattice.holds
            found = np.zeros(self._lattice.count)
            for branch in graph.branches:
                taken = held[:, list(branch.consumers)].all(axis=1)
                found += branch.spec.memory_bytes * (held[:, branch.producer] & ~taken)
            self._crossing[key] = found
        return self._crossing[key]


class _IdealMemory(CellMemory):
    def __init__(self, model: PricedModel, lattice: BlockLattice) -> None:
        super().__init__(model)
        self._lattice = lattice

    def find_held(self, graph: ModelGraph, *, trained: bool) -> HeldInIdeals:  # type: ignore[override] # of other ranges
        return held_in_ideals(graph, self._lattice, trained=trained)


def _first_blocks(lattice: BlockLattice) -> np.ndarray:
    """[m, m] the first block, in the traced order, that one ideal holds and another does not."""
    holds = lattice.holds
    found = np.zeros((lattice.count, lattice.count), dtype=np.intp)
    for block in reversed(range(lattice.num_blocks)):
        found[holds[None, :, block] & ~holds[:, None, block]] = block
    return found
