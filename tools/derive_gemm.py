"""Fits the matmul surfaces of profiles/data/kernels from a table of measured kernels.

    python -m tools.derive_gemm FOLDER [DEVICE...]

FOLDER holds gemm.csv.gz (system, device, dtype, m, n, k, latency_ms, source_path), one row per
shape. Per device and data type: a compass search of the formula's parameters on a sample,
minimising the mean absolute log error capped at _CAP, then the correction grid on all rows. The
same is done without each third of the shapes, and of the 3x3 blocks of (n, k), and the errors on
what was left out are written with the table, by part: `training` is m >= 1024 with n and k >= 512,
`training-aligned` those with m a multiple of 64, `large` those with m >= 4096, `all` everything.
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from profiles.document import write_text
from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.kernels.gemm_surface import GemmTable, formula_time_s, table_time_s
from profiles.hardware.kernels.kernel_surface import Array, HeldOut, LogGrid, surface_path
from tools.compass_search import compass_search
from tools.fit_log_grid import fit_log_grid, no_correction
from tools.held_out_errors import errors_of
from tools.surface_text import box_text, grid_text, held_out_text, numbers_text

_NVIDIA = "SM count of the device, NVIDIA"
# Short names of the table -> our devices, SMs and where that number is from.
SYSTEMS = {
    "a100_sxm": ("a100-sxm-80gb", 108, f"{_NVIDIA} A100 Tensor Core GPU Architecture whitepaper"),
    "h100_sxm": ("h100-sxm-80gb", 132, f"{_NVIDIA} H100 Tensor Core GPU Architecture whitepaper"),
    "h200_sxm": ("h200-sxm", 132, f"{_NVIDIA} H100 Tensor Core GPU Architecture whitepaper, GH100"),
    "b200_sxm": ("b200-sxm", 148, "assumed: what device queries of B200 show; no vendor page"),
    "b300_sxm": ("b300-sxm", 148, "assumed: what device queries of B300 show; no vendor page"),
    "gb200": ("gb200-nvl72", 152, "assumed: what device queries of GB200 show; no vendor page"),
    "gb300": ("gb300-nvl72", 152, "assumed: what device queries of GB300 show; no vendor page"),
    "l40s": ("l40s", 142, f"{_NVIDIA} L40S datasheet: 18,176 CUDA cores of 128 per SM"),
    "rtx_pro_6000_server": (
        "rtx-pro-6000",
        188,
        f"{_NVIDIA} RTX PRO 6000 Blackwell datasheet: 24,064 CUDA cores of 128 per SM",
    ),
}
# Data type of the table -> ours, the peak of the catalogue times a factor that scales the search,
# bytes per element with its scales (nvfp4: 4 bits and one 8-bit scale per 16), casts included.
DTYPES = {
    "bfloat16": ("bfloat16", 1.0, 2.0, False),
    "fp8": ("float8_e4m3fn", 2.0, 1.0, True),
    "fp8_block": ("float8_block", 2.0, 1.0, True),
    "nvfp4": ("float4_e2m1fn_x2", 4.0, 0.5625, True),
}
AXES = (
    (1, 8, 64, 256, 1024, 2048, 4096, 8192, 32768),
    (32, 128, 512, 1024, 2048, 4096, 8192, 16384, 65536),
    (32, 128, 512, 1024, 2048, 4096, 8192, 16384, 65536),
)
DATE = "2026-11-21"
SOURCE = (
    "aiconfigurator gemm_perf tables, sglang 0.5.10 (github.com/ai-dynamo/aiconfigurator, "
    "systems/data/{system}/gemm)"
)
METHOD = "python -m tools.derive_gemm: formula by compass search, correction by L1 grid"
_FOLDS = 3
_CAP = 0.6
_SAMPLE = 2500


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Measured matmuls: sizes and seconds, one entry each."""

    m: Array
    n: Array
    k: Array
    time_s: Array

    def where(self, chosen: NDArray[np.bool_]) -> Rows:
        """The chosen rows."""
        return Rows(
            m=self.m[chosen], n=self.n[chosen], k=self.k[chosen], time_s=self.time_s[chosen]
        )

    @property
    def sizes(self) -> tuple[Array, Array, Array]:
        """m, n, k."""
        return self.m, self.n, self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """What the search begins with and is scaled by: peak, bandwidth, SMs and the data type."""

    dtype: str
    sm_count: int
    peak_flop_per_s: float
    bandwidth_bytes_per_s: float
    element_bytes: float
    casts: bool


