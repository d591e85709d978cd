"""Matmul time on a device as a surface over (m, n, k), fitted to measured kernels.

    t = exp(correction) (launch + (t_math^p + t_memory^p)^(1/p) + t_quantise)

Symbols: S streaming multiprocessors, R the matmul rate reached (flop/s), B the memory bandwidth
reached (bytes/s), b and b_out bytes per element of the inputs and of the output.

    t_math      min over tiles (u x v) and splits s of k:  W u v 2 (k/s + k0) S / (R e_uv), the time
                of W waves of tiles of k0 + k/s steps; tiles = s ceil(m/u) ceil(n/v),
                W = q ceil(tiles/S) + (1 - q) max(1, tiles/S). Wave quantization: NVIDIA, "Matrix
                Multiplication Background User's Guide" (2023); q is its share that the library's
                choice of kernels does not hide.
    t_memory    (b (m k + k n) + b_out m n) / B
    t_quantise  passes 3 m k / B_0: casting the bf16 activations to the low-precision type, 2 bytes
                read and 1 written per element, if the measured rows include it

The correction is a LogGrid. Outside the measured box utilization is constant: above it time grows
with the work, below it a dimension counts as the smallest. Every table has its source, number of
rows and errors on held-out rows.

`load_surface(name)` is the device's measured surface (profiles/data/kernels/<device>.gemm.toml),
otherwise that of its relative (its file), scaled by the datasheets' peak and bandwidth ratios
(method `assumed`). Known limits of the measured rows:

- one software version (sglang 0.5.10's libraries) and one row per shape: unknown spread;
- short bursts: on H100, H200 and Blackwell, bf16 kernels of 3 ms and more run at 7 to 18 % lower
  rates than those of 0.5 ms (power limit; GB200 1440 against 1730 TFLOP/s), and a training step is
  under the power limit for seconds;
- one layout (x w^T), also used for gradients;
- the rows of `float8_e4m3fn` (one scale per tensor), `float8_block` (blocks of 128) and
  `float4_e2m1fn_x2` (nvfp4) include casting the activations.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.kernels.kernel_surface import Array, KernelSurface, KernelTable, read_surface

# Tiles (rows, columns) of CUTLASS-style kernels on these devices.
TILES = ((64, 64), (128, 64), (64, 128), (128, 128), (128, 256), (256, 128))
SPLITS = (1, 2, 4, 8)
# Factor on the start-up of a split product, whose parts are summed afterwards.
_SPLIT_START = 1.5
# Shapes per pass, so that temporaries stay in the caches.
_CHUNK = 16384


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmTable(KernelTable):
    """The fitted surface of one data type; symbols as in the module's docstring.

    rate_flop_per_s        R, of 128x256 tiles
    tile_rate              e_uv of 128x128 and of 64x64; that of 128x64 is their geometric mean
    start_steps            k0
    bandwidth_bytes_per_s  B; may exceed the memory's if inputs were in the L2 cache
    quantise_bytes_per_s   B_0 / passes, 0 if the rows include no quantization
    box                    of m, n, k
    """

    training_rows: ClassVar[str] = "training-aligned"
    bandwidths: ClassVar[tuple[str, ...]] = ("bandwidth_bytes_per_s", "quantise_bytes_per_s")
    tile_rate: tuple[float, float]
    start_steps: float
    output_bytes: float = 2.0
    quantise_bytes_per_s: float = 0.0


def table_time_s(
    table: GemmTable, sm_count: int, m: ArrayLike, n: ArrayLike, k: ArrayLike
) -> Array:
    """Seconds of each shape on one table; raises InputError for a size below 1."""
    sizes = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in (m, n, k)))
    if any(size.size and not size.min() >= 1 for size in sizes):
        raise InputError("a matmul needs m, n and k of at least 1")
    flat = [np.ascontiguousarray(size).ravel() for size in sizes]
    found = np.empty(flat[0].size)
    for start in range(0, found.size, _CHUNK):
        part = [size[start : start + _CHUNK] for size in flat]
        found[start : start + _CHUNK] = _held_time_s(table, sm_count, *part)
    return found.reshape(sizes[0].shape)


def _held_time_s(table: GemmTable, sm_count: int, m: Array, n: Array, k: Array) -> Array:
    inside = [np.clip(x, low, high) for x, (low, high) in zip((m, n, k), table.box, strict=True)]
    time_s = formula_time_s(table, sm_count, *inside)
    time_s *= np.exp(table.correction.log_factor(*inside))
    # Work beyond the box at the rate of its edge; below the box the smallest size counts already.
    wanted = [np.maximum(x, low) for x, (low, _) in zip((m, n, k), table.box, strict=True)]
    time_s *= math.prod(x / y for x, y in zip(wanted, inside, strict=True))
    return time_s


def formula_time_s(table: GemmTable, sm_count: int, m: Array, n: Array, k: Array) -> Array:
    """The formula without its correction, anywhere."""
    moved_bytes = table.element_bytes * (m * k + k * n) + table.output_bytes * m * n
    memory_s = moved_bytes / table.bandwidth_bytes_per_s
    math_s = _math_time_s(table, sm_count, m, n, k)
    time_s = table.overlapped_s(math_s, memory_s)
    if table.quantise_bytes_per_s > 0:
        time_s += 3.0 * m * k / table.quantise_bytes_per_s
    return time_s


def _math_time_s(table: GemmTable, sm_count: int, m: Array, n: Array, k: Array) -> Array:
    medium, small = table.tile_rate
    fraction = {64 * 64: small, 128 * 64: (medium * small) ** 0.5, 128 * 128: medium}
    best = np.full(m.shape, np.inf)
    for rows, columns in TILES:
        grid = np.ceil(m / rows) * np.ceil(n / columns) / sm_count
        rate = table.rate_flop_per_s * fraction.get(rows * columns, 1.0) / sm_count
        per_step_s = 2.0 * rows * columns / rate
        for split in SPLITS:
            waves = table.waves(grid * split)
            start = table.start_steps * (_SPLIT_START if split > 1 else 1.0)
            np.minimum(best, waves * (per_step_s * (k / split + start)), out=best)
    return best


# Unmeasured data type -> bytes per element of inputs and output; its utilization is that of bf16.
_BORROWED_DTYPES = {
    "float16": (2.0, 2.0),
    "float32": (4.0, 4.0),
    "tf32": (4.0, 4.0),
    "float8_e4m3fn": (1.0, 2.0),
    "int8": (1.0, 2.0),
}
_LENDER = "bfloat16"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GemmSurface(KernelSurface):
    """Matmul times of one device, `tables` by data type."""

    kind: ClassVar[str] = "gemm"
    tables: Mapping[str, GemmTable] = field(default_factory=dict)

    def table(self, dtype: str) -> GemmTable:
        """The table of a data type; raises InputError with the known ones."""
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

        The gradients of y[m, n] = x[m, k] w[k, n] are (m, k, n) for the input and (k, n, m) for the
        weight: the last number is the reduction. Layouts are not distinguished. A call takes about
        0.3 ms for up to a few hundred shapes. `casts=False` excludes casting [m, k] to a
        low-precision type.
        """
        table = self.table(dtype)
        if not casts:
            table = replace(table, quantise_bytes_per_s=0.0)
        return table_time_s(table, self.sm_count, m, n, k)


@functools.cache
def load_surface(device_name: str) -> GemmSurface:
    """The matmul surface of a device or alias, measured or from its relative.

    Raises UnknownNameError for an unknown device.
    """
    device = get_device(device_name)
    found = read_surface(GemmSurface, device)
    tables = found.tables
    borrowed = {
        dtype: tables[_LENDER].scaled(
            device.peak(dtype).value / device.peak(_LENDER).value,
            dtype=dtype,
            element_bytes=element_bytes,
            output_bytes=output_bytes,
        )
        for dtype, (element_bytes, output_bytes) in _BORROWED_DTYPES.items()
        if dtype not in tables and dtype in device.peak_flop_per_s and _LENDER in tables
    }
    return replace(found, tables={**tables, **borrowed})
