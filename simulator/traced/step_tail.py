"""Work of a rank once per step: gradient exchange, parameter exchange and the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from profiles.hardware.catalogue.device import Device
from profiles.hardware.catalogue.host import host_of
from profiles.model.graph import BlockRef, ModelGraph, parameter_name
from simulator.log_interval import total
from simulator.memory.data_group import DataGroup
from simulator.memory.held import GRADIENT_BUCKET_BYTES, Held, held_by_stages, padded_elements
from simulator.memory.host_offload import link_s, shard_step_s, shard_sum_s
from simulator.traced.cost import Cost
from simulator.traced.in_step import exchange_in_step, update_cost
from simulator.traced.op_cost import moved_cost
from simulator.training_run.fit.interval import UNFITTED_UNCERTAINTY
from simulator.values.plan import Plan
from simulator.values.prediction import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """Seconds after the last backward: exchange of gradients, then the optimizer."""

    exchange: Interval
    optimizer: Cost

    @property
    def total_s(self) -> float:
        return self.exchange.value + self.optimizer.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Tie:
    """A trained parameter on several pipeline ranks: its elements, their number of shards, and the
    first device of each rank."""

    elements: int
    devices: tuple[int, ...]


def ties_of(plan: Plan, pp_rank: int, graph: ModelGraph) -> tuple[Tie, ...]:
    """The parameters that a pipeline rank shares with others, whose gradients are summed."""
    degrees = plan.degrees
    if degrees.pp == 1 or not any(p.tied_to for kind in graph.kinds for p in kind.parameters):
        return ()
    sizes: dict[str, int] = {}
    holders: dict[str, dict[int, None]] = {}
    for rank in range(degrees.pp):
        for ref in chain.from_iterable(stages_of(plan, rank, graph)):
            for parameter in graph.kinds[ref.kind].parameters:
                if parameter.trainable:
                    name = parameter_name(ref, parameter)
                    sizes[name] = padded_elements(parameter.spec, plan.shares)
                    holders.setdefault(name, {})[degrees.rank(pp=rank)] = None
    return tuple(
        Tie(elements=sizes[name], devices=tuple(devices))
        for name, devices in holders.items()
        if len(devices) > 1 and degrees.rank(pp=pp_rank) in devices
    )


def stages_of(plan: Plan, pp_rank: int, graph: ModelGraph) -> list[tuple[BlockRef, ...]]:
    """The blocks of each of a pipeline rank's stages."""
    cuts = [plan.stages[stage] for stage in plan.stages_of(pp_rank)]
    return [graph.chain[cut.first_block : cut.last_block] for cut in cuts]


def price_tie(tie: Tie, group: DataGroup) -> Cost:
    """The cost of summing a tied parameter's gradients over its ranks; each sums a share if
    replicas shard gradients (executor/rank.py, `_sum_tied_gradients`). Offloaded gradients are
    copied to the device and back."""
    size = tie.elements * group.sizes.gradient_bytes / group.shards
    cost = _exchange(replace(group, devices=tie.devices), "all_reduce", size)
    if not group.offloaded:
        return cost
    return cost.plus(2.0 * link_s(host_of(group.device.name), tie.elements / group.shards))


def price_shared(elements: int, group: DataGroup) -> Cost:
    """The cost of summing over tp the gradients of whole parameters that each rank applies to a
    share of features or tokens (executor/parallelize.py, `sum_shared_gradients`); each rank sums a
    share if replicas shard gradients."""
    first = group.devices[0]
    ranks = tuple(range(first, first + group.degrees.tp))
    size = elements * group.sizes.gradient_bytes / group.shards
    return exchange_in_step("all_reduce", size, ranks, group.cluster)


