"""The pipeline's own time: a line of its own, and whole where a rank has several stages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from profiles.hardware.catalogue.device import ActionOverhead, Measurements, StepOverhead
from simulator.traced.block_cost import price_block
from simulator.traced.predict import predict
from simulator.traced.stage_cost import missing_overhead
from simulator.values.plan import Recompute
from simulator.values.prediction import Prediction
from tests.simulator.hand_made import Traced, block_points, cluster, device, plan, replicas

MS = 1e-3
MODEL = Traced(8)
OVERHEAD = ActionOverhead(
    forward_cpu_s=2 * MS,
    forward_outside_s=1 * MS,
    backward_cpu_s=0.5 * MS,
    backward_outside_s=1.5 * MS,
)


def predicted(overhead: ActionOverhead | None, **settings: object) -> Prediction:
    """Every kind of block takes 10 ms forward and 20 ms back, of which the runtime 0.5 and 0.25."""
    runtime = {"forward_runtime_s": 0.5 * MS, "backward_runtime_s": 0.25 * MS}
    points = block_points(MODEL, **runtime, action=overhead)
    measured = Measurements(source="by hand", date="2026-11-21", blocks=points)
    return predict(plan(**settings), MODEL, cluster(of=device(measurements=measured)))


def test_the_runtime_is_a_part_of_its_own() -> None:
    found = predicted(OVERHEAD, pp=2, num_microbatches=4)
    parts = {part.name: part.time_s for part in found.components}
    blocks = len(MODEL.at(1, 1).chain) // 2
    # Four micro-batches through the blocks of the critical rank, 0.75 ms each.
    assert parts["runtime"] == pytest.approx(4 * blocks * 0.75 * MS, rel=0.3)
    assert sum(parts.values()) == pytest.approx(found.step_time_s.value)
    for stage in found.stages:
        count = round(stage.forward_s / (10 * MS))
        assert stage.runtime_s == pytest.approx(count * 0.75 * MS)


def test_recomputation_leaves_out_the_runtime_around_a_block() -> None:
    """Of 10 ms forward the runtime takes 0.5."""
    again = []
    for runtime_s in (0.0, 0.5 * MS):
        points = block_points(MODEL, forward_runtime_s=runtime_s)
        measured = Measurements(source="by hand", date="2026-11-21", blocks=points)
        block = MODEL.at(1, 1).kinds[1]
        on = cluster(of=device(measurements=measured))
        cost = price_block(block, recompute=Recompute.FULL, devices=(0,), cluster=on)
        again.append(cost.recompute_s)
    assert 0.0 < again[1] == pytest.approx(again[0] * 9.5 / 10)


def test_interleaved_stages_carry_what_their_blocks_do_not() -> None:
    plain = predicted(None, pp=2, vpp=2, num_microbatches=4, schedule="interleaved")
    whole = predicted(OVERHEAD, pp=2, vpp=2, num_microbatches=4, schedule="interleaved")
    for before, after in zip(plain.stages, whole.stages, strict=True):
        # Two stages per rank: half of each action's overhead is in the blocks already.
        assert after.forward_s - before.forward_s == pytest.approx(1.5 * MS)
        assert after.backward_s - before.backward_s == pytest.approx(1.0 * MS)
        assert after.runtime_s - before.runtime_s == pytest.approx(1.25 * MS)


def test_one_stage_per_rank_has_no_more() -> None:
    settings = {"pp": 2, "num_microbatches": 4}
    assert predicted(OVERHEAD, **settings).stages == predicted(None, **settings).stages


def test_blocks_that_were_not_measured_take_the_devices_overhead():
    action = ActionOverhead(
        forward_cpu_s=1e-3, forward_outside_s=2e-3, backward_cpu_s=3e-3, backward_outside_s=4e-3
    )
    measured = Measurements(source="by hand", date="2026-11-22", action=action)
    on = cluster(of=device(measurements=measured))
    for vpp in (1, 2):
        assert missing_overhead([], replicas(on, pp=2, vpp=vpp)) == action
    none = missing_overhead([], replicas(cluster(), pp=2))
    assert none.forward_cpu_s == none.backward_outside_s == 0.0


def test_without_a_pipeline_no_pipeline_runtime_is_around_actions():
    measured = Measurements(source="by hand", date="2026-11-22", action=OVERHEAD)
    alone = missing_overhead([], replicas(cluster(of=device(measurements=measured))))
    assert alone.forward_cpu_s == alone.forward_outside_s == 0.0
    assert alone.backward_cpu_s == alone.backward_outside_s == 0.0


def test_a_step_without_a_pipeline_has_its_own_overhead():
    of_step = StepOverhead(forward_s=0.3 * MS, backward_s=0.2 * MS, step_s=0.5 * MS, slowest=1.04)
    measured = Measurements(
        source="by hand", date="2026-11-23", slowest=1.01, action=OVERHEAD, step=of_step
    )
    machine = cluster(1, 2, of=device(measurements=measured))
    bare = cluster(1, 2, of=device(measurements=replace(measured, step=None, slowest=1.0)))
    settings = {"dp": 2, "num_microbatches": 5}
    found, without = (predict(plan(**settings), MODEL, of) for of in (machine, bare))
    # Five micro-batches of 0.3 + 0.2 ms, 0.5 ms once, and the slowest rank 4 % over the mean.
    work = 5 * sum(stage.forward_s + stage.backward_s for stage in without.stages)
    parts = {part.name: part.time_s for part in found.components}
    assert parts["runtime"] == pytest.approx(3 * MS)
    assert parts["waiting_for_slowest_rank"] == pytest.approx(0.04 * (work + 3 * MS))
    more = found.step_time_s.value - without.step_time_s.value
    assert more == pytest.approx(3 * MS + 0.04 * (work + 3 * MS))
