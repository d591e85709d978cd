"""Fits the attention surfaces of profiles/data/kernels from a table of measured kernels.

    python -m tools.derive_attention FOLDER [DEVICE...]

FOLDER holds attention.csv.gz (system, kernel_source, attn_dtype, kv_dtype, batch, isl, heads,
kv_heads, head_dim, window, latency_ms): causal forward passes of an inference engine, one row per
call. Fitted as the matmuls are (derive_gemm.py). Parts of the held-out errors: `training` is
lengths of 1024 and more with 8 or more heads x batch, `all` everything. All errors are against the
measured calls, which store keys and values in a cache; a training call is the surface without it.
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
from profiles.hardware.kernels.attention_surface import (
    AttentionShapes,
    AttentionTable,
    formula_time_s,
    shapes_of,
    table_time_s,
)
from profiles.hardware.kernels.kernel_surface import Array, HeldOut, LogGrid, surface_path
from tools.compass_search import compass_search
from tools.derive_gemm import DATE, SYSTEMS
from tools.fit_log_grid import fit_log_grid, no_correction
from tools.held_out_errors import errors_of
from tools.surface_text import box_text, grid_text, held_out_text, numbers_text

# Data type of queries and cache in the table -> ours, bytes per element, factor on bf16's peak.
DTYPES = {
    ("bfloat16", "bfloat16"): ("bfloat16", 2.0, 1.0),
    ("fp8", "fp8"): ("float8_e4m3fn", 1.0, 2.0),
}
AXES = (
    (128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    (1, 8, 32, 128, 512, 2048, 8192),
    (1, 4, 16, 96),
)
SOURCE = (
    "aiconfigurator context_attention_perf tables, sglang 0.5.10 "
    "(github.com/ai-dynamo/aiconfigurator, systems/data/{system}/attention)"
)
METHOD = "python -m tools.derive_attention: formula by compass search, correction by L1 grid"
_FOLDS = 3
_CAP = 0.6
_STIFFNESS = 0.3
# Parameter: lowest, first, highest value. Rate and bandwidths are fractions of the datasheet's.
_BOUNDS = {
    "rate": (0.1, 0.6, 1.2),
    "start": (0.0, 60.0, 1000.0),
    "waves": (0.0, 0.5, 1.0),
    "bandwidth": (0.2, 0.7, 2.0),
    "power": (1.0, 3.0, 8.0),
    "launch_us": (1.0, 5.0, 30.0),
    "cache_passes": (0.0, 1.0, 6.0),
}
_NUMBERS = (
    "rate_flop_per_s",
    "start_keys",
    "wave_quantisation",
    "bandwidth_bytes_per_s",
    "element_bytes",
    "overlap_power",
    "launch_s",
    "cache_bytes_per_s",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """Measured calls of one kernel, data type and head size."""

    dtype: str
    kernel: str
    sm_count: int
    peak_flop_per_s: float
    bandwidth_bytes_per_s: float
    element_bytes: float
    shapes: AttentionShapes
    time_s: Array

    def where(self, chosen: NDArray[np.bool_]) -> Calls:
        """The chosen rows."""
        s = self.shapes
        part = replace(
            s,
            batch=s.batch[chosen],
            seq=s.seq[chosen],
            heads=s.heads[chosen],
            kv_heads=s.kv_heads[chosen],
        )
        return replace(self, shapes=part, time_s=self.time_s[chosen])

    @property
    def grid_sizes(self) -> tuple[Array, Array, Array]:
        """Length, batch x heads, heads per key-value head: the axes of the correction."""
        s = self.shapes
        return s.seq, s.batch * s.heads, s.heads / s.kv_heads


def masks(calls: Calls) -> Mapping[str, NDArray[np.bool_]]:
    """The parts of the rows that errors are told for."""
    shapes = calls.shapes
    return {
        "training": (shapes.seq >= 1024) & (shapes.batch * shapes.heads >= 8),
        "all": np.ones(shapes.seq.shape, dtype=bool),
    }


def fit_table(calls: Calls) -> AttentionTable:
    """The formula's parameters, then its correction."""
    weights = np.where(masks(calls)["training"], 1.0, 0.3)
    log_time = np.log(calls.time_s)
    names = list(_BOUNDS)

    def formula(point: Array) -> Array:
        table = _table(dict(zip(names, point, strict=True)), calls)
        return np.log(formula_time_s(table, calls.sm_count, calls.shapes, cache=True))

    def loss(point: Array) -> float:
        error = np.minimum(np.abs(formula(point) - log_time), _CAP)
        return float(np.average(error, weights=weights))

    low, first, high = (np.array([_BOUNDS[name][i] for name in names]) for i in range(3))
    best = compass_search(loss, first, low, high)
    grid = fit_log_grid(
        calls.grid_sizes,
        log_time - formula(best),
        AXES,
        weights=weights,
        stiffness=_STIFFNESS,
    )
    return _table(dict(zip(names, best, strict=True)), calls, grid)


