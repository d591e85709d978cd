"""The speeds that a device brings to each kernel of a step, as arrays beside `StepArrays`."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from profiles.hardware.catalogue.chip import chip_of
from profiles.hardware.catalogue.device import Device, twin_type
from profiles.model.steps.module_step import StepPrecision
from simulator.modules.step_arrays import Array, Flags, StepArrays

# Rates of 16-bit products that are this much above those of float32 come from tensor cores.
_TENSOR_CORES_FROM = 1.3


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRates:
    """[kernels] each.

    product_rate   dense peak flop/s of products in the kernel's type; tensor  on tensor cores
    float_rate     peak flop/s of float32 outside them
    bandwidth      bytes/s of the main memory; processors, cache_bytes  of the chip
    emulated       16-bit kernels of a chip without tensor cores
    slow_sums      the peak is that of sums in float32, half of what the units could (GeForce)
    architecture   place in ARCHITECTURES, or -1
    """

    product_rate: Array
    tensor: Flags
    float_rate: Array
    bandwidth: Array
    processors: Array
    cache_bytes: Array
    emulated: Flags
    slow_sums: Flags
    architecture: NDArray[np.int64]

    def taken(self, places: NDArray[np.int64]) -> KernelRates:
        """The rates at these places."""
        return KernelRates(**{x.name: getattr(self, x.name)[places] for x in fields(self)})


ARCHITECTURES = ("pascal", "volta", "turing", "ga100", "ga10x", "ada", "hopper", "blackwell")


def kernel_rates(arrays: StepArrays, device: Device, precision: StepPrecision) -> KernelRates:
    """The rates of one device for the kernels of a step in a precision."""
    chip = chip_of(device)
    size = len(arrays.count)
    peaks = {name: peak.value for name, peak in device.peak_flop_per_s.items()}
    half = max(peaks.get("float16", 0.0), peaks.get(twin_type("float16"), 0.0)) or max(
        peaks.values()
    )
    plain = peaks.get("float32", half)
    if "float16" in peaks and precision.weights != "bfloat16" and precision.autocast != "bfloat16":
        half = peaks["float16"]
    elif "bfloat16" in peaks:
        half = peaks["bfloat16"]
    tensor_half = half > _TENSOR_CORES_FROM * plain
    fine = peaks.get("tf32", plain) if precision.tf32 else plain
    # A GeForce's TF32 peak is no higher than its float32 peak, and still runs on tensor cores.
    tensor_fine = precision.tf32 and "tf32" in peaks
    tensor = (arrays.half & tensor_half) | (arrays.fine & tensor_fine)
    rate = np.where(arrays.half, half, np.where(arrays.fine, fine, plain))
    place = ARCHITECTURES.index(chip.architecture) if chip.architecture in ARCHITECTURES else -1

    def everywhere(value: float) -> Array:
        return np.full(size, float(value))

    return KernelRates(
        product_rate=rate,
        tensor=tensor,
        float_rate=everywhere(plain),
        bandwidth=everywhere(device.memory_bandwidth_bytes_per_s.value),
        processors=everywhere(chip.processors),
        cache_bytes=everywhere(chip.cache_bytes),
        emulated=arrays.half & (not tensor_half),
        slow_sums=np.full(size, chip.float32_sums < 1),
        architecture=np.full(size, place),
    )
