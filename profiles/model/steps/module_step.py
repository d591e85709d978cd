"""One training step of a module on one device: every kernel that it starts, and what it keeps.

Unlike a model graph (profiles/model/graph.py) a step is not cut into blocks and not scaled: it
holds the kernels of one batch as they run, with what decides their speed in addition to flop and
bytes: groups, strides and layout of convolutions, casts of autocast, kernels by direction. Torch is
imported only when a step is traced.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from profiles.errors import ShardwrightError, UnknownNameError
from profiles.model.graph import Phase


class Kernel(StrEnum):
    """Kernels that are priced alike."""

    VIEW = "view"  # no device work
    CONV_1X1 = "conv 1x1"
    CONV = "conv"
    GROUPED = "grouped conv"
    DEPTHWISE = "depthwise conv"
    MATMUL = "matmul"
    BATCHED_MATMUL = "batched matmul"
    RECURRENCE = "recurrence"  # the product of the state at one position
    ATTENTION = "fused attention"
    BATCH_NORM = "batch norm"
    ROW_NORM = "row norm"  # layer, group, instance norm
    SOFTMAX = "softmax"
    POOL = "pool"
    RESIZE = "resize"
    REDUCTION = "reduction"
    COPY = "copy"  # concatenation, padding, slices, casts of type
    TRANSPOSE = "transpose"  # a copy that changes the order in memory
    GATHER = "gather"
    SCATTER = "scatter"
    FILL = "fill"
    ELEMENTWISE = "elementwise"
    SORT = "sort"
    FFT = "fft"


class Direction(StrEnum):
    """What a kernel of a product makes."""

    OUTPUT = "output"
    INPUT_GRADIENT = "input gradient"
    WEIGHT_GRADIENT = "weight gradient"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOp:
    """A kernel that a step starts `count` times with the same sizes.

    op     the aten op that starts it; starts  host calls per kernel: 1, or 0 for the second and
           third kernel of one call (the gradients of a convolution)
    dtype  of the arithmetic
    read_bytes, written_bytes   tensors once each, broadcast ones as large as they are stored
    batch, m, n, k    of products: `batch` products [m, k] x [k, n]; of a convolution the product
           that each group equals, `batch` its groups; 0 for other kernels
    taps   elements of a convolution's kernel; stride, dilation  its largest
    spatial   dimensions that a convolution slides along: 2 of images; 0 of other kernels
    channels_last   tensors lie with channels innermost
    """

    op: str
    kernel: Kernel
    phase: Phase
    dtype: str
    direction: Direction = Direction.OUTPUT
    work_flop: float = 0.0
    read_bytes: float = 0.0
    written_bytes: float = 0.0
    batch: int = 0
    m: int = 0
    n: int = 0
    k: int = 0
    taps: int = 0
    stride: int = 1
    dilation: int = 1
    spatial: int = 0
    channels_last: bool = False
    starts: int = 1
    count: int = 1

    @property
    def moved_bytes(self) -> float:
        """Read and written."""
        return self.read_bytes + self.written_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleStep:
    """The kernels of one forward and backward pass, and the memory of it.

    ops               equal ones once, with their count; the optimizer's are not among them
    parameters        elements of each trainable parameter; parameter_bytes, buffer_bytes of all
    gradient_bytes    of the gradients of parameters
    input_bytes       of inputs and targets
    peak_bytes        highest bytes alive beside parameters, buffers, gradients of parameters and
                      inputs, each tensor rounded up as torch's allocator does
    peak_with_gradients_bytes   the same with gradients of parameters as they come (they stay)
    """

    ops: tuple[StepOp, ...]
    parameters: tuple[int, ...]
    parameter_bytes: int
    buffer_bytes: int
    gradient_bytes: int
    input_bytes: int
    peak_bytes: int
    peak_with_gradients_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrecision:
    """What a precision's name means.

    weights   torch type of parameters and inputs
    autocast  torch type that autocast casts products to, or ""
    tf32      products of float32 run on the tensor cores
    """

    weights: str = "float32"
    autocast: str = ""
    tf32: bool = False


PRECISIONS = {
    "fp32": StepPrecision(),
    "tf32": StepPrecision(tf32=True),
    "fp16": StepPrecision(weights="float16"),
    "bf16": StepPrecision(weights="bfloat16"),
    "amp-fp16": StepPrecision(autocast="float16", tf32=True),
    "amp-bf16": StepPrecision(autocast="bfloat16", tf32=True),
}


def step_precision(name: str) -> StepPrecision:
    """The precision of a name; raises UnknownNameError."""
    if name not in PRECISIONS:
        raise UnknownNameError("precision", name, PRECISIONS)
    return PRECISIONS[name]


class TracedSteps:
    """Steps that were traced, and errors of those that failed."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], ModuleStep | ShardwrightError] = {}

    def step(
        self,
        factory: str,
        arguments: Mapping[str, Any],
        precision: StepPrecision,
        *,
        channels_last: bool,
        fused_attention: bool,
    ) -> ModuleStep:
        """The step; see `trace_module_step` and `build_step`, whose errors are raised each time."""
        key = (
            factory,
            json.dumps(arguments, sort_keys=True),
            precision.weights,
            precision.autocast,
            channels_last,
            fused_attention,
        )
        found = self._known.get(key)
        if found is None:
            from profiles.model.building.build_step import build_step
            from profiles.model.steps.trace_step import trace_module_step

            try:
                given = build_step(
                    factory, arguments, weights=precision.weights, channels_last=channels_last
                )
                found = trace_module_step(given, precision, fused_attention=fused_attention)
            except ShardwrightError as error:
                found = error
            self._known[key] = found
        if isinstance(found, ShardwrightError):
            raise found
        return found
