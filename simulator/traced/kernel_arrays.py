"""Kernels as arrays, one entry per kernel: what prices are computed on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from profiles.model.kernels import DeviceKernel, Direction, Kernel

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
_KERNELS = {kernel: number for number, kernel in enumerate(Kernel)}
_DIRECTIONS = {direction: number for number, direction in enumerate(Direction)}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelArrays:
    """[kernels] each; kernel and direction are places in the enumerations `Kernel`, `Direction`.

    half, brain    of 16 bits, and of these of bfloat16;  fine  of TF32
    winograd  convolutions that cuDNN's Winograd kernels take: images, 3 x 3 or 5 x 5, no stride and
            no dilation (cuDNN API reference, cudnnConvolutionFwdAlgo_t, ..._WINOGRAD_NONFUSED)
    """

    kernel: NDArray[np.int64]
    direction: NDArray[np.int64]
    backward: Flags
    half: Flags
    brain: Flags
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

    def of(self, *kernels: Kernel) -> Flags:
        """Where the kernel is one of these."""
        return np.isin(self.kernel, [_KERNELS[kernel] for kernel in kernels])

    def towards(self, direction: Direction) -> Flags:
        """Where a product makes this."""
        return np.asarray(self.direction == _DIRECTIONS[direction])

    def taken(self, places: NDArray[np.int64]) -> KernelArrays:
        """The kernels at these places."""
        return KernelArrays(**{x.name: getattr(self, x.name)[places] for x in fields(self)})


def kernel_arrays(kernels: Sequence[DeviceKernel]) -> KernelArrays:
    """The kernels, in their order."""

    def numbers(name: str, least: float = 0.0) -> Array:
        return np.asarray([max(least, float(getattr(x, name))) for x in kernels])

    return KernelArrays(
        kernel=np.asarray([_KERNELS[x.kernel] for x in kernels]),
        direction=np.asarray([_DIRECTIONS[x.direction] for x in kernels]),
        backward=np.asarray([x.backward for x in kernels], dtype=bool),
        half=np.asarray([x.dtype in ("float16", "bfloat16") for x in kernels], dtype=bool),
        brain=np.asarray([x.dtype == "bfloat16" for x in kernels], dtype=bool),
        fine=np.asarray([x.dtype == "tf32" for x in kernels], dtype=bool),
        channels_last=np.asarray([x.channels_last for x in kernels], dtype=bool),
        flop=numbers("work_flop"),
        moved_bytes=numbers("moved_bytes"),
        batch=numbers("batch", 1.0),
        m=numbers("m", 1.0),
        n=numbers("n", 1.0),
        k=numbers("k", 1.0),
        taps=numbers("taps", 1.0),
        stride=numbers("stride"),
        winograd=np.asarray([_is_winograd(x) for x in kernels], dtype=bool),
        count=numbers("count"),
    )


def _is_winograd(x: DeviceKernel) -> bool:
    return x.spatial == 2 and x.taps in (9, 25) and x.stride == x.dilation == 1
