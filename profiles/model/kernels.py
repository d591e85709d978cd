"""Kernels that a traced op launches on an accelerator, with the properties that affect their speed:
flop, bytes, and groups, strides and layout of convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kernel(StrEnum):
    """Kinds of kernels with one time formula."""

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
    """Result of a matmul or convolution kernel."""

    OUTPUT = "output"
    INPUT_GRADIENT = "input gradient"
    WEIGHT_GRADIENT = "weight gradient"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKernel:
    """A kernel that an op launches `count` times with the same sizes.

    dtype  of the arithmetic; `tf32` for float32 products on the tensor cores
    read_bytes, written_bytes   every tensor once, broadcast tensors at their stored size
    batch, m, n, k    `batch` products [m, k] x [k, n]; for a convolution the equivalent product of
           each of its `batch` groups; 0 for other kernels
    taps   elements of a convolution's kernel; stride, dilation  its largest
    spatial   spatial dimensions of a convolution: 2 for images; 0 for other kernels
    channels_last   whether channels are innermost in memory
    """

    kernel: Kernel
    dtype: str
    backward: bool = False
    direction: Direction = Direction.OUTPUT
    work_flop: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    batch: int = 0
    m: int = 0
    n: int = 0
    k: int = 0
    taps: int = 0
    stride: int = 1
    dilation: int = 1
    spatial: int = 0
    channels_last: bool = False
    count: int = 1

    @property
    def moved_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.written_bytes
