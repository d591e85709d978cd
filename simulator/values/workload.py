"""The workload of an optimizer step: batch, sequence length, precision and optimizer."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InputError, UnknownNameError

PRECISIONS = ("fp32", "bf16", "fp16")
OPTIMIZERS = ("adamw", "sgd")
COUNTED_IN = ("tokens", "samples")
MOST = 2**31 - 1
"""Largest number of sequences, or of tokens per sequence; more is a typing error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Workload of one optimizer step.

    global_batch     sequences (samples) per optimizer step over the whole cluster
    sequence_length  tokens per sequence; 1 if the model has no sequence dimension
    counted_in       unit of rates and costs: `tokens`, or `samples` if a sample is not a sequence
                     of tokens (an image)
    precision        of the arithmetic: `bf16` and `fp16` keep fp32 master weights
    tokens           tokens of the whole training run, 0 if unknown
    """

    global_batch: int
    sequence_length: int
    precision: str = "bf16"
    optimizer: str = "adamw"
    tokens: float = 0.0
    counted_in: str = "tokens"

    def __post_init__(self) -> None:
        if self.global_batch < 1:
            raise InputError(f"global batch must be 1 or more, got {self.global_batch}")
        if self.sequence_length < 1:
            raise InputError(f"sequence length must be 1 or more, got {self.sequence_length}")
        if max(self.global_batch, self.sequence_length) > MOST:
            raise InputError(
                f"a global batch of {self.global_batch} sequences of {self.sequence_length} "
                f"tokens: each may be {MOST:,} at most"
            )
        if self.precision not in PRECISIONS:
            raise UnknownNameError("precision", self.precision, PRECISIONS)
        if self.optimizer not in OPTIMIZERS:
            raise UnknownNameError("optimizer", self.optimizer, OPTIMIZERS)
        if self.counted_in not in COUNTED_IN:
            raise UnknownNameError("unit", self.counted_in, COUNTED_IN, where="counted_in")
        if self.tokens < 0:
            raise InputError(f"tokens must not be negative, got {self.tokens}")

    @property
    def compute_dtype(self) -> str:
        """torch's name of the data type of matmuls."""
        return {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[self.precision]

    @property
    def counted_per_step(self) -> int:
        """Tokens or samples of a step."""
        return self.global_batch * (self.sequence_length if self.counted_in == "tokens" else 1)
