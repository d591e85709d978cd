"""Cross entropy of logits whose vocabulary is split over tensor-parallel ranks.

Megatron-LM, arXiv 1909.08053, section 3: the ranks exchange three numbers per token instead of its
logits. A loss function is not changed for this: inside `SplitLogits`, its call of torch's
cross_entropy computes the loss from the rank's logits. The reduction over ranks is a parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from profiles.errors import TraceError
from profiles.model.building.build import BuiltModel

Reduce = Callable[[Tensor, str], Tensor]
"""(one rank's numbers, `sum` or `max`) -> the sum or maximum over all ranks, in the same memory."""

_IGNORED = -100  # torch's default
# Functions that keep the order of a token's logits, and functions that return no logits.
_SHAPING = {"__getitem__", "contiguous", "double", "flatten", "float", "reshape", "to", "view"}
_QUERIES = {"__get__", "dim", "ndimension", "numel", "size", "stride", "is_floating_point"}


class _MeanCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, targets: Tensor, first: int, reduce: Reduce, ignored: int
    ) -> Tensor:
        counted = targets != ignored
        peak = reduce(logits.amax(-1), "max")
        local = targets - first
        outside = (local < 0) | (local >= logits.shape[-1])
        local = local.masked_fill(outside, 0).unsqueeze(-1)
        shifted = logits - peak.unsqueeze(-1)
        wanted = reduce(shifted.gather(-1, local).squeeze(-1).masked_fill(outside, 0.0), "sum")
        exponentials = shifted.exp_()
        total = reduce(exponentials.sum(-1), "sum")
        weights = counted.to(logits.dtype) / counted.sum()
        ctx.save_for_backward(exponentials, total, local, outside, weights)
        return (total.log() - wanted).mul_(weights).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        exponentials, total, local, outside, weights = ctx.saved_tensors
        weights = gradient * weights
        # In the memory of the exponentials, as large as the logits: a backward runs once.
        made = exponentials.mul_((weights / total).unsqueeze(-1))
        made.scatter_add_(-1, local, (-weights).masked_fill(outside, 0.0).unsqueeze(-1))
        return made, None, None, None, None


def split_cross_entropy(
    logits: Tensor, targets: Tensor, *, first: int, reduce: Reduce, ignored: int = _IGNORED
) -> Tensor:
    """The mean cross entropy from a rank's logits [token, share of the vocabulary], equal on all
    ranks; its gradient is that of the rank's logits.

    targets  [token], classes of the whole vocabulary; tokens of the class `ignored` do not count
    first    class of the rank's first logit
    """
    loss: Tensor = _MeanCrossEntropy.apply(logits, targets, first, reduce, ignored)  # type: ignore[no-untyped-call] # torch's is
    return loss


class SplitLogits(TorchFunctionMode):
    """Context of a loss function that is given a rank's `logits`.

    first, reduce  as of split_cross_entropy

    Raises TraceError if the function does anything with them except reshaping, selecting tokens,
    changing the type, and torch's mean cross entropy [token, class].
    """

    def __init__(self, logits: Tensor, *, first: int, reduce: Reduce) -> None:
        super().__init__()
        self._first, self._reduce, self._words = first, reduce, logits.shape[-1]
        self._held = [logits]

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        given = [x for x in (*args, *kwargs.values()) if any(x is one for one in self._held)]
        name = getattr(func, "__name__", "")
        if not given or name in _QUERIES:
            return func(*args, **kwargs)
        if func is nn.functional.cross_entropy:
            logits, targets, ignored = _plain_cross_entropy(*args, **kwargs)
            return split_cross_entropy(
                logits, targets, first=self._first, reduce=self._reduce, ignored=ignored
            )
        out = func(*args, **kwargs)
        kept = isinstance(out, Tensor) and out.dim() and out.shape[-1] == self._words
        if name not in _SHAPING or not kept or out.stride(-1) != given[0].stride(-1):
            raise TraceError(
                f"the loss calls {name}, which needs all logits of a token, but each rank has a "
                "share of them; use torch's cross_entropy"
            )
        self._held.append(out)
        return out


def _plain_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    weight: Tensor | None = None,
    size_average: bool | None = None,
    ignore_index: int = _IGNORED,
    reduce: bool | None = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> tuple[Tensor, Tensor, int]:
    """(logits, targets, ignored class) of a call of torch's cross_entropy, which has these
    parameters."""
    settings = (weight, size_average, reduce, reduction, label_smoothing)
    indices = logits.dim() == 2 and targets.dim() == 1 and not targets.is_floating_point()
    if settings != (None, None, None, "mean", 0.0) or not indices:
        raise TraceError(
            "the loss of logits that are split over ranks must be torch's cross_entropy of logits "
            "[token, class] and classes [token], with its default settings"
        )
    return logits, targets, ignore_index


def with_split_loss(built: BuiltModel, *, first: int, reduce: Reduce) -> BuiltModel:
    """The model with a loss of a rank's logits."""

    def loss(logits: Any, targets: Any) -> Tensor:
        with SplitLogits(logits, first=first, reduce=reduce):
            return built.loss_fn(logits, targets)

    return replace(built, loss_fn=loss)
