"""A traced model's chain priced for one micro-batch, tp degree and place on the cluster.

The figures are those that the simulator's prediction of a plan adds up (traced/predict.py,
memory.py, step_tail.py), laid out per kind of block and strategy, so that a partition of the chain
is priced by sums over its blocks. `PricedModel` has the model, the cluster and the workload that
every price is for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.chain.problem import Array
from planner.traced import Traced
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.graph import Block, ModelGraph, Parameter
from profiles.model.tracing.block_order import crossing_bytes
from simulator.memory.held import Held, parameter_name
from simulator.memory.sharded_units import UnitBuffers
from simulator.traced.block_cost import BlockCost, price_block
from simulator.traced.stack import Stack
from simulator.traced.step_tail import Tail, Tie, price_tail, price_tie
from simulator.values.plan import Recompute
from simulator.values.workload import Workload

Blocks = tuple[tuple[BlockCost, ...], ...]
"""[K][S] per kind of block and strategy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainCosts:
    """Figures per distinct kind (K) and strategy (S), per micro-batch on one rank.

    blocks        [K][S] as the simulator prices them
    forward_s     [K]; backward_s [K, S]; both with exposed tensor-parallel communication
    kept_bytes    [K, S] inputs and what is saved;  input_bytes, output_bytes [K]
    weight_bytes  [K, S] kept from I to W where the backward is split
    forward_transient_bytes, backward_transient_bytes   [K, S]
    branched      of a graph with branches kept_bytes are a block's outputs and what it saved, and
                  input_bytes are 0: what a block takes is kept by the block that made it, or came
                  over the cut before the stage (simulator/memory/blocks.py, stage_bytes)
    """

    blocks: Blocks
    forward_s: Array
    backward_s: Array
    kept_bytes: Array
    weight_bytes: Array
    input_bytes: Array
    output_bytes: Array
    forward_transient_bytes: Array
    backward_transient_bytes: Array
    branched: bool = False

    @property
    def forward_rise_bytes(self) -> Array:
        """[K, S] highest bytes of the forward beyond kept_bytes; below 0 where the outputs, that
        are among these, are the most of it."""
        handed = self.output_bytes[:, None] if self.branched else 0.0
        return np.asarray(self.forward_transient_bytes - handed)

    @property
    def first_bytes(self) -> Array:
        """[K] while the backward of a block runs that stands first in its stage, with the strategy
        that needs least."""
        whole = self.kept_bytes + self.backward_transient_bytes
        return np.asarray(whole.min(axis=1) - self.input_bytes)


def price_chain(
    graph: ModelGraph,
    strategies: tuple[Recompute, ...],
    devices: tuple[int, ...],
    cluster: Cluster,
) -> ChainCosts:
    """The chain's kinds on the tensor-parallel group `devices` under each strategy."""
    blocks = tuple(
        tuple(
            price_block(kind, recompute=strategy, devices=devices, cluster=cluster)
            for strategy in strategies
        )
        for kind in graph.kinds
    )
    table = partial(_table, blocks)
    branched = bool(graph.branches)
    inputs = table(lambda b: b.input_bytes)[:, 0]
    return ChainCosts(
        blocks=blocks,
        forward_s=table(lambda b: b.forward.value + b.tp_forward_s)[:, 0],
        backward_s=table(lambda b: b.backward.value + b.tp_backward_s),
        kept_bytes=table(lambda b: b.saved_bytes + (b.output_bytes if branched else b.input_bytes)),
        weight_bytes=table(lambda b: b.weight_bytes),
        input_bytes=np.zeros_like(inputs) if branched else inputs,
        output_bytes=table(lambda b: b.output_bytes)[:, 0],
        forward_transient_bytes=table(lambda b: b.forward_transient_bytes),
        backward_transient_bytes=table(lambda b: b.backward_transient_bytes),
        branched=branched,
    )


