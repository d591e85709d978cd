"""Seconds of the kernels of an accelerator on which no such kernel was measured, inside a step.

    product     hypot(work / (peak x share) x small, bytes / (bandwidth x share)) + reordering
    depthwise   hypot(work / (float32 peak x share), bytes / (bandwidth x share)) x slower,
                of strides and of kernels larger than 5 x 5
    others      bytes / (bandwidth x share) + work / float32 peak (of a scan over the tokens)

and each kernel with work begins `start` after the previous one. A convolution is priced as the
equivalent product (implicit GEMM: Chetlur et al., cuDNN, arXiv 1410.0759). `small` is the loss of a
product [m, k] x [k, n] at its edges and in filling the chip,

    (1 + n0 / n) (1 + k0 / k) (1 + m0 / m) (1 + fill x processors / parts)

with parts of 64 x 64 outputs and at most 1024 summands. Without tensor cores, Winograd's algorithm
saves products (Lavin and Gray, arXiv 1509.09308); convolutions that it does not support (strided,
dilated, of volumes) reach `direct` of the others' speed. Tensor cores read channels innermost, so
with channels first a convolution's tensors are reordered before and after it. The share cached x
cache / (cache + bytes) is in the last-level cache and not read from memory. `architecture.*` is a
factor on the shares for an architecture's kernels. All shares are in
profiles/data/calibration/module_steps.toml, fitted on measured steps, not on single kernels.

`kernels_costs` gives the cost of the kernels of ops, with the interval of left-out steps; errors of
all kernels are fully correlated.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.device import Device
from profiles.hardware.catalogue.relatives import chip_of
from profiles.model.kernels import DeviceKernel, Direction, Kernel
from simulator.traced.cost import Cost
from simulator.traced.kernel_arrays import ARCHITECTURES, Array, Flags, KernelArrays, kernel_arrays
from simulator.traced.kernel_constants import is_unmeasured, module_constants

Values = Mapping[str, float]

_PART = 64.0 * 64.0
_SUMMANDS = 1024.0
_USUAL_TAPS = 25
_CONVOLUTIONS = (Kernel.CONV_1X1, Kernel.CONV, Kernel.GROUPED)
# With channels innermost, groups of so many channels in and out, in multiples of so many groups,
# run on special kernels; all others on a general one. Source: measured steps: ResNeXt
# against RegNet, ResNeSt, SENet-154, RepVGG-g4 and DLA-x.
_GROUP_WIDTHS = (4, 8, 16, 32)
_GROUPS_AT_ONCE = 32
_LAYOUTS = {False: "channels_first", True: "channels_last"}
# Kernels that only move bytes, with a share for each pass; others have one for both.
_BY_PASS = (Kernel.ROW_NORM, Kernel.POOL, Kernel.RESIZE)


KernelGroups = Mapping[Kernel, tuple[NDArray[np.int64], KernelArrays]]
"""Kernels priced by one formula: their indices among all, and the kernels."""


def grouped(kernels: KernelArrays) -> KernelGroups:
    """The kernels, grouped by their formula."""
    places = {kernel: np.flatnonzero(kernels.of(kernel)) for kernel in Kernel}
    return {kernel: (at, kernels.taken(at)) for kernel, at in places.items() if len(at)}


def kernel_seconds(kernels: KernelGroups, values: Values) -> Array:
    """[kernels] seconds of one run of each."""
    seconds = np.zeros(sum(len(places) for places, _ in kernels.values()))
    for kernel, (places, group) in kernels.items():
        seconds[places] = group_seconds(kernel, group, values)
    return seconds


def group_seconds(kernel: Kernel, x: KernelArrays, values: Values) -> Array:
    """[kernels] seconds of one run of each kernel of a group."""
    return _formula(kernel)(kernel, x, values) + values["start_us"] * 1e-6


def _formula(kernel: Kernel) -> Callable[[Kernel, KernelArrays, Values], Array]:
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


def _name(kernel: Kernel) -> str:
    """The kernel in the names of constants: `conv_1x1`, `grouped`, `row_norm`."""
    return kernel.value.removesuffix(" conv").replace(" ", "_")


def _moved_s(x: KernelArrays, values: Values) -> Array:
    """Seconds for the bytes at full bandwidth."""
    moved, cache = x.moved_bytes, x.cache_bytes
    read = moved * (1 - values["cached"] * cache / (cache + moved + 1.0))
    return read / (x.bandwidth * _of_architecture("memory", x, values))


def _work_s(x: KernelArrays, values: Values) -> Array:
    """Seconds for the work at peak rate."""
    tensor = _of_architecture("tensor", x, values)
    tensor = tensor * np.where(x.slow_sums, values["peak.float32_sums"], 1.0)
    plain = _of_architecture("float32", x, values) * values["peak.float32"]
    return x.flop / (x.product_rate * np.where(x.tensor, tensor, plain))


def _of_architecture(part: str, x: KernelArrays, values: Values) -> Array:
    known = [values.get(f"architecture.{name}.{part}", 1.0) for name in ARCHITECTURES]
    return np.asarray([*known, 1.0])[x.architecture]  # the last: -1, unknown


def _small(x: KernelArrays, values: Values) -> Array:
    found = np.ones(len(x.count))
    for name, size in (("m", x.m), ("n", x.n), ("k", x.k)):
        edge = np.where(x.tensor, values[f"small.{name}.tensor"], values[f"small.{name}.float32"])
        found = found * (1 + edge / size)
    parts = x.m * x.n / _PART * np.maximum(1.0, x.k / _SUMMANDS) * x.batch
    return found * (1 + values["fill"] * x.processors / parts)


def _by_direction(x: KernelArrays, values: Values, key: str) -> Array:
    found = np.ones(len(x.count))
    for direction in Direction:
        word = direction.value.split()[0]
        found = np.where(x.towards(direction), values[f"{key}.{word}"], found)
    return found


def _by_pass(x: KernelArrays, values: Values, key: str) -> Array:
    return np.where(x.backward, values[f"{key}.backward"], values[f"{key}.forward"])


def _convolution_s(kernel: Kernel, x: KernelArrays, values: Values) -> Array:
    name = _name(kernel)
    last = x.channels_last & x.tensor & x.half
    share = _by_direction(x, values, f"peak.{name}")
    share = share * np.where(x.emulated, values["peak.emulated"], 1.0)
    share = share * np.where(last, values[f"peak.{name}.channels_last"], 1.0)
    if kernel is Kernel.CONV:
        direct = ~x.tensor & ~x.winograd
        share = share * np.where(direct, values["peak.conv.direct"], 1.0)
    alone_s = _work_s(x, values)
    work_s = alone_s / share * _small(x, values)
    if kernel is Kernel.GROUPED:
        slow = last & ~_has_grouped_kernel(x)
        work_s = np.where(slow, alone_s / values["peak.grouped.general"], work_s)
    moved_s = _moved_s(x, values)
    rate = np.where(
        last, values[f"bytes.{name}.channels_last"], values[f"bytes.{name}.channels_first"]
    )
    reordered = np.where(x.tensor & x.half & ~last, values[f"reorder.{name}"], 0.0)
    return np.hypot(work_s, moved_s / rate) + moved_s * reordered


def _has_grouped_kernel(x: KernelArrays) -> Flags:
    weight = x.towards(Direction.WEIGHT_GRADIENT)
    one = np.where(weight, x.m, x.n)
    other = np.where(weight, x.n, x.k) / x.taps
    known = np.isin(one, _GROUP_WIDTHS) & (one == other)
    return np.asarray(known & (x.batch % _GROUPS_AT_ONCE == 0))


def _matmul_s(kernel: Kernel, x: KernelArrays, values: Values) -> Array:
    share = np.full(len(x.count), values["peak.matmul.batched"])
    if kernel is not Kernel.BATCHED_MATMUL:
        # The gradient of a weight sums over the rows, of which there are many.
        backward = np.where(x.k > x.m, values["peak.matmul.weight"], values["peak.matmul.input"])
        share = np.where(x.backward, backward, values["peak.matmul.output"])
    work_s = _work_s(x, values) / share * _small(x, values)
    return np.asarray(np.hypot(work_s, _moved_s(x, values) / values["bytes.matmul"]))


def _attention_s(kernel: Kernel, x: KernelArrays, values: Values) -> Array:
    work_s = _work_s(x, values) / values["peak.attention"]
    return np.hypot(work_s, _moved_s(x, values) / values["bytes.matmul"])


def _depthwise_s(kernel: Kernel, x: KernelArrays, values: Values) -> Array:
    moved, worked, slower = (np.ones(len(x.count)) for _ in range(3))
    for last, layout in _LAYOUTS.items():
        lies = x.channels_last == last
        slower[lies & (x.stride > 1)] *= values[f"depthwise.strided.{layout}"]
        slower[lies & (x.taps > _USUAL_TAPS)] *= values[f"depthwise.wide.{layout}"]
        for part, found in (("bytes", moved), ("peak", worked)):
            shares = _by_direction(x, values, f"depthwise.{part}.{layout}")
            found[lies] = shares[lies]
    work_s = x.flop / (x.float_rate * worked)
    return np.hypot(_moved_s(x, values) / moved, work_s) * slower


def _batch_norm_s(kernel: Kernel, x: KernelArrays, values: Values) -> Array:
    first = _by_pass(x, values, "bytes.batch_norm.channels_first")
    last = _by_pass(x, values, "bytes.batch_norm.channels_last")
    share = np.where(x.channels_last, last, first)
    return _moved_s(x, values) / share


def _moving_s(kernel: Kernel, x: KernelArrays, values: Values) -> Array:
    moved_s = _moved_s(x, values)
    if kernel in _BY_PASS:
        return moved_s / _by_pass(x, values, f"bytes.{_name(kernel)}")
    # Bytes are read at most at the memory's speed; those in the cache are counted there.
    return moved_s / min(1.0, values[f"bytes.{_name(kernel)}"]) + x.flop / x.float_rate


def seconds_in_step(
    kernels: Sequence[DeviceKernel], device: Device, *, compiled: bool
) -> tuple[Array, Flags]:
    """[kernels] seconds of all runs of each, and whether too few steps of the fit have its kind.

    compiled  a compiler fuses memory-bound kernels with others, unlike in any step of the fit
    """
    used = module_constants()
    arrays = kernel_arrays(kernels, device)
    each = kernel_seconds(grouped(arrays), used.values) * arrays.count
    unknown = [is_unmeasured(x, used.kinds, compiled=compiled) for x in kernels]
    return each, np.asarray(unknown)


def kernels_costs(
    ops: Sequence[tuple[DeviceKernel, ...]], device: Device, *, compiled: bool = False
) -> list[Cost]:
    """The cost inside a step of the kernels of each op.

    compiled  a compiler fuses memory-bound kernels with others, unlike in any step of the fit
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
                value=whole_s,
                low=whole_s / factor,
                high=whole_s * factor,
                method="assumed" if guessed_s else "interpolated",
                source=source,
            )
        )
    return costs


@functools.cache
def step_width(device: Device) -> float:
    """Half-width, in log, of the 90 % interval of a step's kernels and host time, depending on
    whether the fit has the device, another of its architecture, or none."""
    used = module_constants()
    if device.name in used.measured_devices:
        return used.half_widths["device"]
    near = {chip_of(get_device(name)).architecture for name in used.measured_devices}
    return used.half_widths["architecture" if chip_of(device).architecture in near else "none"]
