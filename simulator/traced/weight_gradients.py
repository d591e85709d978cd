"""The part of a block's backward that computes weight gradients (`W`); the rest is `I`."""

from __future__ import annotations

import functools
from collections import Counter

from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.graph import (
    DEFERRED_PRODUCTS,
    DTYPE_BYTES,
    Block,
    ModelGraph,
    Op,
    OpKind,
    Parameter,
)
from profiles.model.tied_gradients import pipeline_kinds
from simulator.schedules.schedule import schedule_kind
from simulator.traced.block_cost import measured_block, price_block
from simulator.traced.in_step import prices_in_step
from simulator.values.plan import Plan, Recompute


def weight_gradient_ops(block: Block) -> dict[int, float]:
    """Index of a backward op with gradients of the block's parameters -> its share of work for only
    these."""
    uses = _uses(block)
    convolved = _convolutions(block)
    found = {}
    for index, op in enumerate(block.backward_ops):
        if op.kind is OpKind.CONV:
            forward_flop = convolved.get(op.module, 0)
            if forward_flop and op.work_flop:
                found[index] = min(1.0, forward_flop / op.work_flop)
            continue
        for parameter in block.parameters:
            if uses[parameter.name] and _module(parameter) == op.module and _makes(op, parameter):
                uses[parameter.name] -= 1
                found[index] = 1.0
                break
    return found


@functools.lru_cache(maxsize=100_000)
def weight_gradient_s(block: Block, *, devices: tuple[int, ...], cluster: Cluster) -> float:
    """Seconds per micro-batch of the block's W on the tensor-parallel group `devices`.

    The measured share of the backward as in `price_block`, otherwise the share of its ops in the
    backward. Raises InputError if the device has no rate.
    """
    device = cluster.device_at(devices[0])
    whole = price_block(block, recompute=Recompute.NONE, devices=devices, cluster=cluster)
    point = measured_block(device, block)
    if point is not None and point.weight_share is not None:
        return point.weight_share * whole.backward.value
    times = [cost.time_s for cost in prices_in_step(block.backward_ops, device)]
    total_s = sum(times)
    if total_s <= 0.0:
        return 0.0
    share = sum(part * times[index] for index, part in weight_gradient_ops(block).items()) / total_s
    return share * whole.backward.value


def stage_weight_s(plan: Plan, stage: int, graph: ModelGraph, cluster: Cluster) -> float:
    """Seconds per micro-batch of a stage's W; 0 if the schedule does not split the backward."""
    if not schedule_kind(plan.schedule).splits_backward:
        return 0.0
    cut = plan.stages[stage]
    devices = plan.degrees.group("tp", pp=plan.pp_rank_of(stage))
    refs = graph.chain[cut.first_block : cut.last_block]
    kinds = pipeline_kinds(graph)
    return sum(weight_gradient_s(kinds[ref.kind], devices=devices, cluster=cluster) for ref in refs)


def _uses(block: Block) -> Counter[str]:
    """Largest number of gradients of each trainable parameter in W: one per forward product, one
    for a parameter without any; for a vector, one if its module has a product."""
    found: Counter[str] = Counter()
    with_products = {op.module for op in block.forward_ops if op.name in DEFERRED_PRODUCTS}
    for parameter in block.parameters:
        if not parameter.trainable:
            continue
        if len(parameter.spec.shape) == 1:
            found[parameter.name] = int(_module(parameter) in with_products)
            continue
        sides = _sides(parameter)
        products = sum(
            op.module == _module(parameter)
            and op.matmul is not None
            and tuple(sorted((op.matmul.k, op.matmul.n))) == sides
            for op in block.forward_ops
        )
        found[parameter.name] = max(1, products)
    return found


def _convolutions(block: Block) -> dict[str, int]:
    """Module -> flop of its forward convolutions with trainable weights."""
    trained = {_module(p) for p in block.parameters if p.trainable}
    found: Counter[str] = Counter()
    for op in block.forward_ops:
        if op.kind is OpKind.CONV and op.module in trained:
            found[op.module] += op.work_flop
    return found


def _makes(op: Op, parameter: Parameter) -> bool:
    """Whether a backward op of the parameter's module may compute its gradient."""
    if "embedding" in op.name:
        return True
    if op.written_bytes != parameter.spec.num_elements * DTYPE_BYTES[op.dtype]:
        return False
    if op.kind is OpKind.MATMUL and op.matmul is not None:
        sides = tuple(sorted((op.matmul.m, op.matmul.n)))
        return op.name in DEFERRED_PRODUCTS and sides == _sides(parameter)
    return len(parameter.spec.shape) == 1 and op.name.endswith("sum")


def _sides(parameter: Parameter) -> tuple[int, ...]:
    return tuple(sorted(parameter.spec.shape[-2:]))


def _module(parameter: Parameter) -> str:
    return parameter.name.rpartition(".")[0]
