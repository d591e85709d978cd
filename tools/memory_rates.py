"""Fraction of a device's memory bandwidth that a kernel reaches, by the bytes it moves.

From measured matmuls of 8 rows or fewer, which do nothing but stream their weights
(derive_memory_rates.py). Normalisations, rotations, activations and optimizers were not measured:
that they stream as well is assumed. A matrix in the L2 cache streams faster than memory; that is
cut off at what the largest sizes reach, because a training step's tensors come from memory.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from profiles.document import read_document
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import DATA, get_device
from profiles.hardware.catalogue.relatives import relative_of

Array = NDArray[np.float64]

MEMORY_SCHEMA = "shardwright/memory-rates@1"
MEMORY_FILE = DATA / "kernels" / "memory_rates.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRate:
    """Fraction of the datasheet's bandwidth at each size.

    log2_bytes   whole powers of two
    fraction     median of the rows of that size; p90 what the fastest tenth reaches
    spread       median absolute deviation of a row from its size's median, relative
    """

    log2_bytes: tuple[int, ...]
    fraction: tuple[float, ...]
    p90: tuple[float, ...]
    rows: tuple[int, ...]
    spread: float

    def __post_init__(self) -> None:
        if not len(self.log2_bytes) == len(self.fraction) == len(self.p90) == len(self.rows) > 1:
            raise InputError("log2_bytes, fraction, p90 and rows must have one entry per size")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRates:
    """The table: device -> fractions."""

    source: str
    date: str
    devices: Mapping[str, MemoryRate]


@functools.cache
def memory_rates() -> MemoryRates:
    """All measured devices."""
    return read_document(MEMORY_FILE, MemoryRates, schema=MEMORY_SCHEMA)


def memory_fraction(device_name: str, moved_bytes: ArrayLike) -> Array:
    """Fraction of the datasheet's bandwidth at which `moved_bytes` stream, launch included.

    Linear in log2 of the size between the measured ones, held outside; a device that was not
    measured has its relative's (assumed). Raises UnknownNameError for an unknown device.
    """
    name = get_device(device_name).name
    known = memory_rates().devices
    rate = known[name] if name in known else known[relative_of(name).measured_on]
    size = np.maximum(np.asarray(moved_bytes, dtype=np.float64), 1.0)
    held = np.minimum(rate.fraction, rate.fraction[-1])
    return np.asarray(np.interp(np.log2(size), rate.log2_bytes, held), dtype=np.float64)


@overload
def memory_time_s(device_name: str, moved_bytes: float) -> float: ...
@overload
def memory_time_s(device_name: str, moved_bytes: ArrayLike) -> float | Array: ...
def memory_time_s(device_name: str, moved_bytes: ArrayLike) -> float | Array:
    """Seconds to stream `moved_bytes` (read and written together) in one kernel.

    Below the smallest measured size the time of that size is held: a launch.
    """
    device = get_device(device_name)
    name = device.name
    known = memory_rates().devices
    rate = known[name] if name in known else known[relative_of(name).measured_on]
    size = np.maximum(np.asarray(moved_bytes, dtype=np.float64), 2.0 ** rate.log2_bytes[0])
    time_s = size / (memory_fraction(name, size) * device.memory_bandwidth_bytes_per_s.value)
    return float(time_s) if time_s.ndim == 0 else time_s
