"""CPU time of the inner loops: run alone, since another program's work would count."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from simulator.schedules.schedule import build_schedule
from simulator.schedules.timeline import simulate
from simulator.traced.predict import predict
from tests.simulator.hand_made import Traced, cluster, plan
from tests.simulator.test_timeline import even


def _least_cpu_s(work: Callable[[], object]) -> float:
    work()
    times = []
    for _ in range(5):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.measuring
def test_a_timeline_takes_milliseconds() -> None:
    schedule = build_schedule("1f1b", num_ranks=16, num_microbatches=512)
    spent = _least_cpu_s(lambda: simulate(schedule, even(16)))
    assert 2 * 16 * 512 / spent > 100_000


@pytest.mark.measuring
def test_a_large_plan_is_predicted_in_milliseconds() -> None:
    model, on = Traced(80), cluster(nodes=16, per_node=8)
    made = plan(pp=8, dp=2, tp=8, num_microbatches=128, num_blocks=80)
    assert _least_cpu_s(lambda: predict(made, model, on)) < 0.15
