"""Kernels as arrays, one entry per kernel, with the rates of their device: the input of prices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from profiles.hardware.catalogue.device import Device, twin_type
from profiles.hardware.catalogue.relatives import chip_of
from profiles.model.kernels import DeviceKernel, Direction, Kernel

Array = NDArray[np.float64]
Flags = NDArray[np.bool_]
_KERNELS = {kernel: number for number, kernel in enumerate(Kernel)}
_DIRECTIONS = {direction: number for number, direction in enumerate(Direction)}
ARCHITECTURES = ("pascal", "volta", "turing", "ga100", "ga10x", "ada", "hopper", "blackwell")
# Rates of 16-bit products that are this much above those of float32 come from tensor cores.
_TENSOR_CORES_FROM = 1.3


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelArrays:
    """Arrays [kernels]; kernel and direction index the enumerations `Kernel` and `Direction`.

    half           16-bit kernels
    winograd  convolutions that cuDNN's Winograd kernels take: images, 3 x 3 or 5 x 5, no stride and
            no dilation (cuDNN API reference, cudnnConvolutionFwdAlgo_t, ..._WINOGRAD_NONFUSED)
    product_rate   dense peak flop/s of products in the kernel's type; tensor  on tensor cores
    float_rate     peak flop/s of float32 outside them
    bandwidth      bytes/s of the main memory; processors, cache_bytes  of the chip
    emulated       16-bit kernels of a chip without tensor cores
    slow_sums      the peak is for sums in float32, half of the units' speed (GeForce)
    architecture   index in ARCHITECTURES, or -1
    """

    kernel: NDArray[np.int64]
    direction: NDArray[np.int64]
    backward: Flags
    half: Flags
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
    product_rate: Array
    tensor: Flags
    float_rate: Array
    bandwidth: Array
    processors: Array
    cache_bytes: Array
    emulated: Flags
    slow_sums: Flags
    architecture: NDArray[np.int64]

    def of(self, *kernels: Kernel) -> Flags:
        """Whether each kernel is one of these."""
        return np.isin(self.kernel, [_KERNELS[kernel] for kernel in kernels])

    def towards(self, direction: Direction) -> Flags:
        """Whether each product computes this direction."""
        return np.asarray(self.direction == _DIRECTIONS[direction])

    def taken(self, places: NDArray[np.int64]) -> KernelArrays:
        """The kernels with these indices."""
        return KernelArrays(**{x.name: getattr(self, x.name)[places] for x in fields(self)})


def kernel_arrays(kernels: Sequence[DeviceKernel], device: Device) -> KernelArrays:
    """The kernels on a device, in their order."""
    chip = chip_of(device)
    peaks = {name: peak.value for name, peak in device.peak_flop_per_s.items()}
    half_peak = peaks.get("float16") or peaks.get(twin_type("float16"), max(peaks.values()))
    plain_peak = peaks.get("float32", half_peak)
    # A GeForce's TF32 peak is no higher than its float32 peak, and still runs on tensor cores.
    fine_peak = peaks.get("tf32", plain_peak)
    place = ARCHITECTURES.index(chip.architecture) if chip.architecture in ARCHITECTURES else -1

    def numbers(name: str, least: float = 0.0) -> Array:
        return np.asarray([max(least, float(getattr(x, name))) for x in kernels])

    def flags(of: Callable[[DeviceKernel], bool]) -> Flags:
        return np.asarray([of(x) for x in kernels], dtype=bool)

    def everywhere(value: float) -> Array:
        return np.full(len(kernels), float(value))

    half = flags(lambda x: x.dtype in ("float16", "bfloat16"))
    fine = flags(lambda x: x.dtype == "tf32")
    brain = flags(lambda x: x.dtype == "bfloat16")
    halves = np.where(brain, peaks.get("bfloat16", half_peak), half_peak)
    on_tensors = halves > _TENSOR_CORES_FROM * plain_peak
    return KernelArrays(
        kernel=np.asarray([_KERNELS[x.kernel] for x in kernels]),
        direction=np.asarray([_DIRECTIONS[x.direction] for x in kernels]),
        backward=flags(lambda x: x.backward),
        half=half,
        channels_last=flags(lambda x: x.channels_last),
        flop=numbers("work_flop"),
        moved_bytes=numbers("moved_bytes"),
        batch=numbers("batch", 1.0),
        m=numbers("m", 1.0),
        n=numbers("n", 1.0),
        k=numbers("k", 1.0),
        taps=numbers("taps", 1.0),
        stride=numbers("stride"),
        winograd=flags(_is_winograd),
        count=numbers("count"),
        product_rate=np.where(half, halves, np.where(fine, fine_peak, plain_peak)),
        tensor=(half & on_tensors) | (fine & ("tf32" in peaks)),
        float_rate=everywhere(plain_peak),
        bandwidth=everywhere(device.memory_bandwidth_bytes_per_s.value),
        processors=everywhere(chip.processors),
        cache_bytes=everywhere(chip.cache_bytes),
        emulated=half & ~on_tensors,
        slow_sums=np.full(len(kernels), chip.float32_sums < 1),
        architecture=np.full(len(kernels), place),
    )


def _is_winograd(x: DeviceKernel) -> bool:
    return x.spatial == 2 and x.taps in (9, 25) and x.stride == x.dilation == 1
