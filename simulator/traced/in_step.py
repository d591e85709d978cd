"""Kernel and message times inside a step of our executor (not in isolation).

Kernel tables are measured one kernel at a time on a cool device. In a step matmuls run back to back
under the power limit, memory-bound kernels find no cache, and messages share the device with them.
On accelerators, isolated times are converted by the same coefficients and formulas as for layouts
(simulator/training_run/step: layer_terms.py, step_terms.py):

    matmul       larger(matmul x alone, power x work at the data sheet's peak), soft_maximum.py
    attention    attention x alone; torch's fused attention is FlashAttention-2, which runs on
                 newer devices as on an A100, 335 / 225 times as fast (Dao, arXiv 2307.08691,
                 section 4.1: up to 335 TFLOP/s on an H100, 225 on an A100)
    others       shares of peak and bandwidth by kind of kernel, fitted on measured steps of
                 modules; also matmuls, if none were measured on the device (kernel_seconds.py)
    host         seconds per kernel and per view; a faster device waits for the host (Host)
    messages     inner or outer x alone; for sharded parameters and gradients, `gather_exposed`
                 of the part hidden under the compute

and `level` multiplies all. On a profiled machine, blocks are measured inside a step and every
coefficient is neutral. Traced steps of the 55 bf16 runs of llm-foundry, as OPT without biases, have
a median error of 5.5 % and a mean error of 8.8 % (2026-11-24); beyond 8k tokens, where that
framework's attention takes longer, they are up to 33 % too fast.

The kernels' shares and the coefficients of published runs were fitted separately, and agree: for
kernels other than matmuls and attention in gpt2, a small and a large Llama, the shares give nine
tenths of the time of `passes` on traced bytes (H100, 2026-11-24).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import Device
from profiles.hardware.kernels.gemm_surface import load_surface
from profiles.model.graph import Op, OpKind, Phase
from simulator.kernel_speed import borrowed_from, flash_2
from simulator.soft_maximum import exposed, larger
from simulator.traced.comm_cost import price_collective
from simulator.traced.cost import Cost
from simulator.traced.kernel_constants import module_constants
from simulator.traced.kernel_seconds import kernels_costs, step_width
from simulator.traced.op_cost import moved_cost, price_op, pricer_of, surfaces_of
from simulator.training_run.framework.executor_states import Software
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.step.coefficients import coefficient, matmul_coefficients
from simulator.values.prediction import Interval

_BITS = {"bfloat16": 16, "float16": 16, "float8_e4m3fn": 8, "float8_e5m2": 8, "float32": 32}


@dataclass(frozen=True, slots=True, kw_only=True)
class InStep:
    """The coefficients of our executor's steps on a device; meanings in coefficient_kinds.toml.

    The defaults are neutral: times measured in steps are not changed.

    accumulation_bytes  read and written per parameter to add a micro-batch's gradient to its sum
    dispatch            host time of an op, relative to the frameworks on which launch_us is fitted
    tensor_dispatch     host time of an op on a tensor that is split over ranks, relative to a plain
                        one
    """

    level: float = 1.0
    attention: float = 1.0
    inner: float = 1.0
    outer: float = 1.0
    congestion: float = 0.0
    tensor_exposed: float = 1.0
    gather_exposed: float = 1.0
    reduce_exposed: float = 1.0
    cut_step_us: float = 0.0
    optimizer: float = 1.0
    step_ms: float = 0.0
    microbatch_ms: float = 0.0
    accumulation_bytes: float = 0.0
    dispatch: float = 1.0
    tensor_dispatch: float = 1.0

    def message(self, nodes: int) -> float:
        """Time of a message between ranks on this many nodes, relative to an isolated one."""
        if nodes < 2:
            return self.level * self.inner
        return self.level * self.outer * (1.0 + self.congestion * math.log2(nodes))


_NEUTRAL = InStep()


def in_step(device: Device) -> InStep:
    """The coefficients of a device; neutral if it was profiled, as every CPU is."""
    if device.type == "cpu" or device.measurements is not None:
        return _NEUTRAL
    return _fitted(device.type in ("tpu", "accelerator"))


@functools.cache
def _fitted(compiled: bool) -> InStep:
    """Fitted coefficients.

    compiled  the device runs a step as one program: the host launches no kernel
    """
    executor = load_framework("torch")
    own = {
        "level": coefficient("level", executor.coefficients_of, "frameworks.*"),
        "attention": coefficient("attention", f"{executor.attention}-kernels"),
        "accumulation_bytes": executor.accumulation_bytes,
        "dispatch": executor.dispatch,
        "tensor_dispatch": executor.tensor_dispatch,
        "step_ms": executor.step_ms or coefficient("step_ms", "*"),
    }
    kinds = [field.name for field in fields(InStep) if field.name not in own]
    shared = InStep(**own, **{kind: coefficient(kind, "*") for kind in kinds})
    return replace(shared, step_ms=0.0, microbatch_ms=0.0) if compiled else shared


def prices_in_step(
    ops: Sequence[Op], device: Device, software: Software = Software.EXECUTOR
) -> list[Cost]:
    """The costs of ops inside a step, without waiting for the host (`paced`)."""
    if in_step(device) is _NEUTRAL:
        return [price_op(op, device) for op in ops]
    level = level_of(software, device)
    shared = {op.kernels: None for op in ops if op.kernels and is_kernel_priced(op, device)}
    costs = kernels_costs(list(shared), device, compiled=software is Software.COMPILED)
    by_kernels = {k: cost.scaled(level) for k, cost in zip(shared, costs, strict=True)}
    nothing = pricer_of(device).view(Phase.FORWARD)

    def priced(op: Op) -> Cost:
        if op.kind is OpKind.VIEW or op.kernels == ():
            return nothing
        if op.kernels and is_kernel_priced(op, device):
            return by_kernels[op.kernels]
        return price_op(op, device).scaled(level * _over_alone(op, device))

    return [priced(op) for op in ops]


def _over_alone(op: Op, device: Device) -> float:
    """Time of a measured kernel in a step, before `level`, relative to the isolated kernel."""
    cost = price_op(op, device)
    if cost.launch_bound:
        return 1.0
    if op.attention is not None:
        return in_step(device).attention * flash_2_seconds(op, device) / cost.time_s
    if op.matmul is not None:
        return matmul_seconds(op, cost.time_s, device) / cost.time_s
    return 1.0


def is_kernel_priced(op: Op, device: Device) -> bool:
    """Whether an op is priced by shares of peak and bandwidth, because no such kernel was measured
    on the device."""
    if op.kernels is None:  # traced for a CPU
        return False
    if op.attention is not None:
        return not surfaces_of(device)
    return op.kind is not OpKind.MATMUL or op.dtype not in _matmul_types(device)


def level_of(software: Software, device: Device) -> float:
    """Factor on a whole step: for our executor, that of eager PyTorch with FSDP."""
    return in_step(device).level if software is Software.EXECUTOR else 1.0


# Surfaces have these at the speed of bfloat16, by the ratio of peaks. So taken, steps of modules on
# an H100 and an H200 come out 9 and 18 % off, priced by shares 5 and 12 % (2026-11-24).
_NOT_MEASURED = frozenset(("float16", "float32", "tf32"))


@functools.cache
def _matmul_types(device: Device) -> frozenset[str]:
    """The data types whose products were measured on this device."""
    name = surfaces_of(device)
    if not name or borrowed_from(name):
        return frozenset()
    return frozenset(load_surface(name).tables) - _NOT_MEASURED


def matmul_seconds(op: Op, alone_s: float, device: Device) -> float:
    """Seconds of a product in a step, before `level`, given its isolated time; unchanged for types
    without measured steps."""
    bits = _BITS.get(op.dtype)
    if bits is None:
        return alone_s
    matmul, power = matmul_coefficients(device, bits)
    burst = matmul * alone_s
    sustained = power * op.work_flop / pricer_of(device).light.rate(op.dtype)
    return float(larger(np.asarray(burst), np.asarray(sustained)))


def flash_2_seconds(op: Op, device: Device) -> float:
    """Seconds of isolated fused attention as FlashAttention-2."""
    name, gain = flash_2(device.name)
    return price_op(op, device if name == device.name else get_device(name)).time_s / gain


def optimizer_s(moved_bytes: float, device: Device) -> float:
    """Seconds in which an update moves this many bytes, before `level`."""
    return in_step(device).optimizer * moved_bytes / pricer_of(device).light.bandwidth


def update_cost(moved_bytes: float, kernels: int, software: Software, device: Device) -> Cost:
    """The cost of an optimizer's update that reads and writes this many bytes in this many kernels
    (0: in one or a few), including the constant time of a step."""
    alone, known = moved_cost("optimizer", moved_bytes, device), in_step(device)
    if known is _NEUTRAL:
        return alone
    ratio = optimizer_s(moved_bytes, device) / alone.time_s if alone.time_s else 0.0
    cost = alone.scaled(level_of(software, device) * ratio)
    if software is Software.EXECUTOR:
        return cost.plus(1e-3 * known.level * known.step_ms)
    values, factor = module_constants().values, math.exp(step_width(device))
    device_s = cost.time_s + 1e-6 * values["start_us"] * kernels
    busy = replace(cost, value=device_s, low=device_s / factor, high=device_s * factor)
    whole = paced(busy, 1e-6 * host_of(software, device).update_us * kernels, device)
    step = 1e-6 * values["step_us"]
    return replace(
        whole,
        value=whole.value + step,
        low=whole.low + step / factor,
        high=whole.high + step * factor,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Microseconds of the host per kernel of a pass, per view and per kernel of the update."""

    forward_us: float = 0.0
    backward_us: float = 0.0
    view_us: float = 0.0
    update_us: float = 0.0


