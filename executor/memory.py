"""Peak memory of a rank: what its allocator held, exactly."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(prepare: Callable[[], Callable[[], None]], device: torch.device) -> float:
    """The highest number of bytes allocated during the second call of what `prepare` returns.

    On a CPU the allocator keeps no peak: the profiler's allocation records are summed from before
    `prepare` on, so that weights and optimizer states are in. On CUDA the allocator's own figure.
    The first call is left out: it makes the optimizer states.
    """
    if device.type == "cuda":
        run = prepare()
        run()
        torch.cuda.reset_peak_memory_stats(device)
        run()
        return float(torch.cuda.max_memory_allocated(device))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        run = prepare()
        run()
        with torch.profiler.record_function("shardwright::measured"):
            run()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return peak_of_trace(events)


def peak_of_trace(events: list[dict[str, object]]) -> float:
    """Highest running sum of the allocations while `shardwright::measured` ran."""
    start = end = None
    changes: list[tuple[float, float]] = []
    for event in events:
        if event.get("name") == "shardwright::measured" and event.get("cat") == "user_annotation":
            start = float(str(event["ts"]))
            end = start + float(str(event["dur"]))
        elif event.get("name") == "[memory]":
            arguments = event["args"]
            assert isinstance(arguments, dict)
            if arguments.get("Device Type") == 0:
                changes.append((float(str(event["ts"])), float(arguments["Bytes"])))
    if start is None or end is None:
        raise RuntimeError("the profiler did not record the measured step")
    level = highest = 0.0
    for time_us, change in sorted(changes, key=lambda row: row[0]):
        level += change
        if start <= time_us <= end:
            highest = max(highest, level)
    return highest
