"""`KernelSurface`: measured kernels of a device, or of a relative, as fitted tables.

Common parts of the surfaces of matmuls (gemm_surface.py) and attention (attention_surface.py): the
numbers of a table, its errors on held-out rows, the formula
t = launch + (t_math^p + t_memory^p)^(1/p), and the paths of the files.

The formulas have few physical parameters; a `LogGrid` has their residuals over log2 of a shape,
with multilinear interpolation, in integer per cent of the natural logarithm of time, so that the
files are readable.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from profiles.document import read_document
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import DATA, get_device
from profiles.hardware.catalogue.device import Device
from profiles.hardware.catalogue.relatives import relative_of

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGrid:
    """ln(measured time / formula), in per cent, at nodes of a shape; three axes.

    axes     the nodes of each axis, ascending sizes (not logarithms)
    percent  [first axis][second axis][third axis]

    Raises InputError for an axis that does not ascend or a table of another size.
    """

    axes: tuple[tuple[float, ...], ...]
    percent: tuple[tuple[tuple[int, ...], ...], ...]

    def __post_init__(self) -> None:
        if len(self.axes) != 3:
            raise InputError(f"a correction grid has three axes, found {len(self.axes)}")
        for axis in self.axes:
            if len(axis) < 2 or axis[0] <= 0 or any(a >= b for a, b in itertools.pairwise(axis)):
                raise InputError(f"the nodes of an axis must ascend from above 0, found {axis}")
        want = tuple(len(axis) for axis in self.axes)
        lengths = {(len(plane), *map(len, plane)) for plane in self.percent}
        if len(self.percent) != want[0] or lengths != {(want[1], *[want[2]] * want[1])}:
            raise InputError(f"the correction grid must be {want[0]}x{want[1]}x{want[2]}")

    def __hash__(self) -> int:
        return hash((self.axes, self.percent))

    def log_factor(self, *sizes: Array) -> Array:
        """ln of the factor on time at each shape; constant outside the nodes."""
        table, logs = _arrays(self)
        places = [locate(np.log2(size), nodes) for size, nodes in zip(sizes, logs, strict=True)]
        found = np.zeros(np.broadcast_shapes(*(size.shape for size in sizes)))
        for index, weight in corners(places, table.shape):
            found = found + weight * table.ravel()[index]
        return found


@functools.lru_cache(maxsize=128)
def _arrays(grid: LogGrid) -> tuple[Array, tuple[Array, ...]]:
    table = np.asarray(grid.percent, dtype=np.float64) / 100.0
    return table, log_nodes(grid.axes)


def log_nodes(axes: Sequence[Sequence[float]]) -> tuple[Array, ...]:
    """log2 of the nodes of each axis."""
    return tuple(np.log2(np.asarray(axis, dtype=np.float64)) for axis in axes)


def locate(position: Array, nodes: Array) -> tuple[NDArray[np.intp], Array]:
    """The node below each position (clipped to the nodes), and the fraction towards the next."""
    held = np.clip(position, nodes[0], nodes[-1])
    below = np.clip(np.searchsorted(nodes, held, side="right") - 1, 0, len(nodes) - 2)
    return below, (held - nodes[below]) / (nodes[below + 1] - nodes[below])


def corners(
    places: Sequence[tuple[NDArray[np.intp], Array]], shape: tuple[int, ...]
) -> list[tuple[NDArray[np.intp], Array]]:
    """Flat index and weight of each corner of the cells; the weights of a position sum to 1."""
    found = []
    for corner in itertools.product((0, 1), repeat=len(shape)):
        index: Any = 0
        weight: Any = 1.0
        for (below, fraction), upper, length in zip(places, corner, shape, strict=True):
            index = index * length + below + upper
            weight = weight * (fraction if upper else 1.0 - fraction)
        found.append((index, weight))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Errors |predicted / measured - 1| on one part of the held-out rows.

    split   how rows were held out: `shapes` (a random third of the rows) or `blocks` (whole
            neighborhoods: 3x3 blocks of (n, k) of matmuls, all calls of a (heads, kv_heads) pair of
            attention)
    where   name of the part of the rows, defined in the derive script
    bias    median of predicted / measured - 1
    """

    split: str
    where: str
    rows: int
    median: float
    p90: float
    bias: float


