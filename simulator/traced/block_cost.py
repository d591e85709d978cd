"""Cost of one block on one device, for each kind of recomputation.

Times are per micro-batch, of kernels inside a training step (simulator/traced/in_step.py); backward
includes recomputation. If the block itself was measured on the device (BlockPoint of equal kind),
its time is the measured one, and op prices only divide it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields

from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import ActionOverhead, BlockPoint, Device
from profiles.model.graph import Block, Op, OpKind, Phase, SavedTensor
from simulator.log_interval import total
from simulator.memory.held import BlockBytes
from simulator.traced.cost import Cost
from simulator.traced.in_step import (
    host_of,
    in_step,
    message_in_step,
    paced,
    prices_in_step,
    starts,
)
from simulator.traced.kernel_errors import KindSeconds, kind_seconds
from simulator.traced.op_cost import pricer_of
from simulator.training_run.framework.executor_states import Software
from simulator.values.plan import Recompute
from simulator.values.prediction import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCost(BlockBytes):
    """Seconds per micro-batch and bytes of a block on one rank.

    forward, backward  work on the device, without tensor-parallel communication
    recompute_s        part of backward: the repeated forward
    launch_s           part of forward and backward: ops that only wait for their launch
    runtime_s          part of forward and backward: the pipeline runtime around the block
                       (BlockPoint); 0 if not measured in a pipeline
    action             measured overhead of whole actions; blocks have shares of it
    tp_forward_s, tp_backward_s  exposed tensor-parallel communication (backward: including the
                                 recomputed forward)
    methods            (name, method, source, seconds) behind the times
    by_kind            forward and backward by kind of kernel; empty for a measured block
    """

    forward: Interval
    backward: Interval
    recompute_s: float
    launch_s: float
    runtime_s: float
    action: ActionOverhead | None
    tp_forward_s: float
    tp_backward_s: float
    methods: tuple[tuple[str, str, str, float], ...]
    by_kind: KindSeconds = field(default_factory=dict)

    @property
    def work_s(self) -> float:
        """Forward and backward without recomputation."""
        return self.forward.value + self.backward.value - self.recompute_s


@functools.lru_cache(maxsize=100_000)
def price_block(
    block: Block,
    *,
    recompute: Recompute,
    devices: tuple[int, ...],
    cluster: Cluster,
    software: Software = Software.EXECUTOR,
) -> BlockCost:
    """The block's cost on the tensor-parallel group `devices` (device numbers in the cluster).

    software  software that launches the kernels

    A block without an attention submodule treats recompute = attention as none. Raises InputError
    if the device has no rate for the block's data type.
    """
    device = cluster.device_at(devices[0])
    kind = _with_attention(recompute, block)
    costs = _op_costs(block, device, software)
    forward_ops, backward_ops = costs[: len(block.forward_ops)], costs[len(block.forward_ops) :]
    again = [forward_ops[index] for index in recomputed_ops(block, kind)]
    point = measured_block(device, block)
    modules_s = pricer_of(device).module_s() * _module_calls(block.forward_ops)
    forward = _sum(forward_ops).plus(modules_s)
    accumulated_s = _accumulated_s(block, device) if software is Software.EXECUTOR else 0.0
    backward = _sum(backward_ops).plus(accumulated_s)
    recomputed = _sum(again)
    if point is not None:
        share = recomputed.value / forward.value if forward.value else 0.0
        forward = _measured(point.forward_s, point)
        backward = _measured(point.backward_s, point)
        own_s = max(0.0, point.forward_s - point.forward_runtime_s)
        recomputed = forward.scaled(share * own_s / point.forward_s if point.forward_s else 0.0)
    if kind is not Recompute.NONE:
        # The forward's ops too, here with the cost of the choice.
        recomputed = recomputed.plus(pricer_of(device).checkpoint_s())
    modules = frozenset(op.module for op, _ in again if op.matmul is not None)
    tp_forward, tp_again, tp_backward = _tp_seconds(block, modules, devices, cluster)
    waited_s = 0.0
    if point is None:
        # The host launches a pass's kernels while the device works on them and on its messages.
        dispatch = in_step(device).tensor_dispatch if len(devices) > 1 else 1.0
        host = host_of(software, device)

        def begun(
            work: Interval, ops: list[tuple[Op, Cost]], us: float, message_s: float
        ) -> Interval:
            kernels, views = starts([op for op, _ in ops])
            host_s = 1e-6 * dispatch * (kernels * us + views * host.view_us)
            return paced(work.plus(message_s), host_s, device).plus(-message_s)

        busy_s = forward.value + backward.value + recomputed.value
        forward = begun(forward, forward_ops, host.forward_us, tp_forward)
        backward = begun(backward, backward_ops, host.backward_us, tp_backward)
        recomputed = begun(recomputed, again, host.forward_us, tp_again)
        waited_s = forward.value + backward.value + recomputed.value - busy_s
    held = block_bytes(block, recompute)
    return BlockCost(
        forward=forward,
        backward=total(backward, recomputed),
        recompute_s=recomputed.value,
        launch_s=waited_s
        + _launch_share(forward_ops, forward)
        + _launch_share(backward_ops, backward),
        action=point.action if point else None,
        runtime_s=point.forward_runtime_s + point.backward_runtime_s if point else 0.0,
        tp_forward_s=tp_forward,
        tp_backward_s=tp_backward + tp_again,
        methods=_methods([*forward_ops, *backward_ops, *again], point, block),
        by_kind={} if point else kind_seconds([*forward_ops, *backward_ops, *again]),
        **{each.name: getattr(held, each.name) for each in fields(held)},
    )


@functools.lru_cache(maxsize=1)  # the kinds of recomputation of a block follow each other
def _op_costs(block: Block, device: Device, software: Software) -> list[tuple[Op, Cost]]:
    ops = (*block.forward_ops, *block.backward_ops)
    return list(zip(ops, prices_in_step(ops, device, software), strict=True))


def _with_attention(recompute: Recompute, block: Block) -> Recompute:
    """The kind of recomputation; `none` instead of `attention` if the block has no attention."""
    alone = recompute is Recompute.ATTENTION and not block.attention_module
    return Recompute.NONE if alone else recompute


def block_bytes(block: Block, recompute: Recompute) -> BlockBytes:
    """The block's bytes for a kind of recomputation, as in `price_block`."""
    inputs = float(sum(spec.memory_bytes for spec in block.inputs))
    outputs = float(sum(spec.memory_bytes for spec in block.outputs))
    saved_none = float(block.saved_bytes - block.lent_bytes)
    saved = _saved(block, _with_attention(recompute, block))
    # During recomputation, the tensors freed by the forward exist again.
    back = saved_none - saved
    rise = float(block.forward_peak_bytes - block.saved_bytes)
    if back:
        # The forward frees these tensors as soon as no op needs them; it has at least the tensors
        # of its largest op at once.
        sizes = (op.read_bytes + op.written_bytes for op in block.forward_ops if _weightless(op))
        rise = max(rise, max(sizes, default=0) - saved)
    return BlockBytes(
        saved_bytes=saved,
        weight_bytes=_for_weights(block, inputs + saved),
        input_bytes=inputs,
        output_bytes=outputs,
        forward_transient_bytes=max(0.0, rise) + outputs,
        backward_transient_bytes=block.backward_peak_bytes + back,
        parameters=block.parameters,
        freed_input_bytes=0.0 if recompute is Recompute.FULL else float(block.freed_input_bytes),
        table_bytes=float(block.table_bytes),
    )


