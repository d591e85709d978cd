"""Messages for failures of a pass on shapes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from profiles.errors import ShardwrightError, SlowTraceError, TraceError
from profiles.model.building.build import BuiltModel
from profiles.model.graph import Op

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


_NO_FLEX = "FlexAttention does not support backward on CPU"  # torch 2.13
_MOST_OPS = 15_000  # of a forward of one block: 20 to 40 s; its whole trace takes 20 times as long
_ENOUGH_OPS = 4_000  # to see that a loop over the longest input will have more
_LONGEST_PERIOD = 256


def refuse_long_loop(ops: Sequence[Op], module: str, longest: int) -> None:
    """Raises SlowTraceError if the forward ops of a block end with a loop and are many, or will be
    if the loop is over `longest`, the largest dimension of the inputs."""
    if len(ops) < _ENOUGH_OPS:
        return
    names = [(op.name, op.module) for op in ops[-4 * _LONGEST_PERIOD :]]
    periods = range(1, _LONGEST_PERIOD + 1)
    period = next((n for n in periods if names[n:] == names[:-n]), 0)
    if period and max(len(ops), period * longest) >= _MOST_OPS:
        raise SlowTraceError(
            f"the forward of module {module or 'the model itself'} repeats the same {period} ops "
            f"in a loop, {len(ops):,} ops so far: a trace runs every one of them and would take "
            "minutes. If it loops over tokens, use a shorter --seq (the costs per token of other "
            "layers change little), or package.module:factory with one op for the loop "
            "(torch.nn.LSTM or GRU, attention, a convolution)"
        )


def failure_text(error: Exception, inputs: Sequence[Tensor] = ()) -> str:
    """torch's error of a failed trace in one line, with an explanation if there is one, otherwise
    with the shapes of the model's inputs."""
    kind = type(error).__name__
    line = next(iter(str(error).splitlines()), "")
    meaning = f": {_READS_VALUES[kind]}" if kind in _READS_VALUES else ""
    if "shape_env" in line:  # torch 2.13, for a nested tensor made of fake tensors
        meaning += (
            ": nested tensors have shapes that depend on values, and are not traced; pad their "
            "parts to one length and mask the padding"
        )
    if "_pack_padded_sequence" in line:
        meaning = (
            ": a packed sequence is as long as its lengths say: give the recurrent layer the "
            "padded sequence, and use the lengths on its outputs"
        )
    if line.startswith(_NO_FLEX):
        meaning += (
            ": plan for an accelerator (--on 1x8xh100-sxm), or use scaled_dot_product_attention on "
            "a CPU"
        )
    if re.search(r"\b(bfloat16|float16|BFloat16|Half)\b", line):
        meaning += "; compute it in float32 there (x.float()), or plan in fp32 (--precision fp32)"
    if inputs and not meaning:
        shapes = ", ".join(str(tuple(x.shape)) for x in inputs)
        meaning = f". Inputs of shape {shapes} were given; package.module:factory may give others"
    return f"{kind}: {line}{meaning}"


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