def half_width(errors: tuple[HeldOut, ...], where: str) -> float:
    """Relative half-width of a 90 % interval: p90 of the held-out blocks of a part, default 1."""
    found = [error.p90 for error in errors if error.split == "blocks" and error.where == where]
    return found[0] if found else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """Numbers of a fitted surface of one data type; symbols as in its formula.

    method   `fitted`, or `assumed` for a relative's
    box      smallest and largest measured size on each of the correction's axes
    rows     number of measured rows;  training_rows  name of training shapes in `held_out`
    bandwidths  fields that are proportional to the memory bandwidth
    """

    training_rows: ClassVar[str]
    bandwidths: ClassVar[tuple[str, ...]]
    dtype: str
    method: str = "fitted"
    rate_flop_per_s: float
    wave_quantisation: float
    bandwidth_bytes_per_s: float
    element_bytes: float
    overlap_power: float
    launch_s: float
    correction: LogGrid
    box: tuple[tuple[float, float], tuple[float, float], tuple[float, float]]
    rows: int
    held_out: tuple[HeldOut, ...] = ()

    def __post_init__(self) -> None:
        for name in ("rate_flop_per_s", "bandwidth_bytes_per_s", "element_bytes", "overlap_power"):
            if not getattr(self, name) > 0:
                raise InputError(f"{self.dtype}: {name} must be above 0, is {getattr(self, name)}")

    @property
    def uncertainty(self) -> float:
        """Relative half-width of a 90 % interval at training shapes, from held-out blocks, without
        the error of using a relative's table."""
        return half_width(self.held_out, self.training_rows)

    def scaled(self, rate: float, bandwidth: float = 1.0, **changes: Any) -> Self:
        """The table for `rate` times the arithmetic rate and `bandwidth` times the memory
        bandwidth, with the same utilization, launch and correction (method `assumed`)."""
        changes |= {name: getattr(self, name) * bandwidth for name in self.bandwidths}
        rate_flop_per_s = self.rate_flop_per_s * rate
        return replace(self, method="assumed", rate_flop_per_s=rate_flop_per_s, **changes)

    def waves(self, filled: Array) -> Array:
        """Effective number of waves, if the blocks fill the processors `filled` times."""
        q = self.wave_quantisation
        found: Array = q * np.ceil(filled) + (1.0 - q) * np.maximum(filled, 1.0)
        return found

    def overlapped_s(self, math_s: Array, memory_s: Array) -> Array:
        """Launch, arithmetic and memory traffic together."""
        longer, shorter = np.maximum(math_s, memory_s), np.minimum(math_s, memory_s)
        power = self.overlap_power
        found: Array = self.launch_s + longer * (1.0 + (shorter / longer) ** power) ** (1.0 / power)
        return found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KernelSurface:
    """Kernel times of one device.

    kind          name of the surfaces in paths and schemas
    measured_on   the measured device: `device`, or a relative (method `assumed`, with a `reason`)
    """

    kind: ClassVar[str]
    tables: Mapping[str, KernelTable] = field(default_factory=dict)
    device: str
    measured_on: str
    sm_count: int
    sm_source: str
    source: str
    date: str
    method: str = "fitted"
    reason: str = ""


S = TypeVar("S", bound=KernelSurface)
# Data types of tables that share a peak of the catalog.
_PEAK_OF = {"float8_block": "float8_e4m3fn"}


def surface_path(device_name: str, kind: str) -> Path:
    """The path of a device's measured surface of a kind (`gemm`, `attention`)."""
    return DATA / "kernels" / f"{device_name}.{kind}.toml"


def read_surface(cls: type[S], device: Device) -> S:
    """A device's measured surface; otherwise its relative's, scaled by the datasheets' ratios of
    peaks and memory bandwidths."""
    schema = f"shardwright/{cls.kind}-surface@1"
    path = surface_path(device.name, cls.kind)
    if path.is_file():
        return read_document(path, cls, schema=schema)
    relative = relative_of(device.name)
    lender, rate = relative.measured_on, relative.matmul_rate
    if cls.kind == "attention":
        lender, rate = relative.attention_measured_on or lender, 1.0
    found = read_document(surface_path(lender, cls.kind), cls, schema=schema)
    origin = get_device(found.measured_on)
    own, its = device.memory_bandwidth_bytes_per_s, origin.memory_bandwidth_bytes_per_s
    peaks = {name: _PEAK_OF.get(table.dtype, table.dtype) for name, table in found.tables.items()}
    return replace(
        found,
        device=device.name,
        sm_count=relative.sm_count or found.sm_count,
        sm_source=relative.sm_source or found.sm_source,
        method="assumed",
        reason=relative.reason,
        tables={
            name: found.tables[name].scaled(
                rate * device.peak(peak).value / origin.peak(peak).value, own.value / its.value
            )
            for name, peak in peaks.items()
            if peak in device.peak_flop_per_s and peak in origin.peak_flop_per_s
        },
    )
