"""Types of numbers: in which weights are stored, and what a unit is given cast to its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map


def narrowed(unit: nn.Module, given: Any) -> Any:
    """What a unit is given, numbers in a wider type than it computes in cast to its own, as FSDP2
    casts them (`MixedPrecisionPolicy.cast_forward_inputs`); `given` itself where there are none."""
    kept = (p.dtype for p in unit.parameters() if p.dim() and p.is_floating_point())
    narrow = next(kept, torch.float64)

    def wide(x: Any) -> bool:
        floating = isinstance(x, Tensor) and x.is_floating_point()
        return floating and x.dtype.itemsize > narrow.itemsize

    if narrow.itemsize > 2 or not any(map(wide, tree_leaves(given))):
        return given
    return tree_map(lambda x: x.to(narrow) if wide(x) else x, given)


def stored_type(parameter: Tensor) -> torch.dtype:
    """The type in which a weight is stored: fp32 whatever the model computes in, but in fp64."""
    narrow = parameter.is_floating_point() and parameter.dtype != torch.float64
    return torch.float32 if narrow else parameter.dtype