def _table(blocks: Blocks, figure: Callable[[BlockCost], float]) -> Array:
    return np.asarray([[figure(cost) for cost in row] for row in blocks], dtype=float)


def beside_units(chain: ChainCosts, buffers: tuple[UnitBuffers, ...]) -> ChainCosts:
    """The same with what FSDP2 makes and frees beside each kind of block."""
    blocks = tuple(
        tuple(unit.beside(cost) for cost in row)
        for unit, row in zip(buffers, chain.blocks, strict=True)
    )
    return replace(
        chain,
        blocks=blocks,
        forward_transient_bytes=_table(blocks, lambda b: b.forward_transient_bytes),
        backward_transient_bytes=_table(blocks, lambda b: b.backward_transient_bytes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossings:
    """Bytes per micro-batch over the cuts of a chain.

    arrives, leaves  [n] over the cut before and behind each block, as a stage that begins or ends
                     there receives and sends; what the chain's ends have is not read
    least            over any cut of any order of the blocks, at least
    """

    arrives: Array
    leaves: Array
    least: float


def crossings_of(graph: ModelGraph) -> Crossings:
    """What crosses the cuts of a graph's chain."""
    n = len(graph.chain)
    over = np.asarray([crossing_bytes(graph, cut) for cut in range(n + 1)])
    if graph.branches:
        least = float(min(branch.spec.memory_bytes for branch in graph.branches))
    else:
        least = float(over[1:-1].min(initial=np.inf))
    return Crossings(arrives=over[:-1], leaves=over[1:], least=least)


def kinds_to_tell(graph: ModelGraph) -> tuple[int, ...]:
    """[n] numbers of which blocks are alike in everything that a stage's price depends on.

    Of a plain chain the blocks' kinds; with branches also what crosses the cuts beside them.
    """
    kinds = tuple(ref.kind for ref in graph.chain)
    if not graph.branches:
        return kinds
    over = crossings_of(graph)
    numbers: dict[tuple[float, ...], int] = {}
    return tuple(
        numbers.setdefault((kind, arrives, leaves), len(numbers))
        for kind, arrives, leaves in zip(
            kinds, over.arrives.tolist(), over.leaves.tolist(), strict=True
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldParameters:
    """Elements of parameters that a stage holds, for every range of blocks; ties once.

    count      [n, n+1] of blocks [i, j)
    largest    [n, n+1] of the largest block in it, ties not considered
    elements   [n] of every block on its own, as (size, ...) per parameter
    repeated   (block, the next that holds the same parameter, its size)
    at_ends    sizes of those that the first block and the last both hold
    """

    count: Array
    largest: Array
    elements: tuple[tuple[int, ...], ...]
    repeated: tuple[tuple[int, int, int], ...]
    at_ends: tuple[int, ...]

    def ranged(self, per_parameter: Callable[[int], float]) -> Array:
        """[n, n+1]: sum over the held parameters of blocks [i, j) of a figure of their size."""
        known: dict[int, float] = {}

        def figure(size: int) -> float:
            if size not in known:
                known[size] = per_parameter(size)
            return known[size]

        single = np.asarray([sum(figure(size) for size in sizes) for sizes in self.elements])
        found = range_sums(single)
        for first, again, size in self.repeated:
            found[: first + 1, again + 1 :] -= figure(size)
        return found

    def of(self, ranges: tuple[tuple[int, int], ...]) -> float:
        """Elements of the parameters of a rank with these ranges of blocks; each of its stages has
        a copy of its own of what they share."""
        return sum(float(self.count[i, j]) for i, j in ranges)


def kept_parameters(block: Block, *, trained: bool) -> tuple[Parameter, ...]:
    """A block's parameters, or those of them that are trained."""
    return tuple(p for p in block.parameters if p.trainable or not trained)


def held_in_ranges(graph: ModelGraph, *, trained: bool = False) -> HeldParameters:
    """The parameters of every range, or those of them that are trained."""
    n = len(graph.chain)
    kept = [kept_parameters(block, trained=trained) for block in graph.kinds]
    seen: dict[str, int] = {}
    first: set[str] = set()
    at_ends: list[int] = []
    repeated: list[tuple[int, int, int]] = []
    elements: list[tuple[int, ...]] = []
    for position, ref in enumerate(graph.chain):
        sizes = []
        for parameter in kept[ref.kind]:
            name = parameter_name(ref, parameter)
            size = parameter.spec.num_elements
            sizes.append(size)
            if name in seen:
                repeated.append((seen[name], position, size))
            seen[name] = position
            if position == 0:
                first.add(name)
            elif position == n - 1 and name in first:
                at_ends.append(size)
        elements.append(tuple(sizes))
    whole = np.asarray([sum(sizes) for sizes in elements], dtype=float)
    largest = np.zeros((n, n + 1))
    for i in range(n):
        largest[i, i + 1 :] = np.maximum.accumulate(whole[i:])
    held = HeldParameters(
        count=np.zeros((0, 0)),
        largest=largest,
        elements=tuple(elements),
        repeated=tuple(repeated),
        at_ends=tuple(at_ends),
    )
    return replace(held, count=held.ranged(float))


def of_each(
    figure: Callable[..., float | tuple[float, ...]], first: Array, *others: Array
) -> Array:
    """A figure, or several in a last axis, of what tables of one shape hold at each place; asked
    once of what is equal."""
    columns = np.stack([first.ravel(), *(table.ravel() for table in others)], axis=1)
    distinct, where = np.unique(columns, axis=0, return_inverse=True)
    found = np.asarray([figure(*row) for row in distinct.tolist()])
    return np.asarray(found[where.ravel()].reshape(*first.shape, *found.shape[1:]))


def range_sums(single: Array) -> Array:
    """[n, n+1]: sums of single[i:j], 0 where j <= i."""
    total = np.concatenate([[0.0], np.cumsum(single)])
    return np.asarray(np.maximum(total[None, :] - total[:-1, None], 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedModel:
    """What prices of cells follow from.

    strategies     recompute kinds that a block may use
    micro_batches  those that will be asked for, rising
    """

    traced: Traced
    cluster: Cluster
    workload: Workload
    stack: Stack
    strategies: tuple[Recompute, ...]
    micro_batches: tuple[int, ...]

    def graph(self, micro_batch: int, tp: int) -> ModelGraph:
        """The graph of a micro-batch as one of `tp` ranks runs it."""
        return self.traced.at(micro_batch, tp)

    def kinds(self, micro_batch: int, tp: int) -> list[int]:
        """[n] the kind of each block of the chain."""
        return [ref.kind for ref in self.graph(micro_batch, tp).chain]

    def chain(self, micro_batch: int, devices: tuple[int, ...]) -> ChainCosts:
        """What the kinds of block cost on a tensor-parallel group under each strategy."""
        graph = self.graph(micro_batch, len(devices))
        return price_chain(graph, self.strategies, devices, self.cluster)

    def tail(
        self, held: Held, group: tuple[int, ...], *, zero_stage: int, tp: int, pipelined: bool
    ) -> Tail:
        """What the dp group's first device, which holds these parameters, does after its last
        backward."""
        return price_tail(
            held,
            group=group,
            zero_stage=zero_stage,
            precision=self.workload.precision,
            optimizer=self.workload.optimizer,
            cluster=self.cluster,
            stack=self.stack,
            pipelined=pipelined,
            sharing=tp,
        )

    def tie_s(self, tie: Tie, *, shards: int, tp: int) -> float:
        """Seconds in which the ranks that hold a tied parameter sum its gradients, each one of so
        many shares of it."""
        cost = price_tie(
            tie,
            shards=shards,
            precision=self.workload.precision,
            cluster=self.cluster,
            stack=self.stack,
            sharing=tp,
        )
        return cost.time_s
