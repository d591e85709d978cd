"""`ExecutorStates`: what runs a step, and its bytes per parameter."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Software(StrEnum):
    """What starts the kernels of a step: how long the host takes for each."""

    EXECUTOR = "our executor"
    TORCH = "eager torch from 1.12 on"
    OLD_TORCH = "eager torch before 1.12"
    COMPILED = "a compiled graph"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionBytes:
    """Bytes per parameter: the stored weight, the copy that is computed with, the gradient."""

    parameter_bytes: float
    working_copy_bytes: float
    gradient_bytes: float

    @property
    def compute_bytes(self) -> float:
        """Bytes of a weight as it is gathered and computed with."""
        return self.working_copy_bytes or self.parameter_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerBytes:
    """Bytes per parameter of each optimizer."""

    adamw: float
    sgd: float

    def of(self, optimizer: str) -> float:
        """Bytes a parameter of an optimizer's states."""
        return self.adamw if optimizer == "adamw" else self.sgd


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorStates:
    """What our executor, or a training loop of one device, keeps and moves per parameter; the
    block-by-block model of memory and step (simulator/memory/held.py, traced/step_tail.py) counts
    with it.

    optimizer_kernels  that an update starts per parameter, 0 where one updates many
    overlapped         gradients are summed during the backward
    """

    date: str
    source: str
    fp32: PrecisionBytes
    bf16: PrecisionBytes
    fp16: PrecisionBytes
    optimizer_bytes: OptimizerBytes
    optimizer_traffic_bytes: OptimizerBytes
    software: Software = Software.EXECUTOR
    optimizer_kernels: int = 0
    overlapped: bool = False

    def bytes_of(self, precision: str) -> PrecisionBytes:
        """Of a precision: fp32, bf16 or fp16."""
        return {"fp32": self.fp32, "bf16": self.bf16, "fp16": self.fp16}[precision]
