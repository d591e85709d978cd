"""Measurements of a machine with changing speed, scaled to one speed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.hardware.catalogue.device import HostPoint, ReferencePoint
from profiles.hardware.probe.cpu_clock import Sample
from profiles.hardware.probe.probe_answers import RankAnswer, at_one_speed

FAMILIES = ["matmul", "memory", "link"]


def sample(wall_s: float, cpu_s: float, delay_s: float | None) -> Sample:
    return Sample(wall_s=wall_s, cpu_s=cpu_s, delay_s=delay_s)


def references(layers_s: float, memory_s: float) -> tuple[ReferencePoint, ...]:
    times = {"layers": layers_s, "memory": memory_s}
    return tuple(ReferencePoint(kernel=k, time_s=t, spread=t / 10) for k, t in times.items())


def part(
    layers_s: float, memory_s: float, *samples: tuple[float, float, float | None]
) -> RankAnswer:
    return RankAnswer(
        samples=tuple((sample(*s),) for s in samples),
        before=references(layers_s, memory_s),
        references=references(layers_s, memory_s),
        host=(HostPoint(kind="op", phase="forward", time_s=layers_s),),
    )


def test_one_part_stays_as_it_is() -> None:
    only = part(0.1, 0.2, (1.0, 1.0, 0.1), (2.0, 2.0, None), (3.0, 3.0, 0.0))
    assert at_one_speed([only], FAMILIES) == only


def test_nothing_is_scaled_without_references() -> None:
    bare = RankAnswer(samples=((sample(1.0, 1.0, None),),))
    found = at_one_speed([bare, bare], ["matmul", "memory"])
    assert found.samples == 2 * bare.samples


def test_a_slow_part_is_scaled_by_the_kernel_of_its_ops() -> None:
    fast = part(1.0, 1.0, (10.0, 10.0, 0.0))
    # Twice as slow in computing, a quarter in memory.
    slow = part(2.0, 1.25, (20.0, 20.0, 2.0), (12.5, 12.5, None), (7.0, 7.0, 0.0))
    found = at_one_speed([fast, slow], ["matmul", "matmul", "memory", "link"])
    middle = 1.5, 1.125
    computing, memory = pytest.approx(10.0 * middle[0]), pytest.approx(10.0 * middle[1])
    assert found.samples == (
        (sample(computing, computing, 0.0),),
        (sample(computing, computing, pytest.approx(middle[0])),),
        (sample(memory, memory, None),),
        (sample(7.0, 7.0, 0.0),),
    )
    assert [(r.kernel, r.time_s) for r in found.references] == [
        ("layers", middle[0]),
        ("memory", middle[1]),
    ]
    assert found.references[0].spread == 0.2
    assert found.host[0].time_s == pytest.approx(middle[0])


def test_a_part_has_the_mean_of_its_two_readings() -> None:
    slowing = replace(part(3.0, 1.0, (20.0, 20.0, 0.0)), before=references(1.0, 1.0))
    steady = part(2.0, 1.0, (20.0, 20.0, 0.0))
    found = at_one_speed([slowing, steady], ["matmul", "matmul"])
    assert found.samples == ((sample(20.0, 20.0, 0.0),),) * 2
    # The host was measured at the end of the last part.
    assert at_one_speed([slowing], ["matmul"]).host[0].time_s == pytest.approx(2.0)


@given(st.lists(st.floats(0.5, 2.0), min_size=2, max_size=8))
def test_an_op_that_slows_with_the_machine_takes_the_same_in_every_part(
    speeds: list[float],
) -> None:
    parts = [part(s, s, (3.0 * s, 3.0 * s, None)) for s in speeds]
    found = at_one_speed(parts, ["matmul"] * len(speeds))
    times = [case[0].cpu_s for case in found.samples]
    assert times == pytest.approx([times[0]] * len(times))
