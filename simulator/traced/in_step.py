"""Kernel and message times inside a step of our executor (not in isolation).

Kernel tables are measured one kernel at a time on a cool device. In a step matmuls run back to back
under the power limit, memory-bound kernels find no cache, and messages share the device with them.
On accelerators the same coefficients and formulas turn the one into the other as in described runs
(simulator/training_run/step: layer_terms.py, step_terms.py):

    matmul       larger(matmul x alone, power x work at the data sheet's peak), soft_maximum.py
    attention    attention x alone; torch's fused attention is FlashAttention-2, which runs on
                 newer devices as on an A100, 335 / 225 times as fast (Dao, arXiv 2307.08691,
                 section 4.1: up to 335 TFLOP/s on an H100, 225 on an A100)
    memory       passes x traced share x bytes at full bandwidth, at least as alone
    host         launch_us per kernel, which the device waits for where it is faster
    messages     inner or outer x alone; of sharded parameters and gradients `gather_exposed` of
                 what fits under the compute

and `level` multiplies all. A profiled machine keeps what was measured of it: there blocks are
measured inside a step, and every coefficient is neutral. Of the 55 bf16 runs of llm-foundry, as
OPT without biases, traced steps are 5.5 % off in the median, 8.8 % in the mean (2026-11-24); beyond
8k tokens, where that framework's attention takes longer, up to 33 % too fast.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import Device
from profiles.hardware.kernels.attention_surface import (
    FLASH_2_DEVICE,
    FLASH_2_GAIN,
    NEWER_THAN_FLASH_2,
)
from profiles.model.graph import Op, OpKind
from simulator.soft_maximum import larger
from simulator.traced.comm_cost import CommCost, price_collective
from simulator.traced.op_cost import OpCost, moved_cost, price_op, pricer_of
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.step.coefficients import coefficient, matmul_coefficients

Cost = TypeVar("Cost", OpCost, CommCost)

_BITS = {"bfloat16": 16, "float16": 16, "float8_e4m3fn": 8, "float8_e5m2": 8, "float32": 32}
# `passes` belongs to bytes that leave out what eager autograd moves beside; a trace counts those
# too. Of a layer of llama-3.1-8b: 35.9 counted for 54.6 traced (frameworks/torch.toml).
TRACED_SHARE = 35.9 / 54.6


@dataclass(frozen=True, slots=True, kw_only=True)
class InStep:
    """The coefficients of our executor's steps on a device; meanings in coefficient_kinds.py.

    The defaults are neutral: what was measured in steps is taken as it is.
    accumulation_bytes  read and written per parameter to add a micro-batch's gradient to its sum
    tensor_dispatch     host time of an op on a tensor that is split over ranks, over a plain one's
    """

    level: float = 1.0
    attention: float = 1.0
    passes: float = 1.0
    launch_us: float = 0.0
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
    tensor_dispatch: float = 1.0

    def message(self, nodes: int) -> float:
        """Time of a message of ranks on so many nodes over that of the same alone."""
        if nodes < 2:
            return self.level * self.inner
        return self.level * self.outer * (1.0 + self.congestion * math.log2(nodes))


_NEUTRAL = InStep()


def in_step(device: Device) -> InStep:
    """The coefficients of a device; neutral where it was profiled, as every CPU is."""
    if device.type == "cpu" or device.measurements is not None:
        return _NEUTRAL
    return _fitted(device.type in ("tpu", "accelerator"))


@functools.cache
def _fitted(compiled: bool) -> InStep:
    """compiled  the device runs a step as one program: the host launches no kernel"""
    executor = load_framework("torch")
    software = executor.coefficients_of
    kinds = (
        "passes",
        "launch_us",
        "inner",
        "outer",
        "congestion",
        "tensor_exposed",
        "gather_exposed",
        "reduce_exposed",
        "cut_step_us",
        "optimizer",
        "step_ms",
        "microbatch_ms",
    )
    shared = InStep(
        level=coefficient("level", software, "frameworks.*"),
        attention=coefficient("attention", f"{executor.attention}-kernels"),
        accumulation_bytes=executor.accumulation_bytes,
        tensor_dispatch=executor.tensor_dispatch,
        **{kind: coefficient(kind, "*") for kind in kinds},
    )
    return replace(shared, launch_us=0.0, step_ms=0.0, microbatch_ms=0.0) if compiled else shared


def price_in_step(op: Op, device: Device) -> OpCost:
    """The cost of an op inside a step, without waiting for the host (`waiting_s`)."""
    cost = price_op(op, device)
    known = in_step(device)
    if known is _NEUTRAL or op.kind is OpKind.VIEW:
        return cost
    if cost.limit == "launch":
        return scaled(cost, known.level)
    if op.attention is not None:
        seconds = known.attention * flash_2_seconds(op, device)
    elif op.matmul is not None:
        seconds = matmul_seconds(op, cost.time_s, device)
    else:
        light_s = (op.read_bytes + op.written_bytes) / pricer_of(device).light.bandwidth
        seconds = max(cost.time_s, known.passes * TRACED_SHARE * light_s)
    return scaled(cost, known.level * seconds / cost.time_s)


def matmul_seconds(op: Op, alone_s: float, device: Device) -> float:
    """Seconds in a step, before `level`, of a product that takes so long alone; those of types
    whose steps were not measured as alone."""
    bits = _BITS.get(op.dtype)
    if bits is None:
        return alone_s
    matmul, power = matmul_coefficients(device, bits)
    burst = matmul * alone_s
    sustained = power * op.work_flop / pricer_of(device).light.rate(op.dtype)
    return float(larger(np.asarray(burst), np.asarray(sustained)))


def flash_2_seconds(op: Op, device: Device) -> float:
    """Seconds that fused attention takes alone as FlashAttention-2."""
    if device.name.startswith(NEWER_THAN_FLASH_2):
        return price_op(op, get_device(FLASH_2_DEVICE)).time_s / FLASH_2_GAIN
    return price_op(op, device).time_s


def optimizer_cost(moved_bytes: float, device: Device) -> OpCost:
    """The cost of an optimizer that reads and writes so many bytes, in one kernel or a few."""
    alone, known = moved_cost("optimizer", moved_bytes, device), in_step(device)
    if known is _NEUTRAL:
        return alone
    light_s = moved_bytes / pricer_of(device).light.bandwidth
    return scaled(alone, known.level * known.optimizer * light_s / alone.time_s)


def waiting_s(kernels: int, device_s: float, device: Device, *, tp: int) -> float:
    """Seconds in which a device that has so much to do waits for the host to launch its kernels,
    those of tensors that are split over `tp` ranks."""
    known = in_step(device)
    dispatched = kernels * (known.tensor_dispatch if tp > 1 else 1.0)
    host = np.asarray(1e-6 * known.launch_us * known.level * dispatched)
    return float(larger(np.asarray(device_s), host)) - device_s


def message_in_step(
    operation: str,
    size_bytes: float,
    devices: Sequence[int],
    cluster: Cluster,
    *,
    sharing: int = 1,
) -> CommCost:
    """The cost of a collective or a send between stages inside a step (`price_collective`)."""
    devices = tuple(devices)
    cost = price_collective(operation, size_bytes, devices, cluster, sharing=sharing)
    known = in_step(cluster.device_at(devices[0]))
    if known is _NEUTRAL or cost.time_s <= 0:
        return cost
    node = cluster.levels[0].domain_size
    factor = known.message(len({index // node for index in devices}))
    more_s = 1e-6 * known.cut_step_us * known.level if operation == "send" else 0.0
    return scaled(cost, factor, more_s)


def exchange_in_step(
    operation: str,
    size_bytes: float,
    devices: Sequence[int],
    cluster: Cluster,
    *,
    sharing: int = 1,
) -> CommCost:
    """The cost of a message of gradients or weights that nothing hides: with copies of buckets and
    waiting for the slowest rank."""
    cost = message_in_step(operation, size_bytes, devices, cluster, sharing=sharing)
    return scaled(cost, in_step(cluster.device_at(devices[0])).reduce_exposed)


def exposed_seconds(message_s: float, compute_s: float, device: Device) -> float:
    """What a message costs that runs beside so many seconds of compute; on a CPU, and where a
    profile says nothing of it, all of it."""
    known = in_step(device)
    if known is _NEUTRAL:
        return message_s
    longer = float(larger(np.asarray(compute_s), np.asarray(message_s)))
    return longer - compute_s + known.gather_exposed * min(message_s, compute_s)


def scaled(cost: Cost, ratio: float, more_s: float = 0.0) -> Cost:
    """So many times the cost, and so many seconds more."""
    return replace(
        cost,
        time_s=cost.time_s * ratio + more_s,
        low_s=cost.low_s * ratio + more_s,
        high_s=cost.high_s * ratio + more_s,
    )