@functools.cache
def host_of(software: Software, device: Device) -> Host:
    """Host times; zero if the device runs a step as one program, or if steps were measured."""
    if software is Software.COMPILED or device.type in ("tpu", "accelerator"):
        return Host()
    if in_step(device) is _NEUTRAL:
        return Host()
    if software is Software.EXECUTOR:
        own = in_step(device)
        launch_us = coefficient("launch_us", "*") * own.level * own.dispatch
        return Host(forward_us=launch_us, backward_us=launch_us)
    values, age = module_constants().values, "old" if software is Software.OLD_TORCH else "new"
    parts = ("forward", "backward", "view", "update")
    return Host(**{f"{part}_us": values[f"host.{part}.{age}_us"] for part in parts})


def starts(ops: Sequence[Op]) -> tuple[int, int]:
    """Number of ops that start kernels, and of views."""
    views = sum(op.kind is OpKind.VIEW or op.kernels == () for op in ops)
    return len(ops) - views, views


Seconds = TypeVar("Seconds", bound=Interval)


def paced(busy: Seconds, host_s: float, device: Device) -> Seconds:
    """Seconds of a pass, given the seconds of the device and those of the host to launch the
    kernels; each end of the interval from both ends."""
    if not host_s:
        return busy
    factor = math.exp(step_width(device))

    def slower(device_s: float, ratio: float) -> float:
        return float(larger(np.asarray(device_s), np.asarray(host_s * ratio)))

    return replace(
        busy,
        value=slower(busy.value, 1.0),
        low=slower(busy.low, 1 / factor),
        high=slower(busy.high, factor),
    )


