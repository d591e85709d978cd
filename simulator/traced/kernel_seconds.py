"""Seconds of the kernels of an accelerator on which no such kernel was measured, inside a step.

    product     hypot(work / (peak x share) x small, bytes / (bandwidth x share)) + reordering
    depthwise   hypot(work / (float32 peak x share), bytes / (bandwidth x share)) x slower,
                of strides and of kernels larger than 5 x 5
    others      bytes / (bandwidth x share)

and each kernel that does work begins `start` after the one before it. A convolution is the product
that it equals (implicit GEMM: Chetlur et al., cuDNN, arXiv 1410.0759). `small` is what a product
[m, k] x [k, n] loses at its edges and in filling the chip,

    (1 + n0 / n) (1 + k0 / k) (1 + m0 / m) (1 + fill x processors / parts)

parts of 64 x 64 outputs and at most 1024 summands. Outside tensor cores, convolutions that
Winograd's algorithm does not take (strided, dilated, of volumes) reach `direct` of what the others
reach, which it saves products (Lavin and Gray, arXiv 1509.09308). Tensor cores read channels
innermost: with channels first a convolution's tensors are reordered before and after it. What lies
in the last-level cache is not read from memory: cached x cache / (cache + bytes) of the bytes.
`architecture.*` is what an architecture's kernels reach of its datasheet, a factor to the shares.
All shares are in profiles/data/calibration/module_steps.toml, fitted on measured steps: none was
measured kernel by kernel.

`kernels_costs` is the cost of what ops start, with the interval of the steps that were left out
of the fit, all kernels too fast or too slow together.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.device import Device, twin_type
from profiles.hardware.catalogue.relatives import chip_of
from profiles.model.kernels import DeviceKernel, Direction, Kernel
from simulator.traced.cost import Cost
from simulator.traced.kernel_arrays import Array, Flags, KernelArrays, kernel_arrays
from simulator.traced.kernel_constants import module_constants
from simulator.traced.kernel_kinds import is_unmeasured

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


def kernel_rates(arrays: KernelArrays, device: Device) -> KernelRates:
    """The rates of one device for these kernels."""
    chip = chip_of(device)
    peaks = {name: peak.value for name, peak in device.peak_flop_per_s.items()}
    most = max(peaks.values())
    half = peaks.get("float16") or peaks.get(twin_type("float16"), most)
    plain = peaks.get("float32", half)
    # A GeForce's TF32 peak is no higher than its float32 peak, and still runs on tensor cores.
    fine = peaks.get("tf32", plain)
    halves = np.where(arrays.brain, peaks.get("bfloat16", half), half)
    on_tensors = halves > _TENSOR_CORES_FROM * plain
    place = ARCHITECTURES.index(chip.architecture) if chip.architecture in ARCHITECTURES else -1

    def everywhere(value: float) -> Array:
        return np.full(len(arrays.count), float(value))

    return KernelRates(
        product_rate=np.where(arrays.half, halves, np.where(arrays.fine, fine, plain)),
        tensor=(arrays.half & on_tensors) | (arrays.fine & ("tf32" in peaks)),
        float_rate=everywhere(plain),
        bandwidth=everywhere(device.memory_bandwidth_bytes_per_s.value),
        processors=everywhere(chip.processors),
        cache_bytes=everywhere(chip.cache_bytes),
        emulated=arrays.half & ~on_tensors,
        slow_sums=np.full(len(arrays.count), chip.float32_sums < 1),
        architecture=np.full(len(arrays.count), place),
    )


Values = Mapping[str, float]

_PART = 64.0 * 64.0
_SUMMANDS = 1024.0
_USUAL_TAPS = 25
_CONVOLUTIONS = {
    Kernel.CONV_1X1: "conv_1x1",
    Kernel.CONV: "conv",
    Kernel.GROUPED: "grouped",
}
_DIRECTIONS = {
    Direction.OUTPUT: "output",
    Direction.INPUT_GRADIENT: "input",
    Direction.WEIGHT_GRADIENT: "weight",
}
# With channels innermost, groups of so many channels in and out, in multiples of so many groups,
# run on special kernels; all others on a general one. Read off measured steps: ResNeXt
# against RegNet, ResNeSt, SENet-154, RepVGG-g4 and DLA-x.
_GROUP_WIDTHS = (4, 8, 16, 32)
_GROUPS_AT_ONCE = 32
_LAYOUTS = {False: "channels_first", True: "channels_last"}
# Kernels that only move bytes, with a share for each pass, or one for both.
_BY_PASS = {
    Kernel.ROW_NORM: "row_norm",
    Kernel.POOL: "pool",
    Kernel.RESIZE: "resize",
}
_ALIKE = {
    Kernel.SOFTMAX: "softmax",
    Kernel.REDUCTION: "reduction",
    Kernel.COPY: "copy",
    Kernel.TRANSPOSE: "transpose",
    Kernel.GATHER: "gather",
    Kernel.SCATTER: "scatter",
    Kernel.FILL: "fill",
    Kernel.ELEMENTWISE: "elementwise",
    Kernel.SORT: "sort",
    Kernel.FFT: "fft",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelGroup:
    """The kernels that are priced by one formula, and their places among all."""

    places: NDArray[np.int64]
    arrays: KernelArrays
    rates: KernelRates


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelGroups:
    """Kernels on a device, sorted for pricing; `size` of them. Made by `grouped`."""

    size: int
    groups: Mapping[Kernel, KernelGroup]


def grouped(arrays: KernelArrays, rates: KernelRates) -> KernelGroups:
    """The kernels by what prices them."""
    found: dict[Kernel, KernelGroup] = {}
    for kernel in Kernel:
        places = np.flatnonzero(arrays.of(kernel))
        if len(places):
            found[kernel] = KernelGroup(
                places=places, arrays=arrays.taken(places), rates=rates.taken(places)
            )
    return KernelGroups(size=len(arrays.count), groups=found)


def kernel_seconds(kernels: KernelGroups, values: Values) -> Array:
    """[kernels] seconds of one run of each, in their order."""
    seconds = np.zeros(kernels.size)
    for kernel, group in kernels.groups.items():
        seconds[group.places] = group_seconds(kernel, group, values)
    return seconds


def group_seconds(kernel: Kernel, group: KernelGroup, values: Values) -> Array:
    """Seconds of one run of each kernel of a group."""
    return _formula(kernel)(kernel, group, values) + values["start_us"] * 1e-6


def _formula(kernel: Kernel) -> Callable[[Kernel, KernelGroup, Values], Array]:
    if kernel in _CONVOLUTIONS:
        return _convolution_s
    if kernel in (Kernel.MATMUL, Kernel.BATCHED_MATMUL, Kernel.RECURRENCE):
        return _matmul_s
    others = {
        Kernel.ATTENTION: _attention_s,
        Kernel.DEPTHWISE: _depthwise_s,
        Kernel.BATCH_NORM: _batch_norm_s,
    }
    return others.get(kernel, _moving_s)


def _moved_s(group: KernelGroup, values: Values) -> Array:
    """Seconds that the bytes take at the whole bandwidth."""
    moved, cache = group.arrays.moved_bytes, group.rates.cache_bytes
    read = moved * (1 - values["cached"] * cache / (cache + moved + 1.0))
    return read / (group.rates.bandwidth * _of_architecture("memory", group, values))


def _work_s(group: KernelGroup, values: Values) -> Array:
    """Seconds that the work takes at the whole peak."""
    rates = group.rates
    tensor = _of_architecture("tensor", group, values)
    tensor = tensor * np.where(rates.slow_sums, values["peak.float32_sums"], 1.0)
    plain = _of_architecture("float32", group, values) * values["peak.float32"]
    return group.arrays.flop / (rates.product_rate * np.where(rates.tensor, tensor, plain))


def _of_architecture(part: str, group: KernelGroup, values: Values) -> Array:
    known = [values.get(f"architecture.{name}.{part}", 1.0) for name in ARCHITECTURES]
    return np.asarray([*known, 1.0])[group.rates.architecture]  # the last: -1, unknown


def _small(group: KernelGroup, values: Values) -> Array:
    x, tensor = group.arrays, group.rates.tensor
    found = np.ones(len(x.count))
    for name, size in (("m", x.m), ("n", x.n), ("k", x.k)):
        edge = np.where(tensor, values[f"small.{name}.tensor"], values[f"small.{name}.float32"])
        found = found * (1 + edge / size)
    parts = x.m * x.n / _PART * np.maximum(1.0, x.k / _SUMMANDS) * x.batch
    return found * (1 + values["fill"] * group.rates.processors / parts)


def _by_direction(group: KernelGroup, values: Values, key: str) -> Array:
    found = np.ones(len(group.arrays.count))
    for direction, word in _DIRECTIONS.items():
        found = np.where(group.arrays.towards(direction), values[f"{key}.{word}"], found)
    return found


def _by_pass(group: KernelGroup, values: Values, key: str) -> Array:
    backward = group.arrays.backward
    return np.where(backward, values[f"{key}.backward"], values[f"{key}.forward"])


def _convolution_s(kernel: Kernel, group: KernelGroup, values: Values) -> Array:
    name, x, rates = _CONVOLUTIONS[kernel], group.arrays, group.rates
    last = x.channels_last & rates.tensor & x.half
    share = _by_direction(group, values, f"peak.{name}")
    share = share * np.where(rates.emulated, values["peak.emulated"], 1.0)
    share = share * np.where(last, values[f"peak.{name}.channels_last"], 1.0)
    if kernel is Kernel.CONV:
        direct = ~rates.tensor & ~x.winograd
        share = share * np.where(direct, values["peak.conv.direct"], 1.0)
    alone_s = _work_s(group, values)
    work_s = alone_s / share * _small(group, values)
    if kernel is Kernel.GROUPED:
        slow = last & ~_has_grouped_kernel(x)
        work_s = np.where(slow, alone_s / values["peak.grouped.general"], work_s)
    moved_s = _moved_s(group, values)
    rate = np.where(
        last, values[f"bytes.{name}.channels_last"], values[f"bytes.{name}.channels_first"]
    )
    reordered = np.where(rates.tensor & x.half & ~last, values[f"reorder.{name}"], 0.0)
    return np.hypot(work_s, moved_s / rate) + moved_s * reordered


def _has_grouped_kernel(x: KernelArrays) -> Flags:
    weight = x.towards(Direction.WEIGHT_GRADIENT)
    one = np.where(weight, x.m, x.n)
    other = np.where(weight, x.n, x.k) / x.taps
    known = np.isin(one, _GROUP_WIDTHS) & (one == other)
    return np.asarray(known & (x.batch % _GROUPS_AT_ONCE == 0))


def _matmul_s(kernel: Kernel, group: KernelGroup, values: Values) -> Array:
    x = group.arrays
    share = np.full(len(x.count), values["peak.matmul.batched"])
    if kernel is not Kernel.BATCHED_MATMUL:
        # The gradient of a weight sums over the rows, of which there are many.
        backward = np.where(x.k > x.m, values["peak.matmul.weight"], values["peak.matmul.input"])
        share = np.where(x.backward, backward, values["peak.matmul.output"])
    work_s = _work_s(group, values) / share * _small(group, values)
    return np.asarray(np.hypot(work_s, _moved_s(group, values) / values["bytes.matmul"]))


def _attention_s(kernel: Kernel, group: KernelGroup, values: Values) -> Array:
    work_s = _work_s(group, values) / values["peak.attention"]
    return np.hypot(work_s, _moved_s(group, values) / values["bytes.matmul"])


def _depthwise_s(kernel: Kernel, group: KernelGroup, values: Values) -> Array:
    x = group.arrays
    moved, worked, slower = (np.ones(len(x.count)) for _ in range(3))
    for last, layout in _LAYOUTS.items():
        lies = x.channels_last == last
        slower[lies & (x.stride > 1)] *= values[f"depthwise.strided.{layout}"]
        slower[lies & (x.taps > _USUAL_TAPS)] *= values[f"depthwise.wide.{layout}"]
        for part, found in (("bytes", moved), ("peak", worked)):
            shares = _by_direction(group, values, f"depthwise.{part}.{layout}")
            found[lies] = shares[lies]
    work_s = x.flop / (group.rates.float_rate * worked)
    return np.hypot(_moved_s(group, values) / moved, work_s) * slower


def _batch_norm_s(kernel: Kernel, group: KernelGroup, values: Values) -> Array:
    first = _by_pass(group, values, "bytes.batch_norm.channels_first")
    last = _by_pass(group, values, "bytes.batch_norm.channels_last")
    share = np.where(group.arrays.channels_last, last, first)
    return _moved_s(group, values) / share


def _moving_s(kernel: Kernel, group: KernelGroup, values: Values) -> Array:
    moved_s = _moved_s(group, values)
    if kernel in _BY_PASS:
        return moved_s / _by_pass(group, values, f"bytes.{_BY_PASS[kernel]}")
    # Nothing is read faster than memory gives it: what lies in the cache is counted there.
    return moved_s / min(1.0, values[f"bytes.{_ALIKE[kernel]}"])


def seconds_in_step(
    kernels: Sequence[DeviceKernel], device: Device, *, compiled: bool
) -> tuple[Array, Flags]:
    """[kernels] seconds of all runs of each, and whether too few steps of the fit have its kind.

    compiled  a compiler joins memory-bound kernels with others, as in no step of the fit
    """
    used = module_constants()
    arrays = kernel_arrays(kernels)
    each = kernel_seconds(grouped(arrays, kernel_rates(arrays, device)), used.values) * arrays.count
    unknown = [is_unmeasured(x, used.kinds, compiled=compiled) for x in kernels]
    return each, np.asarray(unknown)


def kernels_costs(
    ops: Sequence[tuple[DeviceKernel, ...]], device: Device, *, compiled: bool = False
) -> list[Cost]:
    """The cost inside a step of the kernels of each op.

    compiled  a compiler joins what only moves bytes with other kernels, as in no step of the fit
    """
    kernels = [kernel for op in ops for kernel in op]
    if not kernels:
        return []
    used = module_constants()
    each, unknown = seconds_in_step(kernels, device, compiled=compiled)
    places = np.repeat(np.arange(len(ops)), [len(op) for op in ops])
    sums = [np.bincount(places, x, len(ops)) for x in (each, each * unknown)]
    source = f"shares of peak and bandwidth fitted on {used.rows} measured steps of modules"
    costs = []
    for whole_s, guessed_s in zip(*(x.tolist() for x in sums), strict=True):
        more = used.half_widths["kernel"] * guessed_s / whole_s
        factor = math.exp(math.hypot(step_width(device), more))
        costs.append(
            Cost(
                time_s=whole_s,
                low_s=whole_s / factor,
                high_s=whole_s * factor,
                method="assumed" if guessed_s else "interpolated",
                source=source,
            )
        )
    return costs


@functools.cache
def step_width(device: Device) -> float:
    """Half-width, in log, of the 90 % interval of a step's kernels and of its host: where the fit
    has the device, another of its architecture, or none."""
    used = module_constants()
    if device.name in used.measured_devices:
        return used.half_widths["device"]
    near = {chip_of(get_device(name)).architecture for name in used.measured_devices}
    return used.half_widths["architecture" if chip_of(device).architecture in near else "none"]
