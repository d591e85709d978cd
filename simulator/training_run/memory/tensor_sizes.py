"""`TensorSizes`: the bytes that the tensors of a stack take in one run."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from simulator.training_run.framework.framework import load_framework
from simulator.training_run.framework.kept_tensor import KeptTensor
from simulator.training_run.framework.run_conditions import run_conditions
from simulator.training_run.framework.tensor_width import (
    padded_vocabulary,
    token_widths,
    weight_widths,
)
from simulator.training_run.run.training_run import TrainingRun


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """What tensors may depend on beside the run: the rank's parameters after tensor, pipeline and
    expert parallelism, and the conditions that hold on it."""

    num_parameters: float = 0.0
    conditions: frozenset[str] = frozenset()


EVERY_RANK = RankFacts()
# Of an element of bf16 or fp16.
_HALF_BYTES = 2.0


class TensorSizes:
    """Bytes of a stack's tensors, on one device, for one micro-batch of a run.

    kept  what `activation_bytes` computed of it
    """

    __slots__ = (
        "_conditions",
        "_fp32",
        "_per_token",
        "_per_weight",
        "_splits",
        "kept",
        "vocabulary",
    )

    def __init__(self, run: TrainingRun) -> None:
        degrees = run.degrees
        self.kept: dict[tuple[str, int], object] = {}
        self.vocabulary = padded_vocabulary(
            run.model, load_framework(run.stack).vocabulary_multiple, degrees.tp
        )
        self._conditions = run_conditions(run)
        self._fp32 = run.precision == "fp32"
        tokens = run.tokens
        widths = token_widths(run.model, run.seq_len, self.vocabulary, run.expert_imbalance)
        self._per_token = {name: width * tokens for name, width in widths.items()}
        self._per_weight = weight_widths(run.model, self.vocabulary)
        self._splits = {
            "tp": degrees.tp,
            "sequence": degrees.tp if run.sequence_parallel else 1,
            "none": 1,
        }

    def bytes_of(self, tensor: KeptTensor, here: RankFacts = EVERY_RANK) -> float:
        """0 where a condition of the tensor does not hold."""
        for condition in tensor.only:
            if condition not in self._conditions and condition not in here.conditions:
                return 0.0
        each = self._element_bytes(tensor) * tensor.count
        if tensor.width == "parameters":
            return each * min(here.num_parameters, tensor.most or math.inf)
        elements = self._per_token.get(tensor.width)
        if elements is None:
            elements = self._per_weight[tensor.width]
        return each * elements / self._splits[tensor.split]

    def _element_bytes(self, tensor: KeptTensor) -> float:
        """Of one element: where a stack keeps 16 bits, a run in fp32 keeps 32."""
        return 4.0 if self._fp32 and tensor.bytes == _HALF_BYTES else tensor.bytes

    def total(self, tensors: Iterable[KeptTensor], here: RankFacts = EVERY_RANK) -> float:
        """Bytes of all of them."""
        return sum(self.bytes_of(tensor, here) for tensor in tensors)


_KNOWN: dict[tuple[object, ...], TensorSizes] = {}
_MOST_KNOWN = 1 << 13


def tensor_sizes(run: TrainingRun) -> TensorSizes:
    """The sizes of a run, made once for all that differ in what no size depends on: a search asks
    for those of thousands of meshes."""
    key = (
        run.model,
        run.stack,
        run.precision,
        run.seq_len,
        run.tokens,
        run.expert_imbalance,
        run.degrees.tp,
        run.sequence_parallel,
        run_conditions(run),
    )
    found = _KNOWN.get(key)
    if found is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        found = _KNOWN[key] = TensorSizes(run)
    return found
