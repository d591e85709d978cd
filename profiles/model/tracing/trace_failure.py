"""What is told of a pass on shapes that fails."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from profiles.errors import ShardwrightError, TraceError
from profiles.model.building.build import BuiltModel
from profiles.model.tracing.trace_cpu_kernels import WAY_OUT, names_half

_WAY_OUT = (
    "and only shapes are traced; pass package.module:factory of a model that decides by shapes or "
    "settings"
)
VALUE_DECIDES = f"a value decides what runs (`.item()`, `if tensor`), {_WAY_OUT}"
# What torch raises where a module asks for values, which a trace of shapes does not have.
_ASKS_FOR_VALUES = {
    "DataDependentOutputException": VALUE_DECIDES,
    "DynamicOutputShapeException": (
        f"a shape depends on values (`nonzero`, a mask as an index), {_WAY_OUT}"
    ),
}


def what_failed(error: Exception) -> str:
    """What torch says of a failed trace, in one line, and what it means where that is known."""
    kind = type(error).__name__
    line = next(iter(str(error).splitlines()), "")
    said = f"{kind}: {line}"
    if kind in _ASKS_FOR_VALUES:
        said += f": {_ASKS_FOR_VALUES[kind]}"
    if "shape_env" in line:
        # What torch asks its fake tensors for where a nested one is made of them (torch 2.13).
        said += (
            ": nested tensors have shapes that depend on values, and are not traced; pad their "
            "parts to one length and mask what is behind them"
        )
    return f"{said}; {WAY_OUT}" if names_half(line) else said


def failed_loss(error: Exception, targets: Any) -> str:
    """What is told of an error inside the loss function."""
    kind = type(targets).__name__
    held = f" of {len(targets)}" if isinstance(targets, (tuple, list, dict)) else ""
    return (
        f"the loss function fails: {what_failed(error)}. It is called as loss_fn(output, targets), "
        f"targets as the factory returned them: here a {kind}{held}"
    )


def told_loss(built: BuiltModel, output: Any, targets: Any) -> Any:
    """The loss, or the TraceError that an error inside the loss function is told as."""
    try:
        return built.loss_fn(output, targets)
    except ShardwrightError:
        raise
    except Exception as error:
        raise TraceError(failed_loss(error, targets)) from error


def check_loss(loss: object) -> None:
    """Raises TraceError where it is no number, or nothing is trained by it."""
    if not isinstance(loss, Tensor):
        raise TraceError(
            f"the loss must be a scalar tensor, loss_fn returned {type(loss).__name__}"
        )
    if loss.dim() != 0:
        raise TraceError(f"the loss must be a scalar, it has shape {tuple(loss.shape)}")
    if not loss.requires_grad:
        raise TraceError("nothing is trained: no parameter that needs a gradient reaches the loss")
