"""Memory snapshots of torch as JSON; pickles are refused, because reading them runs code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.document import read_mapping
from profiles.errors import DocumentError

_MEANT = "a memory snapshot of torch as JSON"
_AS_JSON = (
    "python -c \"import json, pickle, sys; json.dump(pickle.load(open(sys.argv[1], 'rb')), "
    "open('snapshot.json', 'w'), default=str)\" SNAPSHOT"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySnapshot:
    """Bytes of one device; peak_bytes is None without a recorded history.

    reserved_bytes, allocated_bytes  when the snapshot was taken
    """

    device: int
    allocated_bytes: float
    reserved_bytes: float
    peak_bytes: float | None


def is_pickle(path: str | Path) -> bool:
    """Whether the file begins like a pickle of protocol 2 or later."""
    try:
        with Path(path).open("rb") as file:
            head = file.read(2)
    except OSError:
        return False
    return head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def read_memory_snapshot(path: str | Path) -> tuple[MemorySnapshot, ...]:
    """One entry per device of `torch.cuda.memory._snapshot()` written as JSON.

    Raises DocumentError for a pickle and for files that are no snapshot.
    """
    if is_pickle(path):
        raise DocumentError(
            f"{path}: is a pickle, which runs code when it is read; where you trust it, write it "
            f"as JSON: {_AS_JSON}"
        )
    data = read_mapping(path, expected=_MEANT)
    segments = data.get("segments")
    if not isinstance(segments, list):
        raise DocumentError(f"{path}: has no segments; is it {_MEANT}?")
    traces = data.get("device_traces") or []
    found = []
    for device in sorted({int(s.get("device", 0)) for s in segments if isinstance(s, dict)}):
        mine = [s for s in segments if isinstance(s, dict) and int(s.get("device", 0)) == device]
        now = sum(float(s.get("allocated_size", 0)) for s in mine)
        history = traces[device] if device < len(traces) else []
        found.append(
            MemorySnapshot(
                device=device,
                reserved_bytes=sum(float(s.get("total_size", 0)) for s in mine),
                allocated_bytes=now,
                peak_bytes=_peak(history, now),
            )
        )
    return tuple(found)


def _peak(history: Any, now: float) -> float | None:
    """The largest number of bytes allocated at once, from the history in reverse: `now` bytes are
    allocated at its end."""
    if not isinstance(history, list) or not history:
        return None
    allocated = peak = now
    for entry in reversed(history):
        size = float(entry.get("size", 0)) if isinstance(entry, dict) else 0.0
        action = entry.get("action") if isinstance(entry, dict) else ""
        if action == "alloc":
            allocated -= size
        elif action == "free_completed":
            allocated += size
        peak = max(peak, allocated)
    return peak
