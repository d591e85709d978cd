"""What nccl-tests prints: bus bandwidth of one collective over sizes.

Columns of `all_reduce_perf` and its kin (src/common.cu, `writeBenchmarkLine`): size, count, type,
redop, root, then time (us), algbw, busbw and #wrong out of place and in place. Rows with wrong
values are left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interop.logs.log_lines import LogLines
from interop.logs.logged_number import above_zero
from profiles.errors import DocumentError

_OPERATIONS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all": "all_to_all",
    "sendrecv": "send",
    "broadcast": "broadcast",
}
_NAME = re.compile(r"\b(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv|broadcast)_perf\b")
_RANK = re.compile(r"^#\s+Rank\s+(\d+)\b")
_DECIMALS = re.compile(r"^[\d.]+$")
# (redop, root) print as text or -1; from the end: time algbw busbw wrong, twice.
_COLUMNS = 13
_SIZES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclPoint:
    """size_bytes  of the buffer as nccl-tests counts it;  time_s  out of place"""

    size_bytes: float
    time_s: float
    bus_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclCurve:
    """One collective on `devices` ranks; operation is None where the output does not name it."""

    operation: str | None
    devices: int | None
    points: tuple[NcclPoint, ...]

    @property
    def peak_bus_bytes_per_s(self) -> float:
        """The best of its sizes."""
        return max(point.bus_bytes_per_s for point in self.points)


def looks_like_nccl_tests(path: str | Path) -> bool:
    """Whether the first lines are a header of nccl-tests."""
    for number, line in enumerate(LogLines(path)):
        if "nccl-tests version" in line or line.startswith("# nThread "):
            return True
        if number > 200:
            break
    return False


def read_nccl_tests(path: str | Path) -> NcclCurve:
    """The curve; raises DocumentError where no row of results is in the file."""
    found = _NAME.search(Path(path).name)
    operation = found[1] if found else None
    ranks = 0
    points: dict[float, NcclPoint] = {}
    for line in LogLines(path):
        if (named := _NAME.search(line)) is not None:
            operation = named[1]
        if (rank := _RANK.match(line)) is not None:
            ranks = max(ranks, int(rank[1]) + 1)
        point = _point(line)
        if point is not None and (len(points) < _SIZES or point.size_bytes in points):
            points[point.size_bytes] = point
    if not points:
        raise DocumentError(
            f"{path}: has the header of nccl-tests and no row of results; did the benchmark end?"
        )
    return NcclCurve(
        operation=None if operation is None else _OPERATIONS[operation],
        devices=ranks or None,
        points=tuple(points[size] for size in sorted(points)),
    )


def _point(line: str) -> NcclPoint | None:
    cells = line.split()
    if len(cells) < _COLUMNS or not cells[0].isdigit() or not cells[1].isdigit():
        return None
    time_us, rate, bus, wrong = cells[-8:-4]
    if wrong not in ("0", "N/A") or not _DECIMALS.match(time_us):
        return None
    size, time_s, busbw = above_zero(cells[0]), above_zero(time_us), above_zero(bus)
    if size is None or time_s is None or busbw is None or not rate:
        return None
    return NcclPoint(size_bytes=size, time_s=time_s * 1e-6, bus_bytes_per_s=busbw * 1e9)


def nccl_data(curve: NcclCurve) -> dict[str, Any]:
    """The same as plain values for JSON."""
    return {
        "operation": curve.operation,
        "devices": curve.devices,
        "peak_bus_gb_per_s": curve.peak_bus_bytes_per_s / 1e9,
        "points": [
            {
                "size_bytes": p.size_bytes,
                "time_s": p.time_s,
                "bus_gb_per_s": p.bus_bytes_per_s / 1e9,
            }
            for p in curve.points
        ],
    }
