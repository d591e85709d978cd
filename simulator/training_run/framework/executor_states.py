"""`ExecutorStates`: bytes per parameter of our own executor."""

from __future__ import annotations

from dataclasses import dataclass


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
    """What our executor keeps and moves per parameter; the block-by-block model of
    memory and step (simulator/memory/held.py, traced/step_tail.py) counts with it."""

    date: str
    source: str
    fp32: PrecisionBytes
    bf16: PrecisionBytes
    fp16: PrecisionBytes
    optimizer_bytes: OptimizerBytes
    optimizer_traffic_bytes: OptimizerBytes

    def bytes_of(self, precision: str) -> PrecisionBytes:
        """Of a precision: fp32, bf16 or fp16."""
        return {"fp32": self.fp32, "bf16": self.bf16, "fp16": self.fp16}[precision]
