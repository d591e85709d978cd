"""A sample of a factory's model: how many tokens it is, where the factory says so or shows it.

A factory says it by an attribute of its own or of its module, `tokens_per_sample`, or as a fifth
value. Inputs that are all whole numbers of one shape [batch, length] are taken as sequences of
tokens. Everything else is counted in samples: images, measurements, rows of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from profiles.errors import ModelError


def stated_tokens(name: str, *stated: Any) -> int | None:
    """The first statement that is one; raises ModelError where it is no count."""
    found = next((one for one in stated if one is not None), None)
    if found is None:
        return None
    if isinstance(found, bool) or not isinstance(found, int) or found < 1:
        raise ModelError(f"{name}: tokens_per_sample must be a whole number above 0, is {found!r}")
    return found


def evident_tokens(inputs: Sequence[Tensor]) -> int | None:
    """The length of sequences where the inputs can be nothing else.

    >>> evident_tokens((torch.zeros(2, 32, dtype=torch.long),))
    32
    >>> evident_tokens((torch.zeros(2, 32),)) is None
    True
    """
    shapes = {tuple(x.shape[1:]) for x in inputs}
    whole = all(not x.is_floating_point() and not x.is_complex() for x in inputs)
    if not whole or len(shapes) != 1 or torch.bool in {x.dtype for x in inputs}:
        return None
    (shape,) = shapes
    return int(shape[0]) if len(shape) == 1 and shape[0] > 1 else None
