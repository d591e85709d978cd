"""`KernelSurface`: measured kernels of a device as fitted tables, its own or those of a relative.

Shared by the surfaces of matmuls (gemm_surface.py) and attention (attention_surface.py): the
numbers that every table has, its errors on held-out rows, the form
t = launch + (t_math^p + t_memory^p)^(1/p), and the place of the files.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, TypeVar

import numpy as np

from profiles.document import read_document
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import DATA, get_device
from profiles.hardware.catalogue.relatives import Relative, relative_of
from profiles.hardware.kernels.log_grid import Array, LogGrid


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Errors |predicted / measured - 1| on one part of the held-out rows.

    split   how rows were held out: `shapes` (a random third of the rows) or `blocks` (whole
            neighbourhoods: 3x3 blocks of (n, k) of matmuls, all calls of a (heads, kv_heads) pair
            of attention)
    where   the part of the rows; the derive script says what each name means
    bias    median of predicted / measured - 1
    """

    split: str
    where: str
    rows: int
    median: float
    p90: float
    bias: float


def half_width(errors: tuple[HeldOut, ...], where: str) -> float:
    """Relative half-width of a 90 % interval: p90 of the held-out blocks of that part, else 1."""
    found = [error.p90 for error in errors if error.split == "blocks" and error.where == where]
    return found[0] if found else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelTable:
    """Numbers of a fitted surface of one data type; the symbols are those of its formula.

    method   `fitted` or, where borrowed, `assumed`
    box      smallest and largest measured size on each of the correction's axes
    rows     measured rows behind it;  training_rows  name of those of training shapes in `held_out`
    """

    training_rows: ClassVar[str]
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
        """Relative half-width of a 90 % interval at training shapes, from held-out blocks.

        It says nothing about what a borrowed table adds.
        """
        return half_width(self.held_out, self.training_rows)

    def waves(self, filled: Array) -> Array:
        """Waves that take time where blocks fill the processors so many times."""
        q = self.wave_quantisation
        found: Array = q * np.ceil(filled) + (1.0 - q) * np.maximum(filled, 1.0)
        return found

    def overlapped_s(self, math_s: Array, memory_s: Array) -> Array:
        """Launch, arithmetic and memory traffic together."""
        longer, shorter = np.maximum(math_s, memory_s), np.minimum(math_s, memory_s)
        power = self.overlap_power
        found: Array = self.launch_s + longer * (1.0 + (shorter / longer) ** power) ** (1.0 / power)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelSurface:
    """Kernel times of one device.

    device   whose surface this is; measured_on is where the rows came from: another device where
             the surface is borrowed (method `assumed`, reason says why), else the same
    """

    device: str
    measured_on: str
    sm_count: int
    sm_source: str
    source: str
    date: str
    method: str = "fitted"
    reason: str = ""

    def __hash__(self) -> int:
        return hash((self.device, self.measured_on, self.date))


S = TypeVar("S", bound=KernelSurface)


def surface_path(device_name: str, kind: str) -> Path:
    """Where a device's own surface of a kind (`gemm`, `attention`) lies."""
    return DATA / "kernels" / f"{device_name}.{kind}.toml"


def read_surface(cls: type[S], device_name: str, kind: str) -> tuple[S, Relative | None]:
    """A device's own surface; else its relative's in the device's name, and the relative: the
    tables are the relative's still."""
    schema = f"shardwright/{kind}-surface@1"
    path = surface_path(device_name, kind)
    if path.is_file():
        return read_document(path, cls, schema=schema), None
    relative = relative_of(device_name)
    lender = relative.attention_measured_on if kind == "attention" else ""
    path = surface_path(lender or relative.measured_on, kind)
    origin = read_document(path, cls, schema=schema)
    borrowed = replace(
        origin,
        device=device_name,
        sm_count=relative.sm_count or origin.sm_count,
        sm_source=relative.sm_source or origin.sm_source,
        method="assumed",
        reason=relative.reason,
    )
    return borrowed, relative


def bandwidth_ratio(device_name: str, origin: str) -> float:
    """Memory bandwidth of a device over its relative's, from the datasheets."""
    device, relative = get_device(device_name), get_device(origin)
    return device.memory_bandwidth_bytes_per_s.value / relative.memory_bandwidth_bytes_per_s.value
