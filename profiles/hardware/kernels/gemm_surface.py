"""Matmul time on a device of the catalogue, from fitted surfaces (gemm_table.py has the formula).

`load_surface(name)` is the device's own surface where its kernels were measured
(profiles/data/kernels/<device>.gemm.toml), else that of its nearest relative (relatives.toml)
scaled by the datasheets' peak and bandwidth ratios and tagged `assumed`. Known limits of the
measured rows, which every number here inherits:

- one software version (sglang 0.5.10's libraries) and one row per shape, so there was nothing to
  choose between versions; the spread of repeated runs is unknown;
- short bursts: on H100, H200 and Blackwell, bf16 kernels of 3 ms and more run at 7 to 18 % lower
  rates than those of 0.5 ms (power limit; GB200 1440 against 1730 TFLOP/s), and a training step
  draws its power for seconds;
- one layout (x w^T); gradients' layouts were not measured and count the same;
- the rows of `float8_e4m3fn` (one scale per tensor), `float8_block` (blocks of 128) and
  `float4_e2m1fn_x2` (nvfp4) include casting the activations.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from numpy.typing import ArrayLike

from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.device import Device
from profiles.hardware.kernels.gemm_table import GemmTable, scaled_table, table_time_s
from profiles.hardware.kernels.kernel_surface import KernelSurface, bandwidth_ratio, read_surface
from profiles.hardware.kernels.log_grid import Array

# Data type -> bytes per element of the inputs and of the output, where the utilisation of bf16 is
# borrowed because the data type was not measured.
_BORROWED_DTYPES = {
    "float16": (2.0, 2.0),
    "float32": (4.0, 4.0),
    "tf32": (4.0, 4.0),
    "float8_e4m3fn": (1.0, 2.0),
    "int8": (1.0, 2.0),
}
_LENDER = "bfloat16"
# Surfaces that share a peak of the catalogue.
_PEAK_OF = {"float8_block": "float8_e4m3fn"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmSurface(KernelSurface):
    """Matmul times of one device, `tables` by data type."""

    tables: Mapping[str, GemmTable] = field(default_factory=dict)
    __hash__ = KernelSurface.__hash__

    def table(self, dtype: str) -> GemmTable:
        """The table of a data type; raises InputError naming those that there are."""
        if dtype not in self.tables:
            raise InputError(
                f"device {self.device} has no matmul surface for {dtype}; it has "
                f"{', '.join(sorted(self.tables))}"
            )
        return self.tables[dtype]

    def time_s(
        self,
        dtype: str,
        m: ArrayLike,
        n: ArrayLike,
        k: ArrayLike,
        *,
        casts: bool = True,
    ) -> Array:
        """Seconds of [m, k] x [k, n] for each shape; m, n, k broadcast; at least 1 each.

        For the gradients of y[m, n] = x[m, k] w[k, n] ask (m, k, n) for the input's and (k, n, m)
        for the weight's: the last number is the reduction. Layouts are not told apart. A call costs
        about 0.3 ms whatever its length up to a few hundred shapes: batch them.
        `casts=False` leaves out casting [m, k] to a low-precision type, which those rows include;
        """
        table = self.table(dtype)
        if not casts:
            table = replace(table, quantise_bytes_per_s=0.0)
        return table_time_s(table, self.sm_count, m, n, k)


def load_surface(device_name: str) -> GemmSurface:
    """The matmul surface of a device or alias, its own or its relative's.

    Raises UnknownNameError for a device that is not in the catalogue.
    """
    return _surface(get_device(device_name).name)


@functools.cache
def _surface(name: str) -> GemmSurface:
    device = get_device(name)
    found, relative = read_surface(GemmSurface, name, "gemm")
    tables = found.tables
    if relative is not None:
        origin, bandwidth = get_device(found.measured_on), bandwidth_ratio(name, found.measured_on)
        peaks = {dtype: _PEAK_OF.get(dtype, dtype) for dtype in tables}
        tables = {
            dtype: scaled_table(
                table,
                dtype=dtype,
                rate=relative.matmul_rate
                * device.peak(peaks[dtype]).value
                / origin.peak(peaks[dtype]).value,
                bandwidth=bandwidth,
            )
            for dtype, table in tables.items()
            if peaks[dtype] in device.peak_flop_per_s and peaks[dtype] in origin.peak_flop_per_s
        }
    return replace(found, tables=_with_borrowed_dtypes(tables, device))


def _with_borrowed_dtypes(
    tables: Mapping[str, GemmTable], device: Device
) -> Mapping[str, GemmTable]:
    found = dict(tables)
    for dtype, (element_bytes, output_bytes) in _BORROWED_DTYPES.items():
        if dtype in found or dtype not in device.peak_flop_per_s or _LENDER not in tables:
            continue
        found[dtype] = scaled_table(
            tables[_LENDER],
            dtype=dtype,
            rate=device.peak(dtype).value / device.peak(_LENDER).value,
            element_bytes=element_bytes,
            output_bytes=output_bytes,
        )
    return found
