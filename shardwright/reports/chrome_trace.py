"""Chrome traces (Perfetto opens them): predicted and measured as two groups of tracks.

Format: "Trace Event Format", complete events (`X`), counters (`C`) and metadata (`M`); times in
microseconds. One track per rank and stream, since viewers hide overlapping slices of a track.
"""

from __future__ import annotations

from typing import Any

from simulator.values.measurement import Measurement
from simulator.values.prediction import Event, Prediction

PREDICTED, MEASURED = 1, 2
_STREAMS = {"compute": 0, "send": 1, "collective": 2}


def chrome_trace(prediction: Prediction | None, measured: Measurement | None) -> dict[str, Any]:
    """The trace as plain values, ready for JSON."""
    events: list[dict[str, Any]] = []
    if prediction is not None:
        events += _group(PREDICTED, "predicted", prediction.events)
        for rank in prediction.ranks:
            events += [
                {
                    "ph": "C",
                    "pid": PREDICTED,
                    "name": f"memory of rank {rank.rank}",
                    "ts": sample.time_s * 1e6,
                    "args": {"bytes": round(sample.memory_bytes)},
                }
                for sample in rank.timeline
            ]
    if measured is not None:
        events += _group(MEASURED, "measured", measured.events)
        events += _peaks(measured)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _peaks(measured: Measurement) -> list[dict[str, Any]]:
    """Counters of the measured peaks: level over the step, since a run keeps no more than the peak.

    They carry the names of the predicted counters, so that a viewer shows the two side by side.
    """
    end_s = max((event.end_s for event in measured.events), default=measured.step_wall_s)
    return [
        {
            "ph": "C",
            "pid": MEASURED,
            "name": f"memory of rank {sample.rank}",
            "ts": time_s * 1e6,
            "args": {"peak bytes": round(sample.peak_memory_bytes)},
        }
        for sample in measured.ranks
        if sample.peak_memory_bytes > 0
        for time_s in (0.0, end_s)
    ]


def _group(pid: int, name: str, events: tuple[Event, ...]) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [
        {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}
    ]
    for rank, stream in sorted({(e.rank, e.stream) for e in events}):
        made.append(
            {
                "ph": "M",
                "pid": pid,
                "tid": _track(rank, stream),
                "name": "thread_name",
                "args": {"name": f"rank {rank} {stream}"},
            }
        )
    for event in events:
        made.append(
            {
                "ph": "X",
                "pid": pid,
                "tid": _track(event.rank, event.stream),
                "name": event.name,
                "ts": event.start_s * 1e6,
                "dur": max(0.0, event.end_s - event.start_s) * 1e6,
                "args": {"rank": event.rank, "stream": event.stream},
            }
        )
    return made


def _track(rank: int, stream: str) -> int:
    return rank * len(_STREAMS) + _STREAMS.get(stream, 0)
