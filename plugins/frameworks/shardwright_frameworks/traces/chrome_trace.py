"""Chrome traces of torch.profiler: kernels by device, steps by `ProfilerStep#N`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shardwright_frameworks.traces.device_time import Kernels
from shardwright_frameworks.traces.json_events import trace_events
from shardwright_frameworks.traces.trace_time import TraceTime, trace_time

# Kineto's categories of device activities (libkineto, ActivityType.cpp); older releases use
# `Kernel`.
_ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"})


def read_chrome_trace(path: str | Path) -> TraceTime:
    """The time of each device by kind of work. A trace without kernels (of a CPU, or without CUDA
    activities) gives a result without devices, with a note.

    Raises DocumentError for a file without events.
    """
    kernels: dict[str, Kernels] = {}
    windows: dict[str, dict[str, tuple[float, float]]] = {}
    for event in trace_events(path):
        if event.get("ph") != "X":
            continue
        begin, duration = _microseconds(event.get("ts")), _microseconds(event.get("dur"))
        if begin is None or duration is None:
            continue
        category, name = str(event.get("cat", "")), str(event.get("name", ""))
        if category in _ON_DEVICE:
            device = _device(event)
            kernels.setdefault(device, Kernels()).add(name, begin, duration)
        elif "annotation" in category and name.startswith("ProfilerStep"):
            found = windows.setdefault(category, {})
            found.setdefault(name, (begin, begin + duration))
    return trace_time(
        str(path),
        "torch profiler",
        kernels,
        _windows(windows),
        "it holds no kernels of a device; profile with ProfilerActivity.CUDA",
    )


def _windows(found: dict[str, dict[str, tuple[float, float]]]) -> list[tuple[float, float]]:
    """(begin, end) of steps: those on the device if recorded (`gpu_user_annotation`), otherwise
    those of the host, each until the next begins, because kernels run after their launch."""
    steps = sorted(
        (found.get("gpu_user_annotation") or found.get("user_annotation") or {}).values()
    )
    ends = [begin for begin, _ in steps[1:]] + [end for _, end in steps[-1:]]
    return [(begin, end) for (begin, _), end in zip(steps, ends, strict=True)]


def _device(event: dict[str, Any]) -> str:
    arguments = event.get("args")
    number = arguments.get("device") if isinstance(arguments, dict) else None
    return f"device {event.get('pid', 0) if number is None else number}"


def _microseconds(value: Any) -> float | None:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            return None
    return value * 1e-6 if isinstance(value, int | float) else None
