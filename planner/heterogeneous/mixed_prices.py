"""The times of every stage on every type of device, from a traced model and a cluster.

A "device" of the abstract problem (`mixed_stages`) is a tensor-parallel group inside a node. Times,
memory and tails come from the functions that price the ordinary search's cells, so that a split's
figures are those of its prediction, but for what is not known before devices are numbered: whether
messages and the exchange of gradients cross the widest level of the cluster or the innermost
(`Reach`). Every stage is taken to have more micro-batches than are in flight: the safe side.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from planner.cell import Cell
from planner.chain.problem import Array, Load
from planner.costs.cell_memory import CellMemory, edges
from planner.costs.priced_model import ChainCosts, PricedModel, crossings_of, of_each
from planner.heterogeneous.mixed_stages import StageTables, ranged
from profiles.document import content_hash
from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import Device, twin_type
from simulator.memory.held import Held
from simulator.traced.comm_cost import price_collective
from simulator.values.degrees import Degrees
from simulator.values.plan import Recompute

_QUARTERS = (1, 2, 3)  # of the blocks that take the second of two recompute kinds


class Reach(StrEnum):
    """How far messages and exchanges go: over the widest level, between neighbours, or, for lower
    bounds, nowhere."""

    FAR = "far"
    NEAR = "near"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceType:
    """A type of device of a cluster. groups  its tensor-parallel groups, node by node."""

    device: Device
    groups: tuple[tuple[int, ...], ...]


def device_types(cluster: Cluster, tp: int) -> tuple[DeviceType, ...]:
    """The types that have nodes of `tp` devices or more, as the cluster lists them.

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
    """Raises InputError where a type of device has no rate for the precision."""
    for group in cluster.groups:
        rates = set(group.device.peak_flop_per_s)
        if {dtype, twin_type(dtype)} & rates:
            continue
        raise InputError(
            f"device {group.device.name} of cluster {cluster.name} has no rate for {dtype} "
            f"(--precision {precision}); it has rates for {', '.join(sorted(rates))}. Take its "
            "[[groups]] out of the cluster file, or choose a precision that all types have"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedKey:
    """What is fixed while stages, shares and devices are chosen.

    degrees   tp, and dp: the number of replicas, over which ZeRO shards
    """

    degrees: Degrees
    micro_batch: int
    zero_stage: int


class MixedPrices:
    """Prices of keys; what they share is priced once.

    stages  how many a pipeline may have
    """

    def __init__(self, model: PricedModel, stages: tuple[int, ...]) -> None:
        self.model, self.stages = model, stages
        self.cluster_hash = content_hash(model.cluster)
        self._memory = CellMemory(model)
        self._chains: dict[tuple[int, int, str], ChainCosts] = {}
        self._types: dict[int, tuple[DeviceType, ...]] = {}
        self._tails: dict[tuple[object, ...], Array] = {}
        self._fastest: dict[tuple[int, int], tuple[float, ...]] = {}
        self._fits: dict[tuple[object, ...], tuple[Array, Array]] = {}

    def types(self, tp: int) -> tuple[DeviceType, ...]:
        """`device_types` of the cluster."""
        if tp not in self._types:
            self._types[tp] = device_types(self.model.cluster, tp)
        return self._types[tp]

    def fastest_s(self, tp: int, micro_batch: int) -> tuple[float, ...]:
        """Per type, seconds of the whole chain with whatever recompute kind takes least."""
        if (tp, micro_batch) not in self._fastest:
            kinds = self.model.kinds(micro_batch, tp)
            chains = [self._chain(tp, micro_batch, kind) for kind in self.types(tp)]
            self._fastest[tp, micro_batch] = tuple(
                float((chain.forward_s + chain.backward_s.min(axis=1))[kinds].sum())
                for chain in chains
            )
        return self._fastest[tp, micro_batch]

    def tables(self, key: MixedKey, reach: Reach) -> StageTables:
        """The times of every stage that fits; none of Reach.NONE is above a prediction's."""
        graph = self.model.graph(key.micro_batch, key.degrees.tp)
        n = len(graph.chain)
        types = self.types(key.degrees.tp)
        depth = min(max(self.stages), n)
        crossing = self._crossing(key, reach)
        chosen = [self._fitting(key, kind, k) for kind in types for k in range(1, depth + 1)]
        rows = [np.where(np.isfinite(t), t + crossing[None, :], np.inf) for t, _ in chosen]
        return StageTables(
            counts=tuple(len(kind.groups) for kind in types),
            seconds=tuple(tuple(rows[at * depth : (at + 1) * depth]) for at in range(len(types))),
            tails_s=tuple(self._tail(key, at, reach) for at in range(len(types))),
            stages=tuple(count for count in self.stages if count <= n),
            num_microbatches=self.model.workload.global_batch // key.micro_batch,
        )

    def recompute(
        self, key: MixedKey, kind: int, from_end: int, first: int, last: int
    ) -> tuple[Recompute, ...]:
        """What the blocks [first, last) of a stage compute again in the fastest way that fits."""
        _, pattern = self._fitting(key, self.types(key.degrees.tp)[kind], from_end)
        chosen = self._patterns(len(self.model.graph(key.micro_batch, key.degrees.tp).chain))
        return tuple(
            self.model.strategies[index] for index in chosen[int(pattern[first, last])][first:last]
        )

    # Times and memory.

    def _chain(self, tp: int, micro_batch: int, kind: DeviceType) -> ChainCosts:
        key = (tp, micro_batch, kind.device.name)
        if key not in self._chains:
            self._chains[key] = self.model.chain(micro_batch, kind.groups[0])
        return self._chains[key]

    def _patterns(self, blocks: int) -> tuple[tuple[int, ...], ...]:
        """Strategies of the chain's blocks: one for all, or two of them in quarters."""
        count = len(self.model.strategies)
        found = [(strategy,) * blocks for strategy in range(count)]
        for cheap, dear in itertools.combinations(range(count), 2):
            for quarters in _QUARTERS:
                found.append(
                    tuple(dear if at * quarters % 4 < quarters else cheap for at in range(blocks))
                )
        return tuple(found)

    def _fitting(self, key: MixedKey, kind: DeviceType, from_end: int) -> tuple[Array, Array]:
        """[n, n+1] each: seconds of the fastest pattern that fits a stage, and which that is."""
        degrees = key.degrees
        in_flight = min(from_end, self.model.workload.global_batch // key.micro_batch)
        shared = degrees.dp if key.zero_stage else 1
        name = (degrees.tp, key.micro_batch, key.zero_stage, shared, kind.device.name, in_flight)
        if name not in self._fits:
            chain = self._chain(degrees.tp, key.micro_batch, kind)
            moments = self._moments(key, chain, in_flight)
            n = moments.edge_bytes.shape[0]
            best, which = np.full((n, n + 1), np.inf), np.zeros((n, n + 1))
            for number, pattern in enumerate(self._patterns(n)):
                work = self._work(key, chain, pattern)
                needed = moments.most_bytes(work)
                better = (needed <= kind.device.usable_bytes) & (work.seconds < best)
                best = np.where(better, work.seconds, best)
                which = np.where(better, number, which)
            self._fits[name] = (best, which)
        return self._fits[name]

    def _work(self, key: MixedKey, chain: ChainCosts, pattern: tuple[int, ...]) -> _Work:
        kinds = self.model.kinds(key.micro_batch, key.degrees.tp)
        at = (kinds, list(pattern))
        saved = np.ceil(chain.kept_bytes[at])
        outputs = chain.output_bytes[kinds]
        backward, forward = chain.backward_transient_bytes[at], chain.forward_transient_bytes[at]
        # The last stage sends nothing on, so its forward peak may count for more. With branches a
        # block's outputs are among what it keeps.
        least = outputs if chain.branched else float(outputs[:-1].min(initial=0.0))
        risen = _rises(saved, np.ceil(np.maximum(backward, forward - least)))
        if not chain.branched:
            risen[:, -1] = _rises(saved, np.ceil(np.maximum(backward, forward)))[:, -1]
        return _Work(
            seconds=ranged(chain.forward_s[kinds] + chain.backward_s[at]),
            saved_bytes=ranged(saved),
            rise_bytes=risen,
        )

    def _moments(self, key: MixedKey, chain: ChainCosts, in_flight: int) -> _Moments:
        kinds = self.model.kinds(key.micro_batch, key.degrees.tp)
        over = crossings_of(self.model.graph(key.micro_batch, key.degrees.tp))
        arrives, leaves = over.arrives, over.leaves
        cell = _cell(key, in_flight)
        statics, (loads,) = self._memory.moments(
            cell, (in_flight,), arrives, leaves, chain.first_bytes[kinds]
        )
        return _Moments(
            statics=statics,
            loads=loads,
            edge_bytes=edges(
                arrives,
                leaves,
                branched=chain.branched,
            ),
        )

    # Messages and tails.

    def _crossing(self, key: MixedKey, reach: Reach) -> Array:
        """[n + 1] seconds of both messages over the cut before a block."""
        degrees = key.degrees
        groups = [group[0] for kind in self.types(degrees.tp) for group in kind.groups]
        kinds = self.model.kinds(key.micro_batch, degrees.tp)
        if reach is Reach.NONE or len(groups) < 2:
            return np.zeros(len(kinds) + 1)
        ends = (groups[0], groups[-1 if reach is Reach.FAR else 1])
        sizes = crossings_of(self.model.graph(key.micro_batch, degrees.tp)).arrives
        one_way = {
            size: price_collective(
                "send", size, ends, self.model.cluster, sharing=degrees.tp
            ).time_s
            for size in set(sizes[1:].tolist())
        }
        return np.asarray([0.0, *(2 * one_way[size] for size in sizes[1:].tolist()), 0.0])

    def _exchanging(self, key: MixedKey, kind: int, reach: Reach) -> tuple[int, ...]:
        """Devices that exchange gradients, one of the type first: that one decides about the
        optimizer. Far: spread over all; near: those that follow."""
        degrees = key.degrees
        types = self.types(degrees.tp)
        groups = [group[0] for each in types for group in each.groups]
        own = types[kind].groups[0][0]
        if reach is Reach.FAR:
            spread = [groups[at * len(groups) // degrees.dp] for at in range(degrees.dp)]
            others = [index for index in spread if index != own][-(degrees.dp - 1) :]
            return (own, *(others if degrees.dp > 1 else ()))
        first = groups.index(own)
        return tuple(groups[(first + at) % len(groups)] for at in range(degrees.dp))

    def _tail(self, key: MixedKey, kind: int, reach: Reach) -> Array:
        """[n, n+1] seconds of a stage after its last backward."""
        degrees = key.degrees
        name = (degrees.tp, key.zero_stage, degrees.dp, kind, reach)
        if reach is Reach.NONE:
            blocks = len(self.model.kinds(key.micro_batch, degrees.tp))
            return np.zeros((blocks, blocks + 1))
        if name not in self._tails:
            ends = self._exchanging(key, kind, reach)

            def seconds(count: float, trained: float) -> float:
                held = Held(trained=(int(trained),), frozen=int(count - trained))
                tail = self.model.tail(
                    held, ends, zero_stage=key.zero_stage, tp=degrees.tp, pipelined=True
                )
                return tail.total_s

            self._tails[name] = of_each(
                seconds,
                self._memory.parameters(degrees.tp).count,
                self._memory.trained(degrees.tp).count,
            )
        return self._tails[name]


def _cell(key: MixedKey, in_flight: int) -> Cell:
    """A cell whose stages hold what the key's do.

    Two ranks: parameters stay whole between micro-batches, as under a pipeline; one micro-batch
    more than in flight, so that all are in flight beside all gradients.
    """
    return Cell(
        degrees=replace(key.degrees, pp=2),
        zero_stage=key.zero_stage if key.degrees.dp > 1 else 0,
        micro_batch=key.micro_batch,
        schedule="1f1b",
        global_batch=key.degrees.dp * key.micro_batch * (in_flight + 1),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """[n, n+1] each, of blocks [i, j) under a pattern: seconds, bytes saved per micro-batch, and
    the rise above all that is saved while one of the blocks runs."""

    seconds: Array
    saved_bytes: Array
    rise_bytes: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moments:
    """When a stage may need most (`CellMemory.moments`), and its edges (`cell_memory.edges`)."""

    statics: tuple[Array, ...]
    loads: tuple[Load, ...]
    edge_bytes: Array

    def most_bytes(self, work: _Work) -> Array:
        """[n, n+1] bytes of blocks [i, j) at the moment at which they need most."""
        kept = work.saved_bytes + self.edge_bytes
        return np.asarray(
            np.max(
                [
                    self.statics[load.static]
                    + (load.in_flight * kept if load.in_flight else 0.0)
                    + (work.rise_bytes if load.rises else 0.0)
                    for load in self.loads
                ],
                axis=0,
            )
        )


def _rises(saved: Array, transient: Array) -> Array:
    """[n, n+1] the highest of blocks [i, j): the transient of a block less what blocks behind it
    saved, which is gone when its backward runs (planner.chain.problem.BlockCosts)."""
    n = len(saved)
    found = np.zeros((n, n + 1))
    for block in range(n):
        before = np.maximum(found[: block + 1, block] - saved[block], 0.0)
        found[: block + 1, block + 1] = np.maximum(before, transient[block])
    return found
