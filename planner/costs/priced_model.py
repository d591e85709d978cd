"""Costs of a traced model's chain for one micro-batch, tp degree and place on the cluster.

The numbers are those that the simulator adds up to predict a plan (traced/predict.py,
memory/blocks.py, step_tail.py), arranged per kind of block and strategy, so that the cost of a
partition is a sum over its blocks. `PricedModel` contains the model, the cluster and the workload.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol, TypeVar

import numpy as np

from planner.cell import Cell
from planner.chain.ideals import BlockLattice, Index, prefixes
from planner.chain.problem import Array, BlockCosts
from profiles.document import content_hash
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.building.tensor_parallel_rules import has_shared_tokens
from profiles.model.graph import ModelGraph, parameter_name
from profiles.model.tied_gradients import pipeline_kinds
from profiles.model.tracing.block_order import crossing_bytes
from simulator.memory.data_group import DataGroup
from simulator.memory.held import padded_elements
from simulator.traced.block_cost import BlockCost, block_bytes, price_block
from simulator.traced.predict import TracedGraphs
from simulator.training_run.framework.executor_states import ExecutorStates
from simulator.values.plan import Pipeline, Plan, Recompute, Stage
from simulator.values.workload import Workload


class Traced(TracedGraphs, Protocol):
    """The part of a traced model that plans need in addition to that of predictions."""

    name: str
    tp_degrees: tuple[int, ...]
    tensor_parallel: tuple[tuple[str, str], ...]
    tied_parameters: tuple[tuple[str, ...], ...]
    why_not_tensor_parallel: str


Key = tuple[object, ...]
Value = TypeVar("Value")


class Cache:
    """A cache by key."""

    def __init__(self) -> None:
        self._values: dict[Key, Any] = {}

    def computed(self, key: Key, make: Callable[[], Value]) -> Value:
        """The value of a key, computed if it is not in the cache."""
        if key not in self._values:
            self._values[key] = make()
        value: Value = self._values[key]
        return value


Blocks = tuple[tuple[BlockCost, ...], ...]
"""[K][S] per kind of block and strategy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainCosts:
    """Costs per micro-batch on one rank; K kinds of block, S strategies.

    at            [n] the kind of each block of the chain
    blocks        [K][S] the simulator's prices
    forward_s, backward_s    [K] and [K, S], with exposed tensor-parallel communication
    kept_bytes    [K, S] tensors saved for the backward, and inputs if a backward needs them
    opening_kept_bytes   [K, S] the same as a first block, which keeps all inputs
    input_bytes, output_bytes    [K]
    weight_bytes  [K, S] kept from I to W if the backward is split
    forward_transient_bytes, backward_transient_bytes   [K, S]
    opening_forward_bytes, opening_backward_bytes       [K, S] transient bytes as a first block
    branched      the graph has branches: kept_bytes are a block's outputs and saved tensors, and
                  input_bytes are 0, because inputs are counted where they are made or received
                  (simulator/memory/blocks.py, stage_bytes)
    """

    at: Index
    blocks: Blocks
    forward_s: Array
    backward_s: Array
    kept_bytes: Array
    opening_kept_bytes: Array
    weight_bytes: Array
    input_bytes: Array
    output_bytes: Array
    forward_transient_bytes: Array
    backward_transient_bytes: Array
    opening_forward_bytes: Array
    opening_backward_bytes: Array
    branched: bool

    @property
    def outputs_kept(self) -> Array:
        """[K, 1] bytes of outputs that are part of kept_bytes; 0 without branches."""
        return self.output_bytes[:, None] * self.branched

    @property
    def first_bytes(self) -> Array:
        """[K] bytes during the backward of a stage's first block, with the strategy that needs
        least."""
        whole = self.opening_kept_bytes + self.opening_backward_bytes
        return np.asarray(whole.min(axis=1) - self.input_bytes)

    def block_costs(self, at: Index, *, last: bool, fewer_bytes: float = 0.0) -> BlockCosts:
        """Costs of blocks of the kinds `at` [n]. The last stage sends no output, so its forward
        peak may be the higher one.

        fewer_bytes   upper bound: messages in transit during a backward, less those in a forward
        """
        leaving: float | Array = self.output_bytes[:, None]  # part of kept_bytes
        if not self.branched:
            leaving = 0.0 if last or at.size < 2 else float(self.output_bytes[at[:-1]].min())
        less = leaving + fewer_bytes
        transient = np.maximum(self.backward_transient_bytes, self.forward_transient_bytes - less)
        opening = np.maximum(self.opening_backward_bytes, self.opening_forward_bytes - less)
        return BlockCosts(
            forward_s=self.forward_s[at],
            backward_s=self.backward_s[at],
            saved_bytes=np.ceil(self.kept_bytes[at]),
            opening_saved_bytes=np.ceil(self.opening_kept_bytes[at]),
            transient_bytes=np.ceil(transient[at]),
            opening_bytes=np.ceil(opening[at]),
        )


