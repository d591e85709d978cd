"""`ExecutorStates`: bytes per parameter of our executor, and the software that launches kernels."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Software(StrEnum):
    """Software that launches the kernels of a step; determines the host time of a launch."""

    EXECUTOR = "our executor"
    TORCH = "eager torch from 1.12 on"
    OLD_TORCH = "eager torch before 1.12"
    COMPILED = "a compiled graph"


def gathers_per_micro_batch(zero_stage: int, *, pipelined: bool) -> int:
    """How often a micro-batch gathers the sharded parameters of a layer. Without a pipeline, if it
    gathers at all, it also reduces the gradients.

    ZeRO 3 gathers for the forward and for the backward, ZeRO 2 for the forward (FSDP2 frees them
    after each backward), in a pipeline once per step (executor/unit_gradients.py).
    """
    return 2 if zero_stage == 3 else int(zero_stage == 2 and not pipelined)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionBytes:
    """Bytes per parameter: the stored weight, its working copy for computation, the gradient."""

    parameter_bytes: float
    working_copy_bytes: float
    gradient_bytes: float

    @property
    def compute_bytes(self) -> float:
        """Bytes per weight in gathers and computation."""
        return self.working_copy_bytes or self.parameter_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerBytes:
    """Bytes per parameter of each optimizer."""

    adamw: float
    sgd: float

    def of(self, optimizer: str) -> float:
        """Bytes per parameter of `adamw` or `sgd`."""
        return self.adamw if optimizer == "adamw" else self.sgd


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorStates:
    """Bytes per parameter kept and moved by our executor, or by a training loop on one device.

    Used by the block-by-block model of memory and step (simulator/memory/data_group.py).

    optimizer_kernels  kernels per parameter in an update; 0 if one kernel updates many parameters
    overlapped         gradients are reduced during the backward
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
        """Bytes for a precision: fp32, bf16 or fp16."""
        return {"fp32": self.fp32, "bf16": self.bf16, "fp16": self.fp16}[precision]
