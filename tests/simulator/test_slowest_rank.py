"""Ranks with the same work that are not equally fast: a step waits for the slowest."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import Measurements, StepOverhead
from simulator.traced.predict import predict
from simulator.traced.slowest_rank import slowest_rank
from simulator.values.prediction import Prediction
from tests.simulator.hand_made import Traced, block_points, cluster, device, plan, replicas

MODEL = Traced(8)


def machine(slowest: float, devices: int) -> Cluster:
    """Devices on which every block takes 10 ms forward and 20 ms back."""
    measured = Measurements(
        source="by hand", date="2026-11-23", blocks=block_points(MODEL), slowest=slowest
    )
    return cluster(1, devices, of=device(measurements=measured))


def predicted(slowest: float, devices: int = 2, **settings: object) -> Prediction:
    return predict(plan(**settings), MODEL, machine(slowest, devices))


def parts_of(found: Prediction) -> dict[str, float]:
    return {part.name: part.time_s for part in found.components}


def test_replicas_wait_for_the_slower_one() -> None:
    settings = {"dp": 2, "num_microbatches": 1}
    alike, unlike = predicted(1.0, **settings), predicted(1.1, **settings)
    work = sum(stage.forward_s + stage.backward_s for stage in alike.stages)
    assert unlike.step_time_s.value - alike.step_time_s.value == pytest.approx(0.1 * work)
    assert parts_of(unlike)["waiting_for_slowest_rank"] == pytest.approx(0.1 * work)
    assert parts_of(unlike)["compute"] == pytest.approx(parts_of(alike)["compute"])
    # What a rank is said to compute is the mean rank's.
    assert unlike.stages == alike.stages


def test_so_do_the_stages_of_a_pipeline() -> None:
    """Every forward and backward is longer, and with them what is idle."""
    alike = predicted(1.0, pp=2, num_microbatches=4)
    unlike = predicted(1.1, pp=2, num_microbatches=4)
    assert parts_of(unlike)["bubble"] == pytest.approx(1.1 * parts_of(alike)["bubble"], rel=1e-6)
    assert unlike.step_time_s.value / alike.step_time_s.value == pytest.approx(1.1, abs=0.01)


def test_one_rank_waits_for_nobody() -> None:
    assert predicted(1.1).step_time_s == predicted(1.0).step_time_s
    assert parts_of(predicted(1.1))["waiting_for_slowest_rank"] == 0.0


def test_in_steps_without_a_pipeline_waiting_grows_like_the_works_root() -> None:
    """Measured in steps of 60 ms: 1 % outside, the slower rank 5 % over the mean, and 0.5 ms to
    meet. Of 240 ms: 2.4 ms, 5 % of 120 ms, and 0.5."""
    step = StepOverhead(
        forward_s=0.0,
        backward_s=0.0,
        step_s=0.0,
        slowest=1.06,
        outside=0.01,
        work_s=0.06,
        meeting_s=0.5e-3,
    )
    measured = Measurements(
        source="by hand", date="2026-11-23", blocks=block_points(MODEL), slowest=1.5, step=step
    )
    machine_of_two = cluster(1, 2, of=device(measurements=measured))
    for micro_batches in (1, 2):
        found = predict(plan(dp=2, num_microbatches=micro_batches), MODEL, machine_of_two)
        work = micro_batches * sum(s.forward_s + s.backward_s for s in found.stages)
        expected = 0.01 * work + 0.05 * math.sqrt(0.06 * work) + 0.5e-3
        assert parts_of(found)["waiting_for_slowest_rank"] == pytest.approx(expected)
    # A file without those parts: 6 % of the work.
    old = replace(measured, step=replace(step, outside=None, work_s=0.0, meeting_s=0.0))
    found = predict(
        plan(dp=2, num_microbatches=1), MODEL, cluster(1, 2, of=device(measurements=old))
    )
    work = sum(s.forward_s + s.backward_s for s in found.stages)
    assert parts_of(found)["waiting_for_slowest_rank"] == pytest.approx(0.06 * work)


def test_fewer_ranks_than_were_measured_together_wait_less() -> None:
    """The largest of 2 and of 4 normal draws: 0.564 and 1.029 standard deviations."""

    def slowest(on: Cluster, ranks: int) -> float:
        return slowest_rank(replicas(on, dp=ranks, pipelined=True), work_s=0.0)

    assert slowest(machine(1.1, 4), 4) == pytest.approx(1.1)
    assert slowest(machine(1.1, 4), 2) == pytest.approx(1 + 0.1 * 0.564 / 1.029, abs=0.002)
    assert slowest(machine(1.0, 4), 4) == 1.0
    assert slowest(cluster(), 8) == 1.0
