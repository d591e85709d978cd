"""What a layer keeps of one micro-batch from its forward to its backward, by recompute kind.

Tensors, widths and splits are data (`[memory]` of a framework's file); those of an unfused GPT
layer add up to equations 1 to 6 of Korthikanti et al. (arXiv 2205.05198), which tests check.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.training_run.framework.framework import FrameworkMemory
from simulator.training_run.framework.kept_tensor import KeptTensor
from simulator.training_run.memory.tensor_sizes import TensorSizes
from simulator.values.recompute_kind import recompute_kind

_BOTH = ("input", "norm", "normed", "attention", "attention-again", "core")
_DENSE_PARTS = (*_BOTH, "mlp", "mlp-again", "activation")
_EXPERT_PARTS = (*_BOTH, "routing", "experts", "expert-activation", "shared")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationBytes:
    """Bytes of one micro-batch on one device.

    dense_layer, expert_layer   kept by one layer from its forward to its backward
    dense_rerun, expert_rerun   what recomputation brings back of one layer for its backward
    """

    dense_layer: float
    expert_layer: float
    dense_rerun: float
    expert_rerun: float


@dataclass(frozen=True, slots=True)
class _Known:
    """What a framework's layers keep; the tensors are held, so that their id is not given away."""

    layers: tuple[KeptTensor, ...]
    found: ActivationBytes


def activation_bytes(recompute: str, stack: FrameworkMemory, sizes: TensorSizes) -> ActivationBytes:
    """Of a micro-batch under a recompute kind (`TrainingRun.recompute`); computed once of sizes."""
    known = sizes.kept.get((recompute, id(stack.layers)))
    if isinstance(known, _Known) and known.layers is stack.layers:
        return known.found
    found = _activation_bytes(recompute, stack, sizes)
    sizes.kept[recompute, id(stack.layers)] = _Known(stack.layers, found)
    return found


def _activation_bytes(
    recompute: str, stack: FrameworkMemory, sizes: TensorSizes
) -> ActivationBytes:
    freed = recompute_kind(recompute).frees
    parts = dict.fromkeys((*_DENSE_PARTS, *_EXPERT_PARTS), 0.0)
    for tensor in stack.layers:
        parts[tensor.part] += sizes.bytes_of(tensor)

    def total(names: tuple[str, ...], *, of_freed: bool) -> float:
        return sum(parts[name] for name in names if (name in freed) == of_freed)

    return ActivationBytes(
        dense_layer=total(_DENSE_PARTS, of_freed=False),
        expert_layer=total(_EXPERT_PARTS, of_freed=False),
        dense_rerun=total(_DENSE_PARTS, of_freed=True),
        expert_rerun=total(_EXPERT_PARTS, of_freed=True),
    )