def chain_costs(
    at: Sequence[int], blocks: Blocks, *, opening: Blocks | None = None, branched: bool
) -> ChainCosts:
    """The costs of kinds of block under each strategy; `opening` are their costs as first blocks of
    stages, if their memory differs there."""

    def table(figure: Callable[[BlockCost], float], rows: Blocks = blocks) -> Array:
        return np.asarray([[figure(cost) for cost in row] for row in rows], dtype=float)

    first = opening or blocks
    inputs = table(lambda b: b.input_bytes)[:, 0]
    kept = table(lambda b: b.saved_bytes + (b.output_bytes if branched else b.input_bytes))
    freed = table(lambda b: b.freed_input_bytes)
    return ChainCosts(
        at=np.asarray(at, dtype=np.intp),
        blocks=blocks,
        forward_s=table(lambda b: b.forward.value + b.tp_forward_s)[:, 0],
        backward_s=table(lambda b: b.backward.value + b.tp_backward_s),
        kept_bytes=kept - freed,
        opening_kept_bytes=kept,
        weight_bytes=table(lambda b: b.weight_bytes),
        input_bytes=np.zeros_like(inputs) if branched else inputs,
        output_bytes=table(lambda b: b.output_bytes)[:, 0],
        forward_transient_bytes=table(lambda b: b.forward_transient_bytes) + freed,
        backward_transient_bytes=table(lambda b: b.backward_transient_bytes),
        opening_forward_bytes=table(lambda b: b.forward_transient_bytes, first),
        opening_backward_bytes=table(lambda b: b.backward_transient_bytes, first),
        branched=branched,
    )


def over_cuts(graph: ModelGraph) -> Array:
    """[n + 1] bytes per micro-batch that cross each cut of a graph's chain; 0 at both ends."""
    return np.asarray([crossing_bytes(graph, cut) for cut in range(len(graph.chain) + 1)])


def least_crossing(graph: ModelGraph) -> float:
    """Lower bound on the bytes per micro-batch over any cut, for any order of the blocks."""
    if graph.branches:
        return float(min(branch.spec.memory_bytes for branch in graph.branches))
    return float(over_cuts(graph)[1:-1].min(initial=np.inf))


