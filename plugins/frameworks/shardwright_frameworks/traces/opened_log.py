"""`open_log`: reads any output file of a run: a log, a profile, a memory snapshot, or output of
nccl-tests."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from profiles.errors import DocumentError
from shardwright_frameworks.logs.read_log import read_training_log
from shardwright_frameworks.logs.training_log import TrainingLog, log_data
from shardwright_frameworks.plain_values import plain_values
from shardwright_frameworks.traces.chrome_trace import read_chrome_trace
from shardwright_frameworks.traces.memory_snapshot import (
    MemorySnapshot,
    is_pickle,
    read_memory_snapshot,
)
from shardwright_frameworks.traces.nccl_tests import (
    NcclOutput,
    looks_like_nccl_tests,
    nccl_data,
    read_nccl_tests,
)
from shardwright_frameworks.traces.nsys_export import is_nsys_export, read_nsys_export
from shardwright_frameworks.traces.trace_time import TraceTime, trace_data

OpenedLog = TrainingLog | TraceTime | NcclOutput | tuple[MemorySnapshot, ...]

_HEAD = 1 << 16


def open_log(path: str | Path) -> OpenedLog:
    """A training log, a profile (torch's Chrome trace, an nsys SQLite export), the output of
    nccl-tests, or a memory snapshot as JSON: recognized by the contents of the file.

    Raises DocumentError for any other file.
    """
    file = Path(path)
    if not file.exists():
        raise DocumentError(f"{path}: no such file")
    if file.is_dir():
        raise DocumentError(f"{path}: is a folder; name the log files in it")
    if is_nsys_export(file):
        return read_nsys_export(file)
    if file.suffix == ".nsys-rep":
        raise DocumentError(
            f"{path}: is a report of Nsight Systems; export it first: nsys export --type sqlite "
            f"{file.name}"
        )
    if is_pickle(file):
        return read_memory_snapshot(file)
    head = _head(file).lstrip("\ufeff \t\r\n")
    json_name = file.name.endswith((".json", ".json.gz"))
    if head.startswith("{") or (json_name and head.startswith("[")):
        if '"segments"' in head and "traceEvents" not in head:
            return read_memory_snapshot(file)
        if "traceEvents" in head or '"schemaVersion"' in head or (json_name and head[0] == "["):
            return read_chrome_trace(file)
    if looks_like_nccl_tests(file):
        return read_nccl_tests(file)
    return read_training_log(file)


def _head(file: Path) -> str:
    try:
        with file.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            return stream.read(_HEAD).decode("utf-8", errors="replace")
    except (OSError, EOFError) as error:
        raise DocumentError(f"{file}: cannot be read: {error}") from error


def opened_log_data(found: OpenedLog, path: Path) -> dict[str, Any]:
    """The content of the file as plain values for JSON."""
    if isinstance(found, TrainingLog):
        return log_data(found)
    if isinstance(found, TraceTime):
        return trace_data(found)
    if isinstance(found, NcclOutput):
        return {"file": str(path), **nccl_data(found)}
    return {"file": str(path), "devices": plain_values(found)}
