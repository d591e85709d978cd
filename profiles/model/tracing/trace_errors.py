"""Messages for failures of a pass on shapes."""

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
# Errors of torch for modules that read values, which a trace of shapes does not have.
_READS_VALUES = {
    "DataDependentOutputException": VALUE_DECIDES,
    "DynamicOutputShapeException": (
        f"a shape depends on values (`nonzero`, a mask as an index), {_WAY_OUT}"
    ),
}


def failure_text(error: Exception) -> str:
    """torch's error of a failed trace in one line, with an explanation if there is one."""
    kind = type(error).__name__
    line = next(iter(str(error).splitlines()), "")
    meaning = f": {_READS_VALUES[kind]}" if kind in _READS_VALUES else ""
    if "shape_env" in line:  # torch 2.13, for a nested tensor made of fake tensors
        meaning += (
            ": nested tensors have shapes that depend on values, and are not traced; pad their "
            "parts to one length and mask the padding"
        )
    return f"{kind}: {line}{meaning}" + (f"; {WAY_OUT}" if names_half(line) else "")


def traced_loss(built: BuiltModel, output: Any, targets: Any) -> Any:
    """The loss; raises TraceError for an error inside the loss function."""
    try:
        return built.loss_fn(output, targets)
    except ShardwrightError:
        raise
    except Exception as error:
        held = f" of {len(targets)}" if isinstance(targets, (tuple, list, dict)) else ""
        raise TraceError(
            f"the loss function fails: {failure_text(error)}. It is called as loss_fn(output, "
            f"targets), targets as the factory returned them: here a {type(targets).__name__}{held}"
        ) from error


def check_loss(loss: object) -> None:
    """Raises TraceError if the loss is no tensor of one number, or no parameter affects it."""
    why = ""
    if not isinstance(loss, Tensor):
        why = f"the loss must be a scalar tensor, loss_fn returned {type(loss).__name__}"
    elif loss.numel() != 1:
        why = f"the loss must be a scalar, it has shape {tuple(loss.shape)}"
    elif not loss.requires_grad:
        why = "nothing is trained: no parameter that needs a gradient reaches the loss"
    if why:
        raise TraceError(why)
