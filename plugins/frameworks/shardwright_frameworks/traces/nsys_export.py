"""SQLite exports of Nsight Systems (`nsys export --type sqlite`): kernels, copies, NVTX ranges."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from profiles.errors import DocumentError
from shardwright_frameworks.traces.device_time import Kernels
from shardwright_frameworks.traces.trace_time import TraceTime, trace_time

_KERNELS, _COPIES = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
_STEP = re.compile(
    r"^(?:ProfilerStep|train[_ ]?step|training[_ ]step|iteration|iter|step)\W*\d+$", re.IGNORECASE
)
_NS = 1e-9
_MOST_STEPS = 100_000


def is_nsys_export(path: str | Path) -> bool:
    """Whether the file is an SQLite database, by its first bytes."""
    try:
        with Path(path).open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


def read_nsys_export(path: str | Path) -> TraceTime:
    """The time of each device by kind of work; the database is opened read-only.

    Raises DocumentError for a file that is no database or no export of Nsight Systems.
    """
    file = Path(path)
    if not file.is_file():
        raise DocumentError(f"{path}: no such file")
    try:
        base = sqlite3.connect(f"file:{quote(str(file.resolve()))}?mode=ro&immutable=1", uri=True)
    except sqlite3.Error as error:
        raise DocumentError(f"{path}: cannot be opened: {error}") from error
    try:
        base.execute("PRAGMA trusted_schema = OFF")
        tables = {
            name for (name,) in base.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if "StringIds" not in tables:
            raise DocumentError(
                f"{path}: is an SQLite file without StringIds, no export of Nsight Systems; make "
                "one with: nsys export --type sqlite REPORT.nsys-rep"
            )
        kernels: dict[str, Kernels] = {}
        for device, name, begin, end in _activities(base, tables):
            found = kernels.setdefault(f"device {device}", Kernels())
            found.add(name, begin * _NS, (end - begin) * _NS)
        windows = _windows(base, tables)
    except sqlite3.Error as error:
        raise DocumentError(
            f"{path}: cannot be read as an Nsight Systems export: {error}"
        ) from error
    finally:
        base.close()
    return trace_time(
        str(path),
        "nsys",
        kernels,
        windows,
        "it holds no kernels; record with: nsys profile --trace cuda,nvtx",
    )


def _activities(base: sqlite3.Connection, tables: set[str]) -> Iterator[tuple[Any, str, int, int]]:
    if _KERNELS in tables:
        columns = _columns(base, _KERNELS)
        name = next((c for c in ("demangledName", "shortName", "nameId") if c in columns), None)
        if name is None or not {"start", "end", "deviceId"} <= columns:
            raise sqlite3.DatabaseError(f"{_KERNELS} has no names or times")
        yield from base.execute(
            f"SELECT k.deviceId, COALESCE(s.value, ''), k.start, k.end FROM {_KERNELS} k "
            f"LEFT JOIN StringIds s ON s.id = k.{name} WHERE k.end IS NOT NULL"
        )
    if _COPIES in tables and {"start", "end", "deviceId"} <= _columns(base, _COPIES):
        for device, begin, end in base.execute(
            f"SELECT deviceId, start, end FROM {_COPIES} WHERE end IS NOT NULL"
        ):
            yield device, "memcpy", begin, end


def _windows(base: sqlite3.Connection, tables: set[str]) -> list[tuple[float, float]]:
    """(begin, end) of numbered NVTX ranges named as steps, of the thread with the most."""
    if "NVTX_EVENTS" not in tables:
        return []
    columns = _columns(base, "NVTX_EVENTS")
    if not {"start", "end", "text"} <= columns:
        return []
    named = "COALESCE(n.text, s.value)" if "textId" in columns else "n.text"
    join = "LEFT JOIN StringIds s ON s.id = n.textId" if "textId" in columns else ""
    thread = "n.globalTid" if "globalTid" in columns else "0"
    by_thread: dict[Any, list[tuple[float, float]]] = {}
    rows = base.execute(
        f"SELECT {thread}, {named}, n.start, n.end FROM NVTX_EVENTS n {join} "
        "WHERE n.end IS NOT NULL ORDER BY n.start"
    )
    for tid, text, begin, end in rows:
        if isinstance(text, str) and _STEP.match(text):
            mine = by_thread.setdefault(tid, [])
            if len(mine) < _MOST_STEPS:
                mine.append((begin * _NS, end * _NS))
    return max(by_thread.values(), key=len, default=[])


def _columns(base: sqlite3.Connection, table: str) -> set[str]:
    return {row[1] for row in base.execute(f"PRAGMA table_info({table})")}
