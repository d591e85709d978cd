"""Times of every possible stage on every type of device, from a traced model and a cluster.

A "device" of the abstract problem (`splits`) is a tensor-parallel group inside a node. Times,
memory and tails come from the functions that price cells with equal replicas, so they equal the
prediction, with one exception: as devices are not numbered yet, messages and gradient exchanges are
assumed to cross the widest level of the cluster or, for lower bounds, to take no time. Every stage
is assumed to have more micro-batches than are in flight, which needs the most memory.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np

from planner.cell import Cell
from planner.chain.ideals import prefixes
from planner.chain.partition import PartitionSolver, labels_of
from planner.chain.problem import Array, PartitionProblem, StageSlot
from planner.chain.stage_labels import StageLabels
from planner.costs.cell_memory import CellMemory, edges, table_bytes
from planner.costs.priced_model import (
    ChainCosts,
    PricedModel,
    elementwise,
    kinds_by_cost,
    over_cuts,
)
from planner.heterogeneous.splits import StageTables
from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import Device, twin_type
from simulator.memory.held import Held
from simulator.traced.in_step import message_in_step
from simulator.traced.step_tail import price_tail
from simulator.values.degrees import Degrees
from simulator.values.plan import Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceType:
    """A device type of a cluster, with its tensor-parallel groups, node by node."""

    device: Device
    groups: tuple[tuple[int, ...], ...]


def device_types(cluster: Cluster, tp: int) -> tuple[DeviceType, ...]:
    """The types with nodes of `tp` devices or more, in the cluster's order.

    >>> from profiles.hardware.catalogue.catalog import get_cluster
    >>> [kind.groups for kind in device_types(get_cluster("1x4xh100-sxm"), 2)]
    [((0, 1), (2, 3))]
    """
    found: dict[str, list[tuple[int, ...]]] = {}
    devices: dict[str, Device] = {}
    first = 0
    for group in cluster.groups:
        name = group.device.name
        devices.setdefault(name, group.device)
        for _ in range(group.count):
            for at in range(0, group.devices_per_node - tp + 1, tp):
                found.setdefault(name, []).append(tuple(range(first + at, first + at + tp)))
            first += group.devices_per_node
    return tuple(
        DeviceType(device=devices[name], groups=tuple(groups)) for name, groups in found.items()
    )


def check_rates(cluster: Cluster, precision: str, dtype: str) -> None:
    """Raises InputError if a device type has no rate for the precision."""
    for group in cluster.groups:
        rates = set(group.device.peak_flop_per_s)
        if {dtype, twin_type(dtype)} & rates:
            continue
        raise InputError(
            f"device {group.device.name} of cluster {cluster.name} has no rate for {dtype} "
            f"(--precision {precision}); it has rates for {', '.join(sorted(rates))}. Take its "
            "[[groups]] out of the cluster file, or choose a precision that all types have"
        )


class StagePrices:
    """Stage times of cells; values that cells share are computed once.

    stages  maximum number of stages of a pipeline
    """

    def __init__(self, model: PricedModel, stages: tuple[int, ...]) -> None:
        self.model, self.stages = model, stages
        self._memory = CellMemory(model)
        self.types = functools.cache(functools.partial(device_types, model.cluster))
        self._chain = functools.cache(self._price_chain)
        self._labels = functools.cache(self._grow_labels)
        self._solver = functools.cache(self._fitting)
        self._tail = functools.cache(self._price_tail)

    def cell(self, degrees: Degrees, micro_batch: int, zero_stage: int) -> Cell:
        """The cell of tp and dp, the number of replicas, over which ZeRO shards; stages, shares and
        devices are open."""
        return Cell(
            degrees=degrees,
            zero_stage=zero_stage,
            micro_batch=micro_batch,
            schedule="1f1b",
            global_batch=self.model.workload.global_batch,
        )

    def num_groups(self, tp: int) -> int:
        """Number of tensor-parallel groups of all types."""
        return sum(len(kind.groups) for kind in self.types(tp))

    def fastest_s(self, tp: int, micro_batch: int) -> tuple[float, ...]:
        """Per type: seconds of the whole chain with the fastest recompute kinds."""
        kinds = self.model.kinds(micro_batch, tp)
        chains = [self._chain(tp, micro_batch, at) for at in range(len(self.types(tp)))]
        return tuple(
            float((chain.forward_s + chain.backward_s.min(axis=1))[kinds].sum()) for chain in chains
        )

    def tables(self, cell: Cell, *, least: bool = False) -> StageTables:
        """The times of every stage that fits.

        least  lower bounds, without messages and gradient exchange
        """
        tp = cell.degrees.tp
        n, types = len(self.model.graph(cell.micro_batch, tp).chain), self.types(tp)
        crossing = 0.0 if least else self._crossing(cell)[None, :]
        return StageTables(
            counts=tuple(len(kind.groups) for kind in types),
            seconds=tuple(
                tuple(seconds + crossing for seconds in self._seconds(cell, kind))
                for kind in range(len(types))
            ),
            tails_s=tuple(
                np.zeros((n, n + 1)) if least else self._tail(cell.degrees, cell.zero_stage, kind)
                for kind in range(len(types))
            ),
            stages=tuple(count for count in self.stages if count <= n),
            num_microbatches=self.model.workload.global_batch // cell.micro_batch,
        )

    def recompute(
        self, cell: Cell, kind: int, from_end: int, first: int, last: int
    ) -> tuple[Recompute, ...]:
        """The fastest recompute kinds that fit, one per block of [first, last), in the stage
        `from_end`, counted from the last."""
        solver = self._stages_of(cell, kind)
        labels, fastest = solver.fastest_fitting(solver.problem.num_stages - from_end, first, last)
        return tuple(self.model.strategies[index] for index in labels.strategies(fastest))

    # Times and memory.

    def _price_chain(self, tp: int, micro_batch: int, kind: int) -> ChainCosts:
        group = self.types(tp)[kind].groups[0]
        return self.model.chain(micro_batch, group, pipelined=True)

    def _stages_of(self, cell: Cell, kind: int) -> PartitionSolver:
        """The stages of the longest possible pipeline on devices of one type."""
        if not cell.zero_stage:
            # Nothing is sharded: replicas matter only for the buckets of exchanged gradients.
            cell = cell.with_replicas(min(cell.degrees.dp, 2))
        return self._solver(cell, kind)

    def _seconds(self, cell: Cell, kind: int) -> list[Array]:
        """Per stage from the end: [n, n+1] seconds of blocks [i, j), infinite if too large."""
        solver = self._stages_of(cell, kind)
        start, end = solver.lattice.pairs
        forward = solver.forward[0][end] - solver.forward[0][start]
        found = []
        for stage in reversed(range(solver.problem.num_stages)):
            seconds = np.full(solver.problem.edge_bytes.shape, np.inf)
            seconds[start, end] = forward + solver.fastest_s(stage, start, end)
            found.append(seconds)
        return found

    def _fitting(self, cell: Cell, kind: int) -> PartitionSolver:
        problem = self._problem(cell, kind)
        return PartitionSolver(problem, self._labels(cell.degrees.tp, cell.micro_batch, kind))

    def _grow_labels(self, tp: int, micro_batch: int, kind: int) -> list[StageLabels]:
        """Labels of all sequences of blocks on a type; they depend on the blocks' costs only."""
        return labels_of(self._problem(self.cell(Degrees(tp=tp), micro_batch, 0), kind))

    def _problem(self, cell: Cell, kind: int) -> PartitionProblem:
        tp, micro_batches = cell.degrees.tp, self.model.workload.global_batch // cell.micro_batch
        graph = self.model.graph(cell.micro_batch, tp)
        chain, over = self._chain(tp, cell.micro_batch, kind), over_cuts(graph)
        at = np.asarray(self.model.kinds(cell.micro_batch, tp))
        tables = table_bytes(graph, prefixes(at.size))
        n, room = at.size, self.types(tp)[kind].device.tensor_bytes
        depth = min(max(self.stages), n)
        in_flight = tuple(min(depth - stage, micro_batches) for stage in range(depth))
        # With two ranks, gradients stay whole between micro-batches, as in a pipeline. With one
        # micro-batch more than in flight, all of these are in memory together with all gradients.
        held = replace(
            cell,
            degrees=replace(cell.degrees, pp=2),
            zero_stage=cell.zero_stage if cell.degrees.dp > 1 else 0,
            global_batch=cell.degrees.dp * cell.micro_batch * (in_flight[0] + 1),
        )
        early = self.types(tp)[kind].device.type == "cpu"
        statics, loads = self._memory.moments(
            held,
            in_flight,
            over,
            chain.first_bytes[at][:, None] + tables,
            early=early,
            branched=chain.branched,
        )
        return PartitionProblem(
            kinds=kinds_by_cost(graph),
            strategies=tuple(self.model.strategies),
            schedule="1f1b",
            num_microbatches=micro_batches,
            costs=tuple(chain.block_costs(at, last=last) for last in (False, True)),
            slots=tuple(
                StageSlot(in_flight=kept, capacity_bytes=room, loads=load, costs=kept == 1)
                for kept, load in zip(in_flight, loads, strict=True)
            ),
            static_bytes=statics,
            tails_s=(np.zeros((n, n + 1)),),
            edge_bytes=edges(over, tables, branched=chain.branched),
            send_forward_s=np.zeros((depth, n)),
            send_backward_s=np.zeros((depth, n)),
        )

    # Messages and tails.

    def _crossing(self, cell: Cell) -> Array:
        """[n + 1] seconds of both messages over the cut before a block."""
        tp = cell.degrees.tp
        groups = [group[0] for kind in self.types(tp) for group in kind.groups]
        sizes = over_cuts(self.model.graph(cell.micro_batch, tp))[1:-1].tolist()
        if len(groups) < 2:
            return np.zeros(len(sizes) + 2)
        ends = (groups[0], groups[-1])
        one_way = {
            size: message_in_step("send", size, ends, self.model.cluster, sharing=tp).time_s
            for size in set(sizes)
        }
        return np.asarray([0.0, *(2 * one_way[size] for size in sizes), 0.0])

    def _price_tail(self, degrees: Degrees, zero_stage: int, kind: int) -> Array:
        """[n, n+1] seconds of a stage after its last backward.

        Gradients are exchanged with devices spread over the cluster. The first of them is the
        stage's own device, which determines the optimizer's time.
        """
        types = self.types(degrees.tp)
        groups = [group[0] for each in types for group in each.groups]
        own = types[kind].groups[0][0]
        spread = [groups[at * len(groups) // degrees.dp] for at in range(degrees.dp)]
        others = [index for index in spread if index != own]
        ends = (own, *others[len(others) - (degrees.dp - 1) :])

        cell = Cell(
            degrees=replace(degrees, pp=2),
            zero_stage=zero_stage,
            micro_batch=1,
            schedule="1f1b",
            global_batch=degrees.dp,
        )
        group = replace(self.model.group(cell, 0), devices=ends)
        shares = degrees.dp if zero_stage else 1

        def seconds(count: float, trained: float) -> float:
            held = Held(trained=(int(trained),), frozen=int(count - trained))
            return price_tail(held, group).total_s

        return elementwise(
            seconds,
            self._memory.parameters(degrees.tp, shares).count,
            self._memory.trained(degrees.tp, shares).count,
        )
