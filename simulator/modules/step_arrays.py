"""The kernels of a step as arrays, one entry per distinct kernel: what prices are computed on."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from profiles.model.graph import Phase
from profiles.model.steps.module_step import Direction, Kernel, ModuleStep, StepOp

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
_KERNELS = {kernel: number for number, kernel in enumerate(Kernel)}
_DIRECTIONS = {direction: number for number, direction in enumerate(Direction)}
_HALF = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepArrays:
    """[kernels] each; kernel and direction are places in the enumerations `Kernel`, `Direction`.

    half    of 16 bits;  fine  of float32 (products that TF32 may speed up)
    winograd  convolutions that cuDNN's Winograd kernels take: images, 3 x 3 or 5 x 5, no stride and
            no dilation (cuDNN API reference, cudnnConvolutionFwdAlgo_t, ..._WINOGRAD_NONFUSED)
    count   times in the step;  starts  calls from the host in the step
    """

    kernel: NDArray[np.int64]
    direction: NDArray[np.int64]
    backward: Flags
    half: Flags
    fine: Flags
    channels_last: Flags
    flop: Array
    moved_bytes: Array
    batch: Array
    m: Array
    n: Array
    k: Array
    taps: Array
    stride: Array
    winograd: Flags
    count: Array
    starts: Array

    def of(self, *kernels: Kernel) -> Flags:
        """Where the kernel is one of these."""
        return np.isin(self.kernel, [_KERNELS[kernel] for kernel in kernels])

    def towards(self, direction: Direction) -> Flags:
        """Where a product makes this."""
        return np.asarray(self.direction == _DIRECTIONS[direction])

    def taken(self, places: NDArray[np.int64]) -> StepArrays:
        """The kernels at these places."""
        return StepArrays(**{x.name: getattr(self, x.name)[places] for x in fields(self)})


def step_arrays(step: ModuleStep) -> StepArrays:
    """The kernels of a step, in their order."""
    ops = step.ops

    def numbers(name: str) -> Array:
        return np.asarray([getattr(op, name) for op in ops], dtype=np.float64)

    return StepArrays(
        kernel=np.asarray([_KERNELS[op.kernel] for op in ops]),
        direction=np.asarray([_DIRECTIONS[op.direction] for op in ops]),
        backward=np.asarray([op.phase is Phase.BACKWARD for op in ops]),
        half=np.asarray([op.dtype in _HALF for op in ops]),
        fine=np.asarray([op.dtype == "float32" for op in ops]),
        channels_last=np.asarray([op.channels_last for op in ops]),
        flop=numbers("work_flop"),
        moved_bytes=numbers("moved_bytes"),
        batch=np.maximum(numbers("batch"), 1.0),
        m=np.maximum(numbers("m"), 1.0),
        n=np.maximum(numbers("n"), 1.0),
        k=np.maximum(numbers("k"), 1.0),
        taps=np.maximum(numbers("taps"), 1.0),
        stride=numbers("stride"),
        winograd=np.asarray([_is_winograd(op) for op in ops]),
        count=numbers("count"),
        starts=numbers("count") * numbers("starts"),
    )


def _is_winograd(op: StepOp) -> bool:
    return op.spatial == 2 and op.taps in (9, 25) and op.stride == op.dilation == 1
