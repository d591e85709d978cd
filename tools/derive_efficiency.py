"""Derives the small efficiency files of measured devices from large kernel tables.

    python -m tools.derive_efficiency FOLDER

FOLDER holds gemm.csv.gz and attention.csv.gz (columns as in their headers). For each device and
data type, utilisation = roofline time / measured time is taken per cell of a grid over log2 of the
shape, as the median of the cell's rows; each cell becomes one point at its middle shape. What is
written is derived, with its residual on rows that were held out; the tables are not copied.
"""

from __future__ import annotations

import csv
import gzip
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from profiles.document import write_document
from profiles.hardware.catalog import DATA, EFFICIENCY_SCHEMA, get_device
from profiles.hardware.device import AttentionPoint, Device, MatmulPoint, Measurements
from profiles.model.graph import DTYPE_BYTES

# Short names of the tables -> our devices.
SYSTEMS = {
    "a100_sxm": "a100-sxm-80gb",
    "h100_sxm": "h100-sxm-80gb",
    "h200_sxm": "h200-sxm",
    "b200_sxm": "b200-sxm",
    "b300_sxm": "b300-sxm",
    "gb200": "gb200-nvl72",
    "gb300": "gb300-nvl72",
    "l40s": "l40s",
    "rtx_pro_6000_server": "rtx-pro-6000",
}
DTYPES = {"bfloat16": "bfloat16", "fp8": "float8_e4m3fn"}
DATE = "2026-11-21"
# Grid steps in log2: cells of a factor of 4 in m, n and k; 4 in length and 4 in heads.
_STEP = 2
_FEWEST = 3

Cells = dict[tuple[int, ...], list[float]]


def matmul_cells(rows: Iterator[dict[str, str]], device: Device, dtype: str) -> Cells:
    """Utilisation samples per cell of (m, n, k)."""
    peak = device.peak(dtype).value
    bandwidth = device.memory_bandwidth_bytes_per_s.value
    size = DTYPE_BYTES[dtype]
    cells: Cells = defaultdict(list)
    for row in rows:
        m, n, k = (int(float(row[name])) for name in ("m", "n", "k"))
        moved = size * (m * k + k * n) + 2.0 * m * n
        ideal = max(2.0 * m * n * k / peak, moved / bandwidth)
        cells[cell_of(m, n, k)].append(ideal / (float(row["latency_ms"]) * 1e-3))
    return cells


def cell_of(*shape: int) -> tuple[int, ...]:
    """The grid cell of a shape: log2 rounded to the grid's step."""
    return tuple(_STEP * round(np.log2(max(1, size)) / _STEP) for size in shape)


def matmul_points(cells: Cells, device: Device, dtype: str) -> tuple[MatmulPoint, ...]:
    """One point per cell with enough rows, at the cell's middle shape."""
    points = []
    for cell, values in sorted(cells.items()):
        if len(values) < _FEWEST:
            continue
        m, n, k = (2**exponent for exponent in cell)
        moved = DTYPE_BYTES[dtype] * (m * k + k * n + m * n)
        ideal = max(
            2.0 * m * n * k / device.peak(dtype).value,
            moved / device.memory_bandwidth_bytes_per_s.value,
        )
        time_s = ideal / float(np.median(values))
        points.append(MatmulPoint(dtype=dtype, batch=1, m=m, n=n, k=k, time_s=_rounded(time_s)))
    return tuple(points)


def attention_points(
    rows: Iterator[dict[str, str]], device: Device, dtype: str
) -> tuple[AttentionPoint, ...]:
    """Causal forward attention: one point per cell of (batch x heads, group, length, head size)."""
    peak = device.peak(dtype).value
    cells: Cells = defaultdict(list)
    for row in rows:
        batch, heads, length = int(row["batch"]), int(row["heads"]), int(row["isl"])
        group = max(1, heads // max(1, int(row["kv_heads"])))
        head_dim = int(row["head_dim"])
        flop = 2.0 * batch * heads * length * length * head_dim
        key = (*cell_of(batch * heads, group, length), head_dim)
        cells[key].append(flop / peak / (float(row["latency_ms"]) * 1e-3))
    points = []
    for (log_heads, log_group, log_length, head_dim), values in sorted(cells.items()):
        if len(values) < _FEWEST:
            continue
        heads, group, length = 2**log_heads, 2**log_group, 2**log_length
        ideal = 2.0 * heads * length * length * head_dim / peak
        points.append(
            AttentionPoint(
                dtype=dtype,
                phase="forward",
                batch=1,
                heads=heads,
                kv_heads=max(1, heads // group),
                q_len=length,
                kv_len=length,
                head_dim=head_dim,
                causal=True,
                time_s=_rounded(ideal / float(np.median(values))),
            )
        )
    return tuple(points)


def residual(cells: Cells) -> float:
    """Median absolute relative error of the median of the other rows of a cell, over all rows."""
    errors = []
    for values in cells.values():
        if len(values) < _FEWEST:
            continue
        ordered = np.sort(np.asarray(values))
        errors += list(np.abs(ordered / np.median(ordered) - 1.0))
    return float(np.median(errors)) if errors else 0.0


def _rounded(time_s: float) -> float:
    return float(f"{time_s:.4g}")


def _rows(path: Path, wanted: dict[str, str]) -> Iterator[dict[str, str]]:
    with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            if all(row[key] == value for key, value in wanted.items()):
                yield row


def main(folder: Path) -> None:
    """Write one efficiency file per device."""
    for system, name in SYSTEMS.items():
        device = get_device(name)
        matmul: tuple[MatmulPoint, ...] = ()
        attention: tuple[AttentionPoint, ...] = ()
        said = []
        for theirs, ours in DTYPES.items():
            if ours not in device.peak_flop_per_s:
                continue
            wanted = {"system": system, "dtype": theirs}
            cells = matmul_cells(_rows(folder / "gemm.csv.gz", wanted), device, ours)
            if cells:
                count = sum(map(len, cells.values()))
                matmul += matmul_points(cells, device, ours)
                said.append(f"{ours} matmul: {count} rows, median residual {residual(cells):.1%}")
        rows = _rows(
            folder / "attention.csv.gz",
            {"system": system, "attn_dtype": "bfloat16", "kv_dtype": "bfloat16", "window": "0"},
        )
        attention = attention_points(rows, device, "bfloat16")
        measured = Measurements(
            source=(
                "aiconfigurator kernel tables (github.com/ai-dynamo/aiconfigurator), medians per "
                f"cell of a log grid; {'; '.join(said)}"
            ),
            date=DATE,
            matmul=matmul,
            attention=attention,
        )
        path = DATA / "devices" / f"{name}.efficiency.json"
        write_document(path, measured, schema=EFFICIENCY_SCHEMA)
        print(f"{path.name}: {len(matmul)} matmul, {len(attention)} attention")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