def kinds_by_cost(graph: ModelGraph) -> tuple[int, ...]:
    """[n] numbers that are equal for blocks with equal costs in every stage.

    In a chain, these are the blocks' kinds; with branches, the tensors that cross the cuts count
    too.
    """
    kinds = tuple(ref.kind for ref in graph.chain)
    if not graph.branches:
        return kinds
    over = over_cuts(graph)
    figures = np.stack([kinds, over[:-1], over[1:]], axis=1)
    return tuple(np.unique(figures, axis=0, return_inverse=True)[1].ravel().tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldParameters:
    """Number of parameter elements of a stage between two cuts; tied ones count once.

    count  [m - 1, m] elements
    own    per block: the size of each parameter that only this block has
    tied   (size, blocks) of each parameter that several blocks have
    """

    lattice: BlockLattice
    count: Array
    own: tuple[tuple[int, ...], ...]
    tied: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def at_ends(self) -> tuple[int, ...]:
        """Sizes of the parameters shared by the first and last block of a chain."""
        ends = {0, len(self.own) - 1}
        every = self.tied if self.lattice.is_chain else ()
        return tuple(size for size, blocks in every if ends <= set(blocks))

    def ranged(self, per_parameter: Callable[[int], float]) -> Array:
        """[m - 1, m]: sum of `per_parameter(size)` over the parameters of a stage."""
        figure = cache(per_parameter)
        total = self.lattice.before(np.asarray([sum(map(figure, sizes)) for sizes in self.own]))
        found = np.maximum(total[None, :] - total[:-1, None], 0.0)
        for size, blocks in self.tied:
            inside = self.lattice.holds[:, list(blocks)].sum(axis=1)
            found += figure(size) * (inside[None, :] > inside[:-1, None])
        return found

    def of(self, ranges: tuple[tuple[int, int], ...]) -> float:
        """Elements of a rank with these ranges of blocks; each stage has its own copy of tied
        parameters."""
        return sum(float(self.count[i, j]) for i, j in ranges)


def held_in_ranges(
    graph: ModelGraph,
    *,
    trained: bool = False,
    shares: int,
    lattice: BlockLattice | None,
) -> HeldParameters:
    """The parameters of every stage, or only the trained ones.

    shares   number of replicas over which they are sharded
    lattice  possible cuts; None for a chain
    """
    lattice = lattice or prefixes(len(graph.chain))
    kept = [
        [p for p in graph.kinds[ref.kind].parameters if p.trainable or not trained]
        for ref in graph.chain
    ]
    holders: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for position, (ref, parameters) in enumerate(zip(graph.chain, kept, strict=True)):
        for parameter in parameters:
            name = parameter_name(ref, parameter)
            sizes[name] = padded_elements(parameter.spec, shares)
            blocks = holders.setdefault(name, [])
            if position not in blocks:
                blocks.append(position)
    own: list[list[int]] = [[] for _ in graph.chain]
    for name, blocks in holders.items():
        if len(blocks) == 1:
            own[blocks[0]].append(sizes[name])
    held = HeldParameters(
        lattice=lattice,
        count=np.zeros((lattice.count - 1, lattice.count)),
        own=tuple(map(tuple, own)),
        tied=tuple((sizes[name], tuple(b)) for name, b in holders.items() if len(b) > 1),
    )
    return replace(held, count=held.ranged(float))


def elementwise(
    figure: Callable[..., float | tuple[float, ...]], first: Array, *others: Array
) -> Array:
    """`figure` applied element by element to tables of one shape; computed once for equal
    arguments. If it returns a tuple, the result has one more axis."""
    columns = np.stack([first.ravel(), *(table.ravel() for table in others)], axis=1)
    distinct, where = np.unique(columns, axis=0, return_inverse=True)
    found = np.asarray([figure(*row) for row in distinct.tolist()])
    return np.asarray(found[where.ravel()].reshape(*first.shape, *found.shape[1:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedModel:
    """Model, cluster and workload, from which the costs of cells are computed.

    strategies     kinds of recomputation that a block may use
    micro_batches  every size that will be used, ascending
    """

    traced: Traced
    cluster: Cluster
    workload: Workload
    stack: ExecutorStates
    strategies: tuple[Recompute, ...]
    micro_batches: tuple[int, ...]

    def plan(
        self,
        cell: Cell,
        stages: tuple[Stage, ...],
        *,
        seed: int = 0,
        pipelines: tuple[Pipeline, ...] | None = None,
        unused: tuple[int, ...] | None = None,
    ) -> Plan:
        """The complete plan of a cell with these stages, or with unequal replicas."""
        graph = self.graph(cell.micro_batch, cell.degrees.tp)
        rules = self.traced.tensor_parallel if cell.degrees.tp > 1 else ()
        return Plan(
            model=self.traced.name,
            model_hash=self.traced.content_hash,
            block_entries=tuple(ref.entry for ref in graph.chain),
            tied_parameters=self.traced.tied_parameters,
            tensor_parallel=rules,
            sequence_parallel=has_shared_tokens(rules),
            cluster=self.cluster.name,
            cluster_hash=content_hash(self.cluster),
            workload=self.workload,
            degrees=cell.degrees,
            zero_stage=cell.zero_stage,
            micro_batch=cell.micro_batch,
            schedule=cell.schedule,
            stages=stages,
            seed=seed,
            pipelines=pipelines,
            unused=unused,
        )

    def graph(self, micro_batch: int, tp: int) -> ModelGraph:
        """The graph of a micro-batch as one of `tp` ranks runs it."""
        return self.traced.at(micro_batch, tp)

    def kinds(self, micro_batch: int, tp: int) -> list[int]:
        """[n] the kind of each block of the chain."""
        return [ref.kind for ref in self.graph(micro_batch, tp).chain]

    def chain(self, micro_batch: int, devices: tuple[int, ...], *, pipelined: bool) -> ChainCosts:
        """Costs of the kinds of block on a tensor-parallel group under each strategy."""
        graph = self.graph(micro_batch, len(devices))
        blocks = tuple(
            tuple(
                price_block(kind, recompute=strategy, devices=devices, cluster=self.cluster)
                for strategy in self.strategies
            )
            for kind in (pipeline_kinds(graph) if pipelined else graph.kinds)
        )
        kinds = self.kinds(micro_batch, len(devices))
        return chain_costs(kinds, blocks, branched=bool(graph.branches))

    def least_bytes(self, micro_batch: int, tp: int) -> Array:
        """[K] `first_bytes` of a pipeline's chain, the lowest of all chains, without times."""
        graph = self.graph(micro_batch, tp)
        return np.asarray(
            [
                min(
                    held.saved_bytes
                    + held.backward_transient_bytes
                    + (held.output_bytes if graph.branches else 0.0)
                    for held in (block_bytes(kind, strategy) for strategy in self.strategies)
                )
                for kind in pipeline_kinds(graph)
            ]
        )

    def group(self, cell: Cell, rank: int) -> DataGroup:
        """The data-parallel replicas of a pipeline rank."""
        return DataGroup(
            degrees=cell.degrees,
            zero_stage=cell.zero_stage,
            pipelined=cell.pipelined,
            num_microbatches=cell.num_microbatches,
            workload=self.workload,
            stack=self.stack,
            devices=cell.degrees.group("dp", pp=rank),
            cluster=self.cluster,
        )
