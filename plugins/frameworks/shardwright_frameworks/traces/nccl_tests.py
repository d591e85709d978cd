"""The output of nccl-tests (and rccl-tests): seconds and bus bandwidth of collectives over sizes.

Columns of `all_reduce_perf` and the other programs (src/common.cu, `writeBenchmarkLine`): size,
count, type, redop, root, then time (us), algbw, busbw and #wrong out of place and in place. Rows
with wrong values are left out. Before them is a line per rank with its host and device name. A file
may contain the output of several programs in sequence, and process names before each line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.errors import DocumentError
from shardwright_frameworks.logs.formats.logged_number import above_zero
from shardwright_frameworks.logs.line_origin import origin_of
from shardwright_frameworks.logs.log_lines import LogLines

_OPERATIONS = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "send",
    "broadcast": "broadcast",
}
# Builds with MPI may be called all_reduce_perf_mpi.
_NAME = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv|broadcast)_perf(?:_mpi)?\b"
)
_RANK = re.compile(r"^\s*#?\s+Rank\s+(\d+)\b.*\bPid\b")
_PLACE = re.compile(r"\bon\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s+(.+?)\s*$")
_SETTINGS = re.compile(r"^\s*#?\s*nThread \d+ nGpus \d+")
_DECIMALS = re.compile(r"^[\d.]+$")
# The head of the table: if a launcher's lines hide the settings, it is alone.
_HEAD = re.compile(r"\bsize\s+count\s+type\s.*\btime\s+algbw\s+busbw\b")
# Ranks that mpirun prints within a line where two ranks wrote at once.
_WITHIN = re.compile(r"\[\d+(?:,\d+)?\](?:<std\w+>:?)?")
# size, count, type, then redop and root where the version prints them (until 2.10 there was no
# root, and alltoall had neither); from the end: time algbw busbw wrong, twice.
_COLUMNS = 11
# Until 2.12 the fourth was the largest error of an element.
_ERROR = re.compile(r"\de-\d\d|0e\+00")
_SIZES = 64
_HEAD_LINES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclPoint:
    """size_bytes: size of the buffer as counted by nccl-tests; time_s: out of place."""

    size_bytes: float
    time_s: float
    bus_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclCurve:
    """One collective on `devices` ranks; operation is None if the output does not name it.

    hosts        number of the ranks' hosts, None without printed ranks
    device_name  of the ranks' devices as printed, "" if missing or different
    """

    operation: str | None
    devices: int | None
    points: tuple[NcclPoint, ...]
    hosts: int | None = None
    device_name: str = ""

    @property
    def peak_bus_bytes_per_s(self) -> float:
        """The best rate of all sizes."""
        return max(point.bus_bytes_per_s for point in self.points)


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclOutput:
    """The curves of a file in order; at least one."""

    curves: tuple[NcclCurve, ...]


def looks_like_nccl_tests(path: str | Path) -> bool:
    """Whether the first lines contain a header of nccl-tests."""
    for number, line in enumerate(LogLines(path)):
        text = origin_of(line).text
        if "nccl-tests version" in line or _SETTINGS.match(text) or _HEAD.search(text):
            return True
        if number > _HEAD_LINES:
            break
    return False


def read_nccl_tests(path: str | Path) -> NcclOutput:
    """The curves; raises DocumentError for a file without rows of results."""
    found = _NAME.search(Path(path).name)
    curves = tuple(_curves(path, found[1] if found else None))
    if not curves:
        raise DocumentError(
            f"{path}: has the header of nccl-tests and no row of results; did the benchmark end?"
        )
    return NcclOutput(curves=curves)


class _Curve:
    """The lines of one program read so far."""

    def __init__(self, operation: str | None) -> None:
        self.operation = operation
        self.ranks = 0
        self.hosts: set[str] = set()
        self.names: set[str] = set()
        self.points: dict[float, NcclPoint] = {}

    def rank(self, number: int, line: str) -> None:
        self.ranks = max(self.ranks, number + 1)
        if (place := _PLACE.search(line)) is not None:
            self.hosts.add(place[1])
            self.names.add(place[2])

    def curve(self) -> NcclCurve:
        return NcclCurve(
            operation=None if self.operation is None else _OPERATIONS[self.operation],
            devices=self.ranks or None,
            points=tuple(self.points[size] for size in sorted(self.points)),
            hosts=len(self.hosts) or None,
            device_name=next(iter(self.names)) if len(self.names) == 1 else "",
        )


def _curves(path: str | Path, operation: str | None) -> Iterator[NcclCurve]:
    now = _Curve(operation)
    for printed in LogLines(path):
        line = _WITHIN.sub(" ", origin_of(printed).text)
        named = _NAME.search(line)
        begins = bool(named or _SETTINGS.match(line) or _HEAD.search(line))
        if begins and now.points:
            yield now.curve()
            now = _Curve(None)
        if named is not None:
            now.operation = named[1]
        if (rank := _RANK.match(line)) is not None:
            now.rank(int(rank[1]), line)
        point = _point(line)
        if point is not None and (len(now.points) < _SIZES or point.size_bytes in now.points):
            now.points[point.size_bytes] = point
    if now.points:
        yield now.curve()


def _point(line: str) -> NcclPoint | None:
    cells = line.split()
    if len(cells) < _COLUMNS or not cells[0].isdigit() or not cells[1].isdigit():
        return None
    time_us, rate, bus, wrong = cells[-8:-4]
    right = wrong in ("0", "N/A") or _ERROR.fullmatch(wrong) is not None
    if not right or cells[2].isdigit() or not _DECIMALS.match(time_us):
        return None
    size, time_s, busbw = above_zero(cells[0]), above_zero(time_us), above_zero(bus)
    if size is None or time_s is None or busbw is None or not rate:
        return None
    return NcclPoint(size_bytes=size, time_s=time_s * 1e-6, bus_bytes_per_s=busbw * 1e9)


def nccl_data(output: NcclOutput) -> dict[str, Any]:
    """The output as plain values for JSON: the first curve, and all curves under `curves`."""
    curves = [_curve_data(curve) for curve in output.curves]
    return {**curves[0], "curves": curves}


def _curve_data(curve: NcclCurve) -> dict[str, Any]:
    return {
        "operation": curve.operation,
        "devices": curve.devices,
        "hosts": curve.hosts,
        "device_name": curve.device_name or None,
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