# Parameter: lowest, first, highest value. Rate and bandwidths are fractions of the datasheet's.
_BOUNDS = {
    "rate": (0.2, 0.75, 1.2),
    "medium": (0.4, 0.85, 1.0),
    "small": (0.1, 0.6, 1.0),
    "start": (0.0, 150.0, 1500.0),
    "waves": (0.0, 0.5, 1.0),
    "bandwidth": (0.3, 0.8, 4.0),
    "power": (1.0, 3.0, 8.0),
    "launch_us": (0.5, 3.0, 20.0),
    "cast_passes": (0.0, 1.0, 5.0),
}


def masks(rows: Rows) -> Mapping[str, NDArray[np.bool_]]:
    """The parts of the rows that errors are told for (HeldOut.where)."""
    training = (rows.m >= 1024) & (rows.n >= 512) & (rows.k >= 512)
    aligned = training & (rows.m % 64 == 0)
    return {
        "training": training,
        "training-aligned": aligned,
        "large": aligned & (rows.m >= 4096),
        "all": np.ones(rows.m.shape, dtype=bool),
    }


def weights_of(rows: Rows) -> Array:
    """Training shapes count more; so do the few rows of very many tokens; odd m counts less."""
    training = masks(rows)["training"]
    odd = (rows.m > 64) & (rows.m % 64 != 0)
    return np.where(training, 1.0, 0.4) * np.where(odd, 0.3, 1.0) * np.where(rows.m > 8000, 2, 1.0)


def fit_table(rows: Rows, start: Start) -> GemmTable:
    """The formula's parameters from a sample of the rows, then the correction from all."""
    weights = weights_of(rows)
    rng = np.random.default_rng(0)
    chosen = rng.choice(
        rows.m.size, size=min(_SAMPLE, rows.m.size), replace=False, p=weights / weights.sum()
    )
    sample = rows.where(np.isin(np.arange(rows.m.size), chosen))
    log_time = np.log(sample.time_s)
    names = [name for name in _BOUNDS if start.casts or name != "cast_passes"]

    def loss(point: Array) -> float:
        table = _table(dict(zip(names, point, strict=True)), rows, start)
        formula = np.log(formula_time_s(table, start.sm_count, *sample.sizes))
        return float(np.minimum(np.abs(formula - log_time), _CAP).mean())

    low, first, high = (np.array([_BOUNDS[name][i] for name in names]) for i in range(3))
    best = compass_search(loss, first, low, high)
    table = _table(dict(zip(names, best, strict=True)), rows, start)
    residual = np.log(rows.time_s / formula_time_s(table, start.sm_count, *rows.sizes))
    grid = fit_log_grid(rows.sizes, residual, AXES, weights=weights)
    return _table(dict(zip(names, best, strict=True)), rows, start, grid)


