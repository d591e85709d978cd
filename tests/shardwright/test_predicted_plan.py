"""The prediction of a plan file is computed again, or says why it is that of the file."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.layout.plan_of_layout import run_of_plan
from profiles.errors import MismatchError
from shardwright import api
from shardwright.reports.reproduce import plan_command
from shardwright.requests.opened_plan import opened_plan
from shardwright.requests.plan_route import figures_of, unsupported_options
from shardwright.requests.predicted_plan import predicted_again
from simulator.values.plan import Recompute, Stage
from simulator.values.plan_title import plan_title
from simulator.values.prediction import Part
from simulator.values.workload import Workload
from tests.equality.profiled_cpu import profiled_cpu
from tests.equality.routes import local_machine_is
from tests.shardwright.hand_made import answer as hand_made

MODEL, ON = "tests.equality.models:wide", "1x2xh100-sxm"
SMALL = "tests.equality.models:alike"
WORK = Workload(global_batch=8, sequence_length=64)


@pytest.fixture(scope="module")
def answer():
    return api.plan(MODEL, ON, WORK, pp=2, tp=1, schedule="1f1b")


def test_a_step_that_this_release_predicts_otherwise_is_told(answer):
    assert predicted_again(opened_plan(answer)).changed == ""
    prediction = answer.prediction
    parts = tuple(replace(part, time_s=2 * part.time_s) for part in prediction.components)
    step = prediction.step_time_s.scaled(2.0)
    slower = answer.with_prediction(replace(prediction, step_time_s=step, components=parts))
    again = predicted_again(opened_plan(slower))
    assert again.opened.answer == answer
    assert "the file holds" in again.changed


def test_the_prediction_stays_that_of_the_file_where_it_cannot_be_computed(answer):
    calibrated = replace(answer, calibration="my-cluster.csv")
    again = predicted_again(opened_plan(calibrated))
    assert again.why_not == "its coefficients were refitted on my-cluster.csv"
    assert again.opened.answer is calibrated
    # The model and the cluster of this plan are known nowhere.
    assert "2xtoy" in predicted_again(opened_plan(hand_made())).why_not


def test_a_plan_for_another_profile_of_this_machine_is_not_predicted_on_it():
    cluster = profiled_cpu()
    work = replace(WORK, precision="fp32")
    planned = opened_plan(api.plan(SMALL, cluster, work, tp=1))
    with local_machine_is(cluster):
        assert predicted_again(planned).why_not == ""
    with local_machine_is(replace(cluster, overhead_power=cluster.overhead_power + 0.1)):
        assert "this machine's profile is not the one" in predicted_again(planned).why_not


def test_too_few_devices_are_refused(answer):
    with pytest.raises(MismatchError, match="needs 2 devices"):
        api.predict(answer.plan, on="1xh100-sxm")


@pytest.mark.parametrize("shared", [True, False])
def test_a_model_traced_without_the_plans_sequence_parallelism_is_refused(shared):
    plan = api.plan(SMALL, ON, WORK, tp=2, sequence_parallel=shared).plan
    right, wrong = (
        api.trace(SMALL, tp_degrees=(1, 2), sequence_parallel=each) for each in (shared, not shared)
    )
    with pytest.raises(MismatchError, match=f"trace it with sequence_parallel={shared}"):
        api.predict(plan, on=ON, model=wrong)
    found = api.predict(plan, on=ON, model=right)
    assert found.step_time_s == api.predict(plan, on=ON).step_time_s


def test_plans_that_no_layout_is(answer):
    plan, cluster = answer.plan, api.cluster(ON)
    figures = figures_of(MODEL, WORK.sequence_length)
    assert run_of_plan(plan, figures, cluster) is not None
    blocks = len(plan.block_entries)

    def stages(cut, *kinds):
        return tuple(
            Stage(first_block=i, last_block=j, recompute=kinds[i:j])
            for i, j in ((0, cut), (cut, blocks))
        )

    none = (Recompute.NONE,) * blocks
    mixed = (Recompute.NONE, Recompute.FULL, Recompute.ATTENTION, *none[3:])
    last = (*none[:-2], Recompute.FULL, Recompute.NONE)
    half = blocks // 2
    assert run_of_plan(replace(plan, stages=stages(half, *none)), figures, cluster) is not None
    for cut, kinds in ((half - 1, none), (half, mixed), (half, last)):
        other = replace(plan, stages=stages(cut, *kinds))
        assert run_of_plan(other, figures, cluster) is None


def test_a_plan_with_an_optimizer_in_host_memory_is_predicted_as_its_layout():
    kept = api.plan(MODEL, ON, WORK, dp=2, zero=3, tp=1)
    plan = replace(kept.plan, optimizer_offload=True)
    run = run_of_plan(plan, figures_of(MODEL, WORK.sequence_length), api.cluster(ON))
    assert run is not None
    assert run.optimizer_offload
    assert unsupported_options(run) == ""
    found, before = api.predict(plan, on=ON), kept.prediction
    assert found.step_time_s.value > before.step_time_s.value
    assert found.seconds[Part.HOST] > 0.0
    assert {rank.optimizer_bytes for rank in found.ranks} == {0.0}
    assert min(rank.host_bytes for rank in found.ranks) > 0.0
    assert "optimizer on the host" in plan_title(plan)
    assert "--stack torch --optimizer-offload" in plan_command(plan)


def test_hybrid_sharding_is_an_option_of_our_executor():
    plan = api.plan(MODEL, "1x4xh100-sxm", WORK, dp=4, dp_replicate=2, zero=3, tp=1).plan
    run = run_of_plan(plan, figures_of(MODEL, WORK.sequence_length), api.cluster("1x4xh100-sxm"))
    assert run is not None
    assert run.degrees.dp_replicate == 2
    assert unsupported_options(run) == ""
