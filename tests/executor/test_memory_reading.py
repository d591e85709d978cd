"""A peak from the profiler's records, of which those of another thread's frees are missing."""

from __future__ import annotations

import pytest

from executor.memory import peak_of_trace


def _change(ts: int, address: int, size: int) -> dict[str, object]:
    return {
        "name": "[memory]",
        "ts": ts,
        "tid": 1,
        "args": {"Device Type": 0, "Addr": address, "Bytes": size},
    }


def _span(name: str, ts: int, dur: int) -> dict[str, object]:
    return {"name": name, "cat": "user_annotation", "ts": ts, "dur": dur, "tid": 1}


MEASURED = _span("shardwright::measured", 10, 90)


@pytest.mark.parametrize(
    ("events", "peak"),
    [
        # What was there before, and what comes and goes.
        ([_change(1, 0, 100), _change(20, 200, 30), _change(21, 200, -30)], 130),
        # Freed unseen, as the same memory is handed out again.
        ([_change(20, 0, 100), _change(30, 0, 60), _change(31, 60, 60)], 120),
        ([_change(20, 50, 100), _change(30, 0, 60)], 100),
        # A collective's own copy that nobody is seen to free.
        ([_span("c10d::x", 20, 3), _change(21, 0, 100), _change(30, 200, 60)], 100),
        # One that is seen to be freed is there until then.
        ([_span("c10d::x", 20, 3), _change(21, 0, 9), _change(30, 20, 6), _change(31, 0, -9)], 15),
        # Outside the measured step.
        ([_change(1, 0, 100), _change(2, 0, -100), _change(20, 0, 10), _change(200, 50, 99)], 10),
    ],
)
def test_the_peak_of_a_measured_step(events: list[dict[str, object]], peak: float) -> None:
    assert peak_of_trace([MEASURED, *events]) == peak


def test_a_trace_without_the_step_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="did not record"):
        peak_of_trace([_change(1, 0, 100)])
