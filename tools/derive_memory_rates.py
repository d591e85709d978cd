"""Derives profiles/data/kernels/memory_rates.toml from a table of measured matmuls.

    python -m tools.derive_memory_rates FOLDER

FOLDER holds gemm.csv.gz. bf16 matmuls with m of 8 or less and n, k of 1024 and more stream n x k
weights and little else; per device and power of two of the bytes: the median and the 90 % quantile
of bytes / time / datasheet bandwidth. The largest sizes, of few rows, are pooled from _POOLED on.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from profiles.document import write_text
from profiles.hardware.catalogue.catalog import get_device
from tools.derive_gemm import DATE, SYSTEMS, Rows, read_rows
from tools.memory_rates import MEMORY_FILE, MEMORY_SCHEMA

_SMALLEST, _POOLED = 22, 30
_ROWS_M, _LEAST_NK = 8, 1024


def rate_lines(name: str, rows: Rows) -> list[str]:
    """One device's table in TOML."""
    thin = (rows.m <= _ROWS_M) & (rows.n >= _LEAST_NK) & (rows.k >= _LEAST_NK)
    part = rows.where(thin)
    moved = 2.0 * (part.m * part.k + part.k * part.n + part.m * part.n)
    peak = get_device(name).memory_bandwidth_bytes_per_s.value
    fraction = moved / part.time_s / peak
    size = np.minimum(np.rint(np.log2(moved)).astype(int), _POOLED)
    sizes = [s for s in np.unique(size) if s >= _SMALLEST]
    medians = {s: float(np.median(fraction[size == s])) for s in sizes}
    deviation = [np.abs(fraction[size == s] / medians[s] - 1.0) for s in sizes]
    p90 = [float(np.quantile(fraction[size == s], 0.9)) for s in sizes]
    return [
        f"[devices.{name}]",
        f"log2_bytes = [{', '.join(map(str, sizes))}]",
        f"fraction = [{', '.join(f'{medians[s]:.3f}' for s in sizes)}]",
        f"p90 = [{', '.join(f'{value:.3f}' for value in p90)}]",
        f"rows = [{', '.join(str(int((size == s).sum())) for s in sizes)}]",
        f"spread = {float(np.median(np.concatenate(deviation))):.3f}",
        "",
    ]


def main(folder: Path) -> None:
    """Write the table."""
    rows = read_rows(folder / "gemm.csv.gz")
    lines = [
        "# Fraction of the datasheet's memory bandwidth by bytes moved (2^log2_bytes; the last one",
        "# holds all larger), from matmuls of 8 rows or fewer, which stream their weights.",
        "# python -m tools.derive_memory_rates. Above the last fraction: L2 cache.",
        f'schema = "{MEMORY_SCHEMA}"',
        'source = "aiconfigurator gemm_perf tables, sglang 0.5.10, bfloat16, m <= 8, n and k >= '
        '1024 (github.com/ai-dynamo/aiconfigurator)"',
        f'date = "{DATE}"',
        "",
    ]
    for system, (name, _, _) in SYSTEMS.items():
        lines += rate_lines(name, rows[system, "bfloat16"])
    write_text(MEMORY_FILE, "\n".join(lines))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