def _table(value: Mapping[str, float], calls: Calls, grid: LogGrid | None = None) -> AttentionTable:
    passes = value["cache_passes"]
    spans = [(float(size.min()), float(size.max())) for size in calls.grid_sizes]
    return AttentionTable(
        dtype=calls.dtype,
        head_dim=int(calls.shapes.head_dim),
        kernel=calls.kernel,
        rate_flop_per_s=_short(calls.peak_flop_per_s * value["rate"]),
        start_keys=_short(value["start"]),
        wave_quantisation=_short(value["waves"]),
        bandwidth_bytes_per_s=_short(calls.bandwidth_bytes_per_s * value["bandwidth"]),
        element_bytes=calls.element_bytes,
        overlap_power=_short(value["power"]),
        launch_s=_short(value["launch_us"] * 1e-6),
        cache_bytes_per_s=_short(calls.bandwidth_bytes_per_s / passes) if passes > 0.01 else 0.0,
        correction=grid or no_correction(),
        box=(spans[0], spans[1], spans[2]),
        rows=calls.time_s.size,
    )


def _short(value: float) -> float:
    return float(f"{value:.4g}")


def held_out(calls: Calls) -> tuple[HeldOut, ...]:
    """Errors on calls, and on whole (heads, kv_heads) pairs, that the fit had not seen."""
    rng = np.random.default_rng(1)
    count = calls.time_s.size
    pair = calls.shapes.heads * 1000.0 + calls.shapes.kv_heads
    names, number = np.unique(pair, return_inverse=True)
    by_pair = (rng.permutation(names.size) % _FOLDS)[number]
    found: list[HeldOut] = []
    for split, fold in (("shapes", rng.integers(0, _FOLDS, count)), ("blocks", by_pair)):
        predicted = np.empty(count)
        for out in range(_FOLDS):
            table = fit_table(calls.where(fold != out))
            left = calls.where(fold == out).shapes
            predicted[fold == out] = table_time_s(table, calls.sm_count, left, cache=True)
        found += errors_of(split, predicted, calls.time_s, masks(calls))
    return tuple(found)


def read_calls(path: Path) -> Mapping[str, tuple[Calls, ...]]:
    """The table's causal calls without a window, by system."""
    found: dict[tuple[str, str, str, int], list[tuple[float, ...]]] = defaultdict(list)
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            kind = DTYPES.get((row["attn_dtype"], row["kv_dtype"]))
            if kind is None or row["window"] != "0" or row["system"] not in SYSTEMS:
                continue
            key = (row["system"], row["attn_dtype"], row["kernel_source"], int(row["head_dim"]))
            names = ("batch", "isl", "heads", "kv_heads", "latency_ms")
            found[key].append(tuple(float(row[name]) for name in names))
    calls: dict[str, list[Calls]] = defaultdict(list)
    for (system, theirs, kernel, head_dim), rows in sorted(found.items()):
        dtype, element_bytes, factor = DTYPES[theirs, theirs]
        device = get_device(SYSTEMS[system][0])
        batch, seq, heads, kv_heads, latency_ms = np.array(rows).T
        calls[system].append(
            Calls(
                dtype=dtype,
                kernel=kernel,
                sm_count=SYSTEMS[system][1],
                peak_flop_per_s=device.peak("bfloat16").value * factor,
                bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s.value,
                element_bytes=element_bytes,
                shapes=shapes_of(batch, seq, heads, kv_heads, head_dim),
                time_s=latency_ms * 1e-3,
            )
        )
    return {system: tuple(parts) for system, parts in calls.items()}


def _table_text(table: AttentionTable) -> list[str]:
    key = f"tables.{table.dtype}_{table.head_dim}"
    return [
        f"[{key}]",
        f'dtype = "{table.dtype}"',
        f"head_dim = {table.head_dim}",
        f'kernel = "{table.kernel}"',
        *numbers_text(table, _NUMBERS),
        box_text(table.box),
        f"rows = {table.rows}",
        *held_out_text(table.held_out),
        *grid_text(table.correction, f"{key}.correction"),
        "",
    ]


def derive(system: str, calls: tuple[Calls, ...]) -> None:
    """Fit and write one device's file."""
    name, sm_count, sm_source = SYSTEMS[system]
    lines = [
        f"# {METHOD}.",
        "# percent: 100 ln(measured / formula) at nodes of length, batch x heads, heads per",
        "# key-value head. Symbols: attention_surface.py.",
        'schema = "shardwright/attention-surface@1"',
        f'device = "{name}"',
        f'measured_on = "{name}"',
        f"sm_count = {sm_count}",
        f'sm_source = "{sm_source}"',
        f'source = "{SOURCE.format(system=system)}"',
        f'date = "{DATE}"',
        "",
    ]
    for part in calls:
        table = replace(fit_table(part), held_out=held_out(part))
        lines += _table_text(table)
        for e in table.held_out:
            print(  # a script
                f"{name} {table.dtype} {table.head_dim} {e.split} {e.where}: "
                f"{e.median:.1%} {e.p90:.1%} {e.bias:+.1%}"
            )
    write_text(surface_path(name, "attention"), "\n".join(lines))


def main(folder: Path, chosen: tuple[str, ...]) -> None:
    """Write one file per device, or those of the chosen devices only."""
    for system, calls in read_calls(folder / "attention.csv.gz").items():
        if not chosen or SYSTEMS[system][0] in chosen:
            derive(system, calls)


if __name__ == "__main__":
    main(Path(sys.argv[1]), tuple(sys.argv[2:]))