def message_in_step(
    operation: str,
    size_bytes: float,
    devices: Sequence[int],
    cluster: Cluster,
    *,
    sharing: int = 1,
) -> Cost:
    """The cost of a collective or a send between stages inside a step (`price_collective`)."""
    devices = tuple(devices)
    cost = price_collective(operation, size_bytes, devices, cluster, sharing=sharing)
    known = in_step(cluster.device_at(devices[0]))
    if known is _NEUTRAL or cost.time_s <= 0:
        return cost
    node = cluster.levels[0].domain_size
    factor = known.message(len({index // node for index in devices}))
    more_s = 1e-6 * known.cut_step_us * known.level if operation == "send" else 0.0
    return cost.scaled(factor).plus(more_s)


def exchange_in_step(
    operation: str,
    size_bytes: float,
    devices: Sequence[int],
    cluster: Cluster,
    *,
    sharing: int = 1,
) -> Cost:
    """The cost of an exposed message of gradients or weights: including copies of buckets and
    waiting for the slowest rank."""
    cost = message_in_step(operation, size_bytes, devices, cluster, sharing=sharing)
    return cost.scaled(in_step(cluster.device_at(devices[0])).reduce_exposed)


def exposed_seconds(message_s: float, compute_s: float, device: Device) -> float:
    """Exposed seconds of a message that runs during this much compute; all of them on a CPU, and if
    a profile has no measurement."""
    known = in_step(device)
    if known is _NEUTRAL:
        return message_s
    return float(exposed(np.asarray(compute_s), np.asarray(message_s), known.gather_exposed))
