"""What the activations of one micro-batch take: kept per layer, and on top of that for a moment.

Tensors, widths and splits are data (profiles/data/run_memory); for an unfused GPT layer they add
up to equations 1 to 6 of Korthikanti et al. (arXiv 2205.05198), which tests check.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from simulator.training_run.memory_stack import KeptTensor, MemoryStack
from simulator.training_run.tensor_width import padded_vocabulary, token_widths, weight_widths
from simulator.training_run.training_run import TrainingRun

_DENSE_PARTS = ("input", "norm", "attention", "core", "mlp")
_EXPERT_PARTS = ("input", "norm", "attention", "core", "routing", "experts", "shared")
# What recomputation frees of a layer; `minimal` is MaxText's, which keeps only what a matmul made.
_FREED = {
    "none": (),
    "selective": ("core",),
    "mlp": ("mlp", "experts", "shared", "routing"),
    "minimal": ("core", "norm"),
    "full": ("norm", "attention", "core", "mlp", "routing", "experts", "shared"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationBytes:
    """Bytes of one micro-batch on one device.

    dense_layer, expert_layer    kept by one layer from its forward to its backward
    rerun                        what recomputation brings back of one layer for its backward
    """

    dense_layer: float
    expert_layer: float
    rerun: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFacts:
    """What tensors may depend on beside the run: the rank's parameters after tensor and expert
    parallelism, and the conditions that hold on it."""

    num_parameters: float
    conditions: frozenset[str]


class TensorSizes:
    """Bytes of the tensors of a stack for one run."""

    __slots__ = ("_conditions", "_run", "_tokens", "_weights", "_widths", "vocabulary")

    def __init__(self, run: TrainingRun, stack: MemoryStack) -> None:
        self._run = run
        self.vocabulary = padded_vocabulary(run.model, stack.vocabulary_multiple, run.tp)
        self._widths: Mapping[str, float] = token_widths(run.model, run.seq_len, self.vocabulary)
        self._weights: Mapping[str, float] = weight_widths(run.model, self.vocabulary)
        self._tokens = run.tokens
        self._conditions = _conditions(run)

    def bytes_of(self, tensor: KeptTensor, here: RankFacts | None = None) -> float:
        """0 where a condition of the tensor does not hold."""
        for condition in tensor.only:
            if condition not in self._conditions and not (here and condition in here.conditions):
                return 0.0
        each = tensor.bytes * tensor.count
        if tensor.width == "parameters":
            return each * (here.num_parameters if here else 0.0)
        if tensor.width in self._weights:
            return each * self._weights[tensor.width] / self._split(tensor)
        return each * self._widths[tensor.width] * self._tokens / self._split(tensor)

    def total(self, tensors: Iterable[KeptTensor], here: RankFacts | None = None) -> float:
        return sum(self.bytes_of(tensor, here) for tensor in tensors)

    def _split(self, tensor: KeptTensor) -> float:
        run = self._run
        if tensor.split == "tp":
            return run.tp
        if tensor.split == "sequence":
            return run.tp if run.sequence_parallel else 1
        return 1


def activation_bytes(run: TrainingRun, stack: MemoryStack, sizes: TensorSizes) -> ActivationBytes:
    """Of a micro-batch of the run, by what its recompute kind keeps."""
    freed = _FREED[run.recompute]
    parts: dict[str, float] = {}
    for tensor in stack.layers:
        parts[tensor.part] = parts.get(tensor.part, 0.0) + sizes.bytes_of(tensor)
    dense = sum(parts.get(part, 0.0) for part in _DENSE_PARTS if part not in freed)
    experts = sum(parts.get(part, 0.0) for part in _EXPERT_PARTS if part not in freed)
    which = _EXPERT_PARTS if run.model.num_experts else _DENSE_PARTS
    rerun = sum(parts.get(part, 0.0) for part in which if part in freed)
    return ActivationBytes(dense_layer=dense, expert_layer=experts, rerun=rerun)


def _conditions(run: TrainingRun) -> frozenset[str]:
    model = run.model
    held = {
        "gated": model.gated,
        "plain": not model.gated,
        "latent": model.latent is not None,
        "no-latent": model.latent is None,
        "several-sequences": run.micro_batch > 1,
        "context-parallel": run.cp > 1,
        "tensor-parallel": run.tp > 1,
        "one-tensor-rank": run.tp == 1,
        "experts": model.num_experts > 0,
        "expert-parallel": run.expert_parallel > 1,
        "data-parallel": run.dp * run.cp > 1,
        "several-microbatches": run.num_microbatches > 1,
        "unsharded-states": run.zero_stage == 0,
        "sharded-states": run.zero_stage > 0,
    }
    return frozenset(name for name, holds in held.items() if holds)