def _table(
    value: Mapping[str, float], rows: Rows, start: Start, grid: LogGrid | None = None
) -> GemmTable:
    passes = value.get("cast_passes", 0.0)
    spans = tuple((float(size.min()), float(size.max())) for size in rows.sizes)
    return GemmTable(
        dtype=start.dtype,
        rate_flop_per_s=_short(start.peak_flop_per_s * value["rate"]),
        tile_rate=(_short(value["medium"]), _short(value["medium"] * value["small"])),
        start_steps=_short(value["start"]),
        wave_quantisation=_short(value["waves"]),
        bandwidth_bytes_per_s=_short(start.bandwidth_bytes_per_s * value["bandwidth"]),
        element_bytes=start.element_bytes,
        overlap_power=_short(value["power"]),
        launch_s=_short(value["launch_us"] * 1e-6),
        quantise_bytes_per_s=_short(start.bandwidth_bytes_per_s / passes) if passes > 0.01 else 0.0,
        correction=grid or no_correction(),
        box=(spans[0], spans[1], spans[2]),
        rows=rows.m.size,
    )


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def held_out(rows: Rows, start: Start) -> tuple[HeldOut, ...]:
    """Errors on shapes and on blocks of (n, k) that the fit had not seen."""
    rng = np.random.default_rng(1)
    by_shape = rng.integers(0, _FOLDS, rows.m.size)
    kinds = np.unique(np.concatenate([rows.n, rows.k]))
    block = (np.searchsorted(kinds, rows.n) // 3) * 64 + np.searchsorted(kinds, rows.k) // 3
    names, number = np.unique(block, return_inverse=True)
    by_block = (rng.permutation(names.size) % _FOLDS)[number]
    found: list[HeldOut] = []
    for split, fold in (("shapes", by_shape), ("blocks", by_block)):
        predicted = np.empty(rows.m.size)
        for out in range(_FOLDS):
            table = fit_table(rows.where(fold != out), start)
            left = rows.where(fold == out)
            predicted[fold == out] = table_time_s(table, start.sm_count, *left.sizes)
        found += errors_of(split, predicted, rows.time_s, masks(rows))
    return tuple(found)


def read_rows(path: Path) -> Mapping[tuple[str, str], Rows]:
    """The table's rows by system and data type."""
    found: dict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            numbers = (row["m"], row["n"], row["k"], row["latency_ms"])
            found[row["system"], row["dtype"]].append(tuple(map(float, numbers)))
    columns = {key: np.array(values).T for key, values in found.items()}
    return {
        key: Rows(m=part[0], n=part[1], k=part[2], time_s=part[3] * 1e-3)
        for key, part in columns.items()
    }


_NUMBERS = (
    "rate_flop_per_s",
    "start_steps",
    "wave_quantisation",
    "bandwidth_bytes_per_s",
    "element_bytes",
    "overlap_power",
    "launch_s",
    "quantise_bytes_per_s",
)


def _table_text(table: GemmTable) -> list[str]:
    return [
        f"[tables.{table.dtype}]",
        f'dtype = "{table.dtype}"',
        *numbers_text(table, _NUMBERS),
        f"tile_rate = [{table.tile_rate[0]}, {table.tile_rate[1]}]",
        box_text(table.box),
        f"rows = {table.rows}",
        *held_out_text(table.held_out),
        *grid_text(table.correction, f"tables.{table.dtype}.correction"),
        "",
    ]


def derive(system: str, rows: Mapping[tuple[str, str], Rows]) -> None:
    """Fit and write one device's file."""
    name, sm_count, sm_source = SYSTEMS[system]
    device = get_device(name)
    lines = [
        f"# {METHOD}.",
        "# percent: 100 ln(measured / formula) at nodes of m, n, k. Symbols: gemm_surface.py.",
        'schema = "shardwright/gemm-surface@1"',
        f'device = "{name}"',
        f'measured_on = "{name}"',
        f"sm_count = {sm_count}",
        f'sm_source = "{sm_source}"',
        f'source = "{SOURCE.format(system=system)}"',
        f'date = "{DATE}"',
        "",
    ]
    for theirs, (dtype, factor, element_bytes, casts) in DTYPES.items():
        if (system, theirs) not in rows:
            continue
        start = Start(
            dtype=dtype,
            sm_count=sm_count,
            peak_flop_per_s=device.peak("bfloat16").value * factor,
            bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s.value,
            element_bytes=element_bytes,
            casts=casts,
        )
        part = rows[system, theirs]
        table = replace(fit_table(part, start), held_out=held_out(part, start))
        lines += _table_text(table)
        for e in table.held_out:
            print(
                f"{name} {dtype} {e.split} {e.where}: {e.median:.1%} {e.p90:.1%} {e.bias:+.1%}"
            )  # a script
    write_text(surface_path(name, "gemm"), "\n".join(lines))


def main(folder: Path, chosen: tuple[str, ...]) -> None:
    """Write one file per device, or those of the chosen devices only."""
    rows = read_rows(folder / "gemm.csv.gz")
    for system, (name, _, _) in SYSTEMS.items():
        if not chosen or name in chosen:
            derive(system, rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]), tuple(sys.argv[2:]))
