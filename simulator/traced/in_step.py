"""Kernel and message times inside a step of eager PyTorch (not in isolation).

Kernel tables are measured one kernel at a time on a cool device. In a step matmuls run back to back
under the power limit, memory-bound kernels find no cache, and messages share the device with them.

    matmul       larger(matmul x alone, power x work at the datasheet's peak), soft_maximum.py;
                 `matmul` and `power` are those of the device in described runs
                 (simulator/training_run/step/coefficients.py)
    attention    attention x alone; torch's fused attention is FlashAttention-2, which runs on
                 newer devices as on an A100, 335 / 225 times as fast (Dao, arXiv 2307.08691,
                 section 4.1: up to 335 TFLOP/s on an H100, 225 on an A100)
    memory       memory x alone
    messages     of sharded parameters and gradients: `exposed` of what fits under the compute
    step         `step_ms` whatever its size

The four coefficients are in profiles/data/calibration/eager_steps.toml with their rows and errors.
A CPU keeps what was measured of it: there a model's blocks are measured inside a step.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from profiles.document import read_document
from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.device import Device
from profiles.hardware.kernels.attention_surface import (
    FLASH_2_DEVICE,
    FLASH_2_GAIN,
    NEWER_THAN_FLASH_2,
)
from profiles.model.graph import Op, OpKind
from simulator.soft_maximum import larger
from simulator.traced.op_cost import OpCost, price_op, pricer_of
from simulator.training_run.step.coefficients import matmul_coefficients

EAGER_STEPS_SCHEMA = "shardwright/eager-steps@1"
EAGER_STEPS_FILE = (
    Path(__file__).parents[2] / "profiles" / "data" / "calibration" / "eager_steps.toml"
)
_BITS = {"bfloat16": 16, "float16": 16, "float8_e4m3fn": 8, "float8_e5m2": 8}


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerSteps:
    """profiles/data/calibration/eager_steps.toml: the coefficients, and how well they fit.

    residual, left_out_model, left_out_device   mean absolute relative error of the step: of the
              rows fitted on, with a model left out, with a device left out
    """

    source: str
    method: str
    date: str
    runs: int
    residual: float
    left_out_model: float
    left_out_device: Mapping[str, float]
    attention: float
    memory: float
    exposed: float
    step_ms: float


@functools.cache
def eager_steps() -> EagerSteps:
    """The coefficients that the project ships."""
    return read_document(EAGER_STEPS_FILE, EagerSteps, schema=EAGER_STEPS_SCHEMA)


def price_in_step(op: Op, device: Device) -> OpCost:
    """The cost of an op inside a step; what waits for its launch, and a CPU's, is as alone."""
    cost = price_op(op, device)
    if device.type == "cpu" or cost.limit == "launch" or op.kind is OpKind.VIEW:
        return cost
    if op.attention is not None:
        seconds = eager_steps().attention * flash_2_seconds(op, device)
        return _scaled(cost, seconds / cost.time_s)
    if op.matmul is not None:
        return _scaled(cost, matmul_seconds(op, cost.time_s, device) / cost.time_s)
    return _scaled(cost, eager_steps().memory)


def matmul_seconds(op: Op, alone_s: float, device: Device) -> float:
    """Seconds in a step of a product that takes so long alone; the same for types of more than 16
    bits, of which no step was measured."""
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


def exposed_seconds(message_s: float, compute_s: float, device: Device) -> float:
    """What a message costs that runs beside so many seconds of compute; on a CPU all of it."""
    if device.type == "cpu":
        return message_s
    hidden = min(message_s, compute_s)
    return message_s - hidden + eager_steps().exposed * hidden


def step_overhead_s(device: Device) -> float:
    """Seconds of each step whatever its size; a CPU's are in what was measured of it."""
    return 0.0 if device.type == "cpu" else eager_steps().step_ms * 1e-3


def _scaled(cost: OpCost, ratio: float) -> OpCost:
    return replace(
        cost,
        time_s=cost.time_s * ratio,
        low_s=cost.low_s * ratio,
        high_s=cost.high_s * ratio,
    )
