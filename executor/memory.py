"""Exact peak memory of a rank, from its allocator."""

from __future__ import annotations

import json
import resource
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

from profiles.hardware.probe.fingerprint import machine_memory_bytes


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error is an allocator's out-of-memory error."""
    lacks = isinstance(error, torch.OutOfMemoryError)
    return lacks or "can't allocate memory" in str(error)  # DefaultCPUAllocator's message


def allocated_and_total(device: torch.device) -> tuple[float, float]:
    """Bytes allocated by this process, and the total of the device."""
    if device.type == "cpu":
        held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return float(held), float(machine_memory_bytes())
    held = torch.accelerator.max_memory_allocated(device)
    return float(held), float(torch.accelerator.get_memory_info(device)[1])


class PeakWatch:
    """Context around the construction of a rank and its first steps. After it, `peak_bytes` is the
    largest number of bytes allocated inside `measured`.

    The CPU allocator records no peak. There the allocation records of the profiler are summed from
    the beginning, including weights and optimizer states. An accelerator uses its allocator's peak.
    """

    def __init__(self, device: torch.device) -> None:
        self.peak_bytes = 0.0
        self._device = device
        profiled = profile(activities=[ProfilerActivity.CPU], profile_memory=True)
        self._profile = profiled if device.type == "cpu" else None

    def __enter__(self) -> PeakWatch:
        if self._profile is not None:
            self._profile.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        if self._profile is None:
            return
        self._profile.__exit__(kind, *error)
        if kind is not None:
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            self._profile.export_chrome_trace(str(path))
            events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
        self._profile = None
        self.peak_bytes = peak_of_trace(events)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Context around the code whose peak is measured."""
        if self._device.type == "cpu":
            with torch.profiler.record_function("shardwright::measured"):
                yield
            return
        torch.accelerator.reset_peak_memory_stats(self._device)
        yield
        self.peak_bytes = float(torch.accelerator.max_memory_allocated(self._device))


class _Change(NamedTuple):
    """Bytes allocated at an address by a thread; negative when freed."""

    time_us: float
    address: int
    size: int
    thread: object


def peak_of_trace(events: list[dict[str, Any]]) -> float:
    """Largest running sum of the allocations inside `shardwright::measured`.

    The profiler misses the last frees of gloo threads: copies made by its reduce-scatters stayed in
    the sum for both steps, up to a third of a peak under ZeRO 3 (torch 2.13, 2026-11-23). Therefore
    memory that is allocated again counts as freed before, and a collective's memory without a
    recorded free counts as freed at the next change.
    """
    changes: list[_Change] = []
    collectives: list[tuple[float, float, object]] = []
    measured: list[tuple[float, float]] = []
    for event in events:
        name, thread, begin = str(event.get("name")), event.get("tid"), float(event.get("ts", 0))
        end = begin + float(event.get("dur", 0))
        if name == "[memory]":
            given = event["args"]
            if given.get("Device Type") == 0:
                changes.append(_Change(begin, int(given["Addr"]), int(given["Bytes"]), thread))
        elif name == "shardwright::measured" and event.get("cat") == "user_annotation":
            measured.append((begin, end))
        elif name.startswith("c10d::"):
            collectives.append((begin, end, thread))
    if not measured:
        raise RuntimeError("the profiler did not record the measured step")
    start, end = measured[-1]
    changes.sort(key=lambda change: change.time_us)
    freed = _freed_unseen(changes, collectives)
    level = highest = 0
    for number, change in enumerate(changes):
        level += change.size - freed.get(number, 0)
        if start <= change.time_us <= end:
            highest = max(highest, level)
    return float(highest)


def _freed_unseen(
    changes: list[_Change], collectives: list[tuple[float, float, object]]
) -> dict[int, int]:
    """Bytes that were freed without a record, by the index of the change before which they were."""
    freed: Counter[int] = Counter()
    live: dict[int, int] = {}  # address -> number of the change that allocated it
    addresses: list[int] = []  # these addresses, ascending

    def lost(number: int, by: int) -> None:
        _, _, size, thread = made = changes[number]
        inside = any(a <= made.time_us <= b and thread == of for a, b, of in collectives)
        freed[number + 1 if inside else by] += size

    for number, change in enumerate(changes):
        at = bisect_left(addresses, change.address)
        if change.size <= 0:
            if live.pop(change.address, None) is not None:
                del addresses[at]
            continue
        if at and addresses[at - 1] + changes[live[addresses[at - 1]]].size > change.address:
            at -= 1
        while at < len(addresses) and addresses[at] < change.address + change.size:
            lost(live.pop(addresses.pop(at)), number)
        addresses.insert(at, change.address)
        live[change.address] = number
    for number in live.values():
        lost(number, len(changes))
    return freed
