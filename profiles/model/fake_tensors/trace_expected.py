"""`Expected`: what is expected of a tensor's values where a run on shapes has none."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Expected:
    """What is expected of the values of a tensor and of its views.

    kind     `choice`: one of `classes` whole numbers, each as likely; `position`: any valid index;
             `share`: non-zero with probability `mean`; `count`: `mean` on average;
             `uniform`: any number from 0 to 1, as `torch.rand` draws them;
             `assumed`: a truth value of which nothing is known, taken to be `mean`
    classes  how many choices there were
    """

    kind: str
    mean: float = 0.0
    classes: int = 0


NEVER = Expected("share", 0.0)
ALWAYS = Expected("share", 1.0)


def of_finite(name: str, args: Any) -> Expected | None:
    """Of a question whether numbers are finite: they are."""
    if name in ("isnan", "isinf", "isposinf", "isneginf"):
        return NEVER
    if name not in ("eq", "ne") or len(args) < 2:
        return None
    if args[0] is args[1]:
        return ALWAYS if name == "eq" else NEVER
    if isinstance(args[1], float) and math.isinf(args[1]):
        return NEVER if name == "eq" else ALWAYS
    return None


def extent(name: str, args: Any, kwargs: Any) -> int:
    """The size of the dimension in which an op chose."""
    x = args[0]
    position = 2 if name in ("topk", "kthvalue") else 1
    dim = args[position] if len(args) > position else kwargs.get("dim", -1)
    if dim is None or isinstance(dim, bool) or not x.dim():
        return max(1, int(x.numel()))
    return max(1, int(x.shape[dim]))