def _weightless(op: Op) -> bool:
    return op.matmul is None and op.conv is None


def measured_block(device: Device, block: Block) -> BlockPoint | None:
    """The measurement of this kind of block on the device, if there is one."""
    return _points(device).get(block.kind)


@functools.cache
def _points(device: Device) -> dict[str, BlockPoint]:
    found = device.measurements.blocks if device.measurements is not None else ()
    return {point.kind: point for point in found}


def _measured(time_s: float, point: BlockPoint) -> Interval:
    width = max(0.03, point.spread)
    return Interval(value=time_s, low=time_s * max(0.0, 1 - width), high=time_s * (1 + width))


def _inside(path: str, module: str) -> bool:
    return path == module or path.startswith(f"{module}.")


# Ops whose backward needs none of their inputs or outputs, and ops that keep an output: recomputing
# ends before the last op that keeps only inputs, and after the last that keeps an output.
# Source: derivatives.yaml of torch 2.13.
_KEEPS_NOTHING = ("add", "sub", "neg", "clone", "copy", "cat", "sum", "mean", "fill", "slice")
_KEEPS_OUTPUT = ("softmax", "sigmoid", "tanh", "exp", "sqrt", "relu", "norm", "attention", "loss")


def recomputed_ops(block: Block, kind: Recompute) -> tuple[int, ...]:
    """Indices of the forward ops that run again in backward.

    Checkpointing stops as soon as everything that backward needs is there again (early stop of
    torch.utils.checkpoint, on by default): a layer's last product is not repeated, because only
    its inputs are needed.
    """
    if _with_attention(kind, block) is Recompute.NONE:
        return ()
    inside = [
        index
        for index, op in enumerate(block.forward_ops[: _loss_start(block)])
        if kind is Recompute.FULL or _inside(op.module, block.attention_module)
    ]
    while inside:
        op = block.forward_ops[inside[-1]]
        if any(word in op.name for word in _KEEPS_OUTPUT):
            break
        inside.pop()
        idle = op.kind is OpKind.VIEW or any(word in op.name for word in _KEEPS_NOTHING)
        if not idle:
            break
    return tuple(inside)


