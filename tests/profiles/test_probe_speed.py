"""What a machine of changing speed was measured to take, brought to one speed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.hardware.probe.probe_speed import at_one_speed

FAMILIES = ["matmul", "memory", "link"]


def part(layers_s: float, memory_s: float, *samples: Any) -> dict[str, Any]:
    times = {"layers": layers_s, "memory": memory_s}
    return {
        "samples": [[list(s)] for s in samples],
        "references": [{"kernel": k, "time_s": t, "spread": t / 10} for k, t in times.items()],
        "host": [{"kind": "op", "phase": "forward", "time_s": layers_s}],
        "machine": {},
    }


def test_one_part_stays_as_it_is() -> None:
    only = part(0.1, 0.2, (1.0, 1.0, 0.1), (2.0, 2.0, None), (3.0, 3.0, 0.0))
    assert at_one_speed([only], FAMILIES) == only


def test_nothing_is_scaled_without_references() -> None:
    bare: dict[str, Any] = {
        "samples": [[[1.0, 1.0, None]]],
        "references": [],
        "host": [],
        "machine": {},
    }
    found = at_one_speed([bare, bare], ["matmul", "memory"])
    assert found["samples"] == 2 * bare["samples"]


def test_a_slow_part_is_scaled_by_the_kernel_of_its_ops() -> None:
    fast = part(1.0, 1.0, (10.0, 10.0, 0.0))
    # Twice as slow in computing, a quarter in memory, both before it and behind it.
    slow = part(2.0, 1.25, (20.0, 20.0, 2.0), (12.5, 12.5, None), (7.0, 7.0, 0.0))
    families = ["matmul", "matmul", "memory", "link"]
    found = at_one_speed([fast, fast | {"samples": []}, slow | {"samples": []}, slow], families)
    middle = 1.5, 1.125  # of 1, 1, 2 and 2; of 1, 1, 1.25 and 1.25
    assert found["samples"] == [
        [[pytest.approx(10.0 * middle[0])] * 2 + [0.0]],
        [[pytest.approx(10.0 * middle[0])] * 2 + [pytest.approx(middle[0])]],
        [[pytest.approx(10.0 * middle[1])] * 2 + [None]],
        [[7.0, 7.0, 0.0]],
    ]
    assert [(r["kernel"], r["time_s"]) for r in found["references"]] == [
        ("layers", middle[0]),
        ("memory", middle[1]),
    ]
    assert found["references"][0]["spread"] == 0.2
    assert found["host"][0]["time_s"] == pytest.approx(middle[0])


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=8))
def test_an_op_that_slows_with_the_machine_takes_the_same_in_every_part(
    speeds: list[float],
) -> None:
    """Where speed changes between parts alone: each has its own readings before and behind it."""
    parts = [made for s in speeds for made in (part(s, s), part(s, s, (3.0 * s, 3.0 * s, None)))]
    found = at_one_speed(parts, ["matmul"] * len(speeds))
    times = [case[0][1] for case in found["samples"]]
    assert times == pytest.approx([times[0]] * len(times))
