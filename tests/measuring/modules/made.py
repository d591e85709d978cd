"""What a factory of a measured module gives, and targets for one.

Each module is small enough that a step takes 10 ms to 1 s on two cores, and each is mostly another
kind of kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, Any, Any, Any]


def labels(samples: int, classes: int) -> Tensor:
    """Classes in turn, [samples]."""
    return torch.arange(samples) % classes