def price_tail(held: Held, group: DataGroup, ties: Sequence[Tie] = ()) -> Tail:
    """The tail of a rank with these parameters; `ties` are shared with other pipeline ranks.

    Gradients are sent in the last backward, but priced after it. ZeRO 0: all-reduce. ZeRO 1, and 2
    and 3 in a pipeline: reduce-scatter and, except for 3, one gather of all parameters (including
    frozen ones) for the next step. Without a pipeline, 2 and 3 sum gradients in each backward
    (stage_cost.gather_seconds). The optimizer's time includes the constant time of a step
    (`step_ms`). On a CPU nothing overlaps: buckets are filled, summed, divided and copied back, and
    under mixed precision the compute copies of unsharded trained weights are updated. An optimizer
    in host memory includes the copies of shards once per step (host_offload.py).
    """
    n = float(sum(held.trained))
    sizes, device, stack = group.sizes, group.device, group.stack
    exchanges: list[Cost] = []
    gradient = n * sizes.gradient_bytes
    if group.once_per_step:
        if n:
            summed = n + held.resummed * (group.num_microbatches > 1)
            exchanges += [
                exchange_in_step(operation, size, devices, group.cluster, sharing=sharing)
                for operation, size, devices, sharing in group.gradient_sum(
                    summed * sizes.gradient_bytes
                )
            ]
        if not group.gathers:
            weights = (n + held.frozen + held.again) * sizes.compute_bytes
            within = replace(group, devices=group.shard_devices)
            exchanges.append(_exchange(within, "all_gather", weights))
    elif group.degrees.dp > 1 and group.zero_stage == 0 and device.type == "cpu":
        for size, count in exchange_buckets(gradient):
            copies = _moved(size, device, "copy", "elementwise", "copy")
            exchanges += [_exchange(group, "all_reduce", size), *copies] * count
    elif group.degrees.dp > 1 and group.zero_stage == 0 and n:
        exchanges.append(_exchange(group, "all_reduce", gradient))
    if group.sharded and held.single:
        # In fp32, each with a flag of whether the replica has it (replica_gradients.py).
        exchanges.append(_exchange(group, "all_reduce", 2 * 4.0 * held.single))
    exchanges += [price_tie(tie, group) for tie in ties]
    if held.summed:
        exchanges.append(price_shared(held.summed, group))
    traffic = stack.optimizer_traffic_bytes.of(group.workload.optimizer)
    if group.offloaded:
        update = _host_update(n / group.shards, group)
    elif device.type == "cpu":
        # Torch updates one parameter after the other there.
        costs = [moved_cost("optimizer", traffic * c / group.shards, device) for c in held.trained]
        if sizes.working_copy_bytes and not group.sharded:
            copied = sizes.parameter_bytes + sizes.working_copy_bytes
            costs += [moved_cost("copy", copied * c, device) for c in held.trained]
        update = _in_turn(costs)
    else:
        kernels = stack.optimizer_kernels * len(held.trained)
        update = update_cost(traffic * n / group.shards, kernels, stack.software, device)
    return Tail(exchange=total(*exchanges), optimizer=update)


def _host_update(elements: float, group: DataGroup) -> Cost:
    """The cost of an optimizer in host memory on a shard of `elements`, including constant work."""
    host = host_of(group.device.name)
    sums = group.num_microbatches if group.gathers and not group.pipelined else 0
    traffic = group.stack.optimizer_traffic_bytes.of(group.workload.optimizer)
    seconds = shard_step_s(host, elements, traffic=traffic, copies=(not group.gathers) + (not sums))
    seconds += max(0, sums - 1) * shard_sum_s(host, elements)
    fixed = update_cost(0.0, 0, group.stack.software, group.device).value
    return Cost(
        value=seconds + fixed,
        low=seconds * (1.0 - UNFITTED_UNCERTAINTY) + fixed,
        high=seconds * (1.0 + UNFITTED_UNCERTAINTY) + fixed,
        method="assumed",
        source=f"host {host.name}, its memory's rate",
    )


def _exchange(group: DataGroup, operation: str, size_bytes: float) -> Cost:
    return exchange_in_step(
        operation, size_bytes, group.devices, group.cluster, sharing=group.degrees.tp
    )


def _in_turn(costs: Sequence[Cost]) -> Cost:
    """The sum of costs, on the basis of the first."""
    whole = total(*costs)
    method, source = (costs[0].method, costs[0].source) if costs else ("assumed", "")
    return Cost(value=whole.value, low=whole.low, high=whole.high, method=method, source=source)


def exchange_buckets(total_bytes: float) -> list[tuple[float, int]]:
    """Sizes of the buckets for an exchange of `total_bytes`, with the number of each."""
    full, rest = divmod(total_bytes, GRADIENT_BUCKET_BYTES)
    found = [(float(GRADIENT_BUCKET_BYTES), int(full)), (rest, 1)]
    return [(size, count) for size, count in found if size and count]


def _moved(size: float, device: Device, *families: str) -> list[Cost]:
    """The cost of passes over a bucket: filling it, dividing by the replicas, and copying back.
    Curves of op families are used: they are measured far beyond the caches, unlike `cat` and
    `copy_`."""
    return [moved_cost(family, 2 * size, device) for family in families]


def tail_of(plan: Plan, pp_rank: int, graph: ModelGraph, group: DataGroup) -> Tail:
    """The tail of a pipeline rank of a plan; `group` are its replicas."""
    held = held_by_stages(graph, stages_of(plan, pp_rank, graph), plan.shares)
    return price_tail(held, group, ties_of(plan, pp_rank, graph))