def _loss_start(block: Block) -> int:
    """Index of the first op of the loss, which is outside of modules and therefore not
    checkpointed.

    In the last block: the first op after the last module, or after the last product if modules have
    no names; in other blocks there is no loss.
    """
    if block.outputs:
        return len(block.forward_ops)
    named = [
        index
        for index, op in enumerate(block.forward_ops)
        if op.module or op.kind in (OpKind.MATMUL, OpKind.CONV, OpKind.ATTENTION)
    ]
    return named[-1] + 1 if named else len(block.forward_ops)


def _saved_by_loss(block: Block) -> float:
    """Bytes of the saved tensors that the loss made, identified by the order and size of writes."""
    start, position, total = _loss_start(block), 0, 0.0
    ops = block.forward_ops
    for tensor in block.saved:
        for index in range(position, len(ops)):
            same = ops[index].module == tensor.module and ops[index].kind is not OpKind.VIEW
            if same and ops[index].written_bytes == tensor.memory_bytes:
                position = index + 1
                total += tensor.memory_bytes if index >= start else 0
                break
    return total


def _saved(block: Block, kind: Recompute) -> float:
    """Bytes kept for backward, without the inputs of the block."""
    if kind is Recompute.FULL:
        return _saved_by_loss(block)
    if kind is Recompute.NONE:
        return float(block.saved_bytes - block.lent_bytes)
    outside: Iterable[SavedTensor] = (
        t for t in block.saved if not _inside(t.module, block.attention_module)
    )
    return float(sum(t.memory_bytes for t in outside) + block.attention_input_bytes)


def _for_weights(block: Block, kept: float) -> float:
    if block.weight_input_bytes is None or block.weight_output_bytes is None:
        return kept
    return float(block.weight_input_bytes + block.weight_output_bytes)


def _sum(costs: list[tuple[Op, Cost]]) -> Interval:
    """Costs of consecutive ops, with fully correlated errors (kernel_errors.py has a stage's)."""
    return total(*(cost for _, cost in costs))


def _module_calls(ops: Sequence[Op]) -> int:
    """Number of modules entered while the ops run."""
    count, before = 0, list[str]()
    for op in ops:
        path = op.module.split(".") if op.module else []
        shared = next(
            (i for i, (a, b) in enumerate(zip(path, before, strict=False)) if a != b),
            min(len(path), len(before)),
        )
        count += len(path) - shared
        before = path
    return count


def _accumulated_s(block: Block, device: Device) -> float:
    """Seconds for adding the gradients of a micro-batch to the previous sum.

    The first micro-batch of a step adds nothing; it is priced like the others.
    """
    trained = [p.spec for p in block.parameters if p.trainable and not p.tied_to]
    if device.type == "cpu":
        sizes = (3.0 * spec.memory_bytes for spec in trained)
        return sum(pricer_of(device).move("add_", size).time_s for size in sizes)
    known = in_step(device)
    # Neutral: measurements include it.
    moved = known.accumulation_bytes * sum(spec.num_elements for spec in trained)
    return known.level * known.optimizer * moved / pricer_of(device).light.bandwidth


def _launch_share(costs: list[tuple[Op, Cost]], whole: Interval) -> float:
    total = sum(cost.time_s for _, cost in costs)
    if total <= 0:
        return 0.0
    return whole.value * sum(c.time_s for _, c in costs if c.launch_bound) / total


def _tp_seconds(
    block: Block, again_in: frozenset[str], devices: tuple[int, ...], cluster: Cluster
) -> tuple[float, float, float]:
    """Seconds of tensor-parallel communication: forward, recomputed forward, backward.

    again_in  modules whose products run again, with their reductions
    """
    forward = again = backward = 0.0
    exposed = in_step(cluster.device_at(devices[0])).tensor_exposed
    for c in block.collectives:
        cost = message_in_step(c.operation, float(c.size_bytes), devices, cluster)
        if c.phase is Phase.BACKWARD:
            backward += exposed * cost.time_s
            continue
        forward += exposed * cost.time_s
        if c.module in again_in:
            again += exposed * cost.time_s
    return forward, again, backward


def _methods(
    costs: list[tuple[Op, Cost]], point: BlockPoint | None, block: Block
) -> tuple[tuple[str, str, str, float], ...]:
    if point is not None:
        seconds = point.forward_s + point.backward_s
        source = f"{point.sample_count} samples of the whole block on this machine"
        return ((f"block {block.label}", "measured", source, seconds),)
    totals: dict[tuple[str, str, str], float] = {}
    for op, cost in costs:
        key = (str(op.kind.value), cost.method, cost.source)
        totals[key] = totals.get(key, 0.0) + cost.time_s
    return tuple((*key, seconds) for key, seconds in sorted(totals.items()))
