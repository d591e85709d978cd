"""The step time from features and coefficients: closed forms, an independent timeline, monotony."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from profiles.hardware.catalogue.catalog import get_link
from simulator.schedules.durations import Durations
from simulator.schedules.schedule import build_schedule, schedule_kind
from simulator.schedules.timeline import simulate
from simulator.soft_maximum import larger
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import assign
from simulator.training_run.step.features import Features, features
from simulator.training_run.step.step_time import StepParts, step_parts
from simulator.values.prediction import Part
from tests.simulator.described_runs import (
    GPT_RUN,
    LLAMA_RUN,
    MIXTRAL,
    at_starts,
    changed,
    of_each,
    plain,
    training_runs,
)

MEGATRON = replace(LLAMA_RUN, stack="megatron-core", zero_stage=1)


def parts_of(run: TrainingRun, **changes: float) -> StepParts:
    """With coefficients of one, without latencies, but for `changes`."""
    return step_parts(features([run]), of_each(plain(**changes)))


def without_head(x: Features) -> Features:
    nothing = np.zeros_like(x.head_matmul)
    return replace(
        x,
        head_matmul=nothing,
        head_peak=nothing,
        head_pass=nothing,
        head_accumulation=nothing,
    )


def total(run: TrainingRun) -> float:
    return float(at_starts([run]).total_s[0])


# ---- What holds for every run


def without_passes_s(run: TrainingRun) -> float:
    """The step with elementwise work and a host that take no time."""
    assigned = assign([run])
    values = assigned.of(assigned.starts())
    values |= {name: 0.0 * values[name] for name in ("passes", "launch_us")}
    return float(step_parts(features([run]), values).total_s[0])


@settings(max_examples=80, deadline=None)
@given(run=training_runs())
def test_parts_are_not_negative_and_add_up(run: TrainingRun) -> None:
    parts = at_starts([run])
    values = {part: float(seconds[0]) for part, seconds in parts.items()}
    for name, value in values.items():
        assert value >= -1e-12, name
    assert sum(values.values()) == pytest.approx(parts.total_s[0], rel=1e-12)
    assert values[Part.COMPUTE] > 0.0
    assert (values[Part.BUBBLE] > 0.0) == (run.degrees.pp > 1)
    assert (values[Part.CUT] > 0.0) == (run.degrees.pp > 1)
    assert (values[Part.TENSOR] > 0.0) == (run.degrees.tp > 1)
    assert (values[Part.CONTEXT] > 0.0) == (run.degrees.cp > 1)
    assert (values[Part.EXPERT] > 0.0) == (run.degrees.ep > 1 and run.model.num_experts > 0)
    # Frozen weights are gathered too, where they are shared out.
    assert (values[Part.GATHER] > 0.0) == (run.sharing_ranks > 1 and run.zero_stage == 3)
    assert values[Part.OPTIMIZER] == 0.0 or not run.lora


@settings(max_examples=40, deadline=None)
@given(run=training_runs(), more=st.integers(1, 3))
def test_more_layers_take_longer(run: TrainingRun, more: int) -> None:
    model = replace(run.model, num_layers=run.model.num_layers + more * run.degrees.pp)
    assert total(replace(run, model=model)) > total(run)


@settings(max_examples=40, deadline=None)
@given(run=training_runs())
def test_more_tokens_take_longer(run: TrainingRun) -> None:
    one = total(run)
    # Where the host sets the pace, the device's proportions still decide the idle time of a
    # schedule that is simulated, and more tokens let the head weigh less in them: such a step may
    # shrink a little.
    simulated = run.degrees.pp > 1 and not schedule_kind(run.schedule).closed_form
    least = 0.97 if simulated else 1.0
    assert total(replace(run, seq_len=2 * run.seq_len)) > least * one
    # By whole rounds of the pipeline, which interleaved schedules need.
    whole = run.degrees.dp * run.micro_batch * run.degrees.pp
    rounds = math.ceil(run.global_batch / whole) * whole
    times = [total(replace(run, global_batch=batch)) for batch in (rounds, rounds + whole)]
    assert times[1] > times[0]


@settings(max_examples=40, deadline=None)
@given(run=training_runs())
def test_computing_again_is_never_faster(run: TrainingRun) -> None:
    kinds = ("none", "selective", "minimal", "full")
    times = [total(replace(run, recompute=kind)) for kind in kinds]
    assert times[0] <= min(times) * (1 + 1e-12)
    assert times[-1] >= max(times) * (1 - 1e-12)
    assert times[-1] > times[0]


@settings(max_examples=40, deadline=None)
@given(run=training_runs())
def test_frozen_weights_are_never_slower(run: TrainingRun) -> None:
    """But for what adapters themselves launch and move (adapter_work.py)."""
    # Zero-bubble schedules have nothing to move where weights are frozen. Interleaved ones idle in
    # proportion to device time, so where the host sets the pace a lighter backward shows as more
    # idle time (0.4 % of a step in the worst found).
    assume(not run.model.num_experts and not run.schedule.startswith(("zb", "interleaved")))
    trained, frozen = (without_passes_s(replace(run, lora=lora)) for lora in (False, True))
    assert frozen <= trained * (1 + 1e-12)


@pytest.mark.parametrize("run", [GPT_RUN, replace(MEGATRON, global_batch=512)])
def test_twice_the_batch_is_nearly_twice_the_step(run: TrainingRun) -> None:
    """What does not grow are the pipeline's idle time, the optimizer and the gradients."""
    one, two = total(run), total(replace(run, global_batch=2 * run.global_batch))
    constant = at_starts([run])
    fixed = constant[Part.BUBBLE] + constant[Part.OPTIMIZER] + constant[Part.REDUCE] + 0.01
    fixed = fixed + 0.1 * constant[Part.CUT]  # the ramp's sends; others grow
    assert 2 * one - 2 * float(fixed[0]) < two < 2 * one


# ---- The pipeline against the timeline


@pytest.mark.parametrize(("pp", "count"), [(2, 2), (4, 4), (4, 11), (8, 32)])
def test_1f1bs_closed_form_is_its_timeline(pp: int, count: int) -> None:
    """(m - 1) T_max + sum T for equal stages, whatever part of T is forward."""
    run = changed(GPT_RUN, pp=pp, tp=8, global_batch=count)
    parts = step_parts(without_head(features([run])), of_each(plain()))
    busy = parts[Part.COMPUTE][0] + parts[Part.TENSOR][0]
    stage_s = busy / count
    for forward in (0.2, 0.33, 0.5):
        durations = Durations.even(
            pp,
            forward_s=forward * stage_s,
            backward_input_s=(1 - forward) / 2 * stage_s,
            backward_weight_s=(1 - forward) / 2 * stage_s,
        )
        schedule = build_schedule(
            "1f1b", num_ranks=pp, num_microbatches=count, stages_per_rank=1, durations=durations
        )
        makespan = max(simulate(schedule, durations).end_s)
        assert busy + parts[Part.BUBBLE][0] == pytest.approx(makespan, rel=1e-9)
    assert parts[Part.BUBBLE][0] == pytest.approx((pp - 1) * stage_s, rel=1e-9)


def test_a_heavier_last_stage_sets_the_pace() -> None:
    """With the head behind the last of 4 stages: sum of the others' passes and m of the last."""
    run = changed(GPT_RUN, pp=4, global_batch=8)
    parts = parts_of(run)
    light = step_parts(without_head(features([run])), of_each(plain()))
    stage_s = (light[Part.COMPUTE][0] + light[Part.TENSOR][0]) / 8
    last_s = (parts[Part.COMPUTE][0] + parts[Part.TENSOR][0]) / 8
    assert last_s > stage_s
    forward = tuple(x / 3 for x in (stage_s, stage_s, stage_s, last_s))
    durations = Durations(
        forward_s=forward,
        backward_s=tuple(2 * x for x in forward),
        send_forward_s=(0.0,) * 4,
        send_backward_s=(0.0,) * 4,
    )
    schedule = build_schedule(
        "1f1b", num_ranks=4, num_microbatches=8, stages_per_rank=1, durations=durations
    )
    makespan = max(simulate(schedule, durations).end_s)
    found = parts[Part.COMPUTE][0] + parts[Part.TENSOR][0] + parts[Part.BUBBLE][0]
    assert found == pytest.approx(makespan, rel=1e-9)


@pytest.mark.parametrize("vpp", [2, 3, 4])
def test_interleaving_divides_the_idle_time(vpp: int) -> None:
    run = changed(GPT_RUN, pp=4, global_batch=8)
    x = without_head(features([run]))
    plain_parts = step_parts(x, of_each(plain()))
    chunked = step_parts(replace(x, vpp=np.asarray([float(vpp)])), of_each(plain()))
    assert chunked[Part.BUBBLE][0] == pytest.approx(plain_parts[Part.BUBBLE][0] / vpp)
    stage_s = (plain_parts[Part.COMPUTE][0] + plain_parts[Part.TENSOR][0]) / 8
    durations = Durations.even(
        4 * vpp,
        forward_s=stage_s / 3 / vpp,
        backward_input_s=stage_s / 3 / vpp,
        backward_weight_s=stage_s / 3 / vpp,
    )
    schedule = build_schedule(
        "interleaved", num_ranks=4, num_microbatches=8, stages_per_rank=vpp, durations=durations
    )
    makespan = max(simulate(schedule, durations).end_s)
    assert 8 * stage_s + chunked[Part.BUBBLE][0] == pytest.approx(makespan, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(run=training_runs(), name=st.sampled_from(("zb-h1", "zb-1p", "zb-2p")))
def test_zero_bubble_schedules_idle_less(run: TrainingRun, name: str) -> None:
    """Or as long at the worst, where one micro-batch leaves nothing to fill with. Not in a V, whose
    first rank has the head too: for it the others may wait longer than under 1F1B."""
    assume(run.degrees.pp > 1 and not run.lora)
    usual = changed(run, schedule="1f1b", vpp=1)
    filled = changed(run, schedule=name, vpp=1)
    assert parts_of(filled)[Part.BUBBLE][0] <= parts_of(usual)[Part.BUBBLE][0] * (1 + 1e-9)


# ---- Single terms by hand


def test_one_device_without_messages_is_its_kernels() -> None:
    """4 micro-batches of 32 layers and a head, everything at its counted speed."""
    run = changed(MEGATRON, dp=1, global_batch=4, zero_stage=0)
    x = features([run])
    layer = x.matmul_forward + x.matmul_backward + x.attention_forward + x.attention_backward
    layer = layer + x.pass_forward + x.pass_backward + x.accumulation_s
    head = x.head_matmul + x.head_pass + x.head_accumulation
    expected = 4 * (32 * layer + head) + x.optimizer_s
    assert parts_of(run).total_s[0] == pytest.approx(float(expected[0]), rel=1e-9)


def test_a_slow_host_sets_the_pace() -> None:
    """Megatron-Core launches 18 + 30 kernels a layer: at 1 ms each 48 ms whatever the device."""
    run = changed(MEGATRON, dp=1, global_batch=4, zero_stage=0)
    x = without_head(features([run]))
    slow = step_parts(x, of_each(plain(launch_us=1000.0)))
    assert slow[Part.COMPUTE][0] == pytest.approx(4 * 32 * 48e-3, rel=1e-3)
    fast = step_parts(x, of_each(plain(launch_us=1e-3)))
    assert fast[Part.COMPUTE][0] < 0.5 * slow[Part.COMPUTE][0]


def test_gathers_that_take_longer_than_the_compute_show() -> None:
    """ZeRO-3 with a network a thousand times slower: the step is the gathers."""
    run = changed(LLAMA_RUN, dp=16)
    slow = parts_of(run, outer=1000.0, gather_exposed=0.0)
    gather_s = 32 * features([run]).gather_outer[0] * 1000 * slow_microbatches(run)
    assert slow.total_s[0] == pytest.approx(gather_s, rel=0.1)
    # Where they fit under the compute only the exposed share of them costs.
    none, tenth = (parts_of(run, gather_exposed=share)[Part.GATHER][0] for share in (0.0, 0.1))
    found = features([run])
    gather_layer = max(found.gather_inner[0], found.gather_outer[0])
    assert tenth - none == pytest.approx(0.1 * 32 * gather_layer * slow_microbatches(run))


def slow_microbatches(run: TrainingRun) -> int:
    return run.global_batch // (run.degrees.dp * run.micro_batch)


def test_latencies_count_their_steps() -> None:
    """Two ring collectives of 8 V100 a layer and pass, 12 layers, 32 micro-batches: 7 hops of their
    link's latency, twice a pass (two all-reduces of two passes), forward and backward; latencies
    count in steps of 12 us."""
    run = replace(GPT_RUN, device="v100-sxm2-16gb")
    steps = 2 * 2 * 7 * get_link("nvlink2").latency_s.value / 12e-6
    added = parts_of(run, inner_step_us=10.0)[Part.TENSOR] - parts_of(run)[Part.TENSOR]
    assert added[0] == pytest.approx(2 * steps * 10e-6 * 12 * 32)
    again = replace(run, recompute="full")
    added = parts_of(again, inner_step_us=10.0)[Part.TENSOR] - parts_of(again)[Part.TENSOR]
    assert added[0] == pytest.approx(3 * steps * 10e-6 * 12 * 32)


def test_sends_show_in_the_ramp_and_by_their_exposed_share() -> None:
    """Of 32 x vpp in each direction the exposed share, and p - 1 = 7 of the ramp."""
    cut = features([GPT_RUN]).cut_outer[0]
    assert parts_of(GPT_RUN, cut_exposed=0.0)[Part.CUT][0] == pytest.approx(2 * 7 * cut)
    assert parts_of(GPT_RUN, cut_exposed=0.5)[Part.CUT][0] == pytest.approx(2 * (16 + 7) * cut)
    chunks = changed(GPT_RUN, vpp=3, schedule="interleaved")
    assert parts_of(chunks, cut_exposed=0.5)[Part.CUT][0] == pytest.approx(2 * (48 + 7) * cut)


def test_bytes_between_nodes_take_longer_in_many() -> None:
    """10 % per doubling of the nodes: 8 nodes are 3 doublings. Nothing inside one node."""
    without, congested = parts_of(GPT_RUN), parts_of(GPT_RUN, congestion=0.1)
    assert congested[Part.CUT][0] == pytest.approx(1.3 * without[Part.CUT][0])
    assert congested[Part.TENSOR][0] == without[Part.TENSOR][0]
    assert parts_of(MEGATRON, congestion=0.1).total_s[0] == parts_of(MEGATRON).total_s[0]


def test_overheads_are_per_step_and_per_microbatch() -> None:
    run = replace(MEGATRON, global_batch=32)  # 4 micro-batches of 8 ranks
    assert parts_of(run, step_ms=7.0).total_s[0] - parts_of(run).total_s[0] == pytest.approx(7e-3)
    each = parts_of(run, microbatch_ms=7.0).total_s[0] - parts_of(run).total_s[0]
    assert each == pytest.approx(4 * 7e-3)


def test_the_power_limit_is_a_second_bound_of_matmuls() -> None:
    run = changed(MEGATRON, dp=1, global_batch=1, zero_stage=0)
    x = features([run])
    limited = step_parts(x, of_each(plain(power=5.0)))[Part.COMPUTE] - parts_of(run)[Part.COMPUTE]
    peak = 32 * (x.peak_forward + x.peak_backward) + x.head_peak
    surface = 32 * (x.matmul_forward + x.matmul_backward) + x.head_matmul
    assert limited[0] == pytest.approx(float((5 * peak - surface)[0]), rel=1e-3)


def test_experts_wait_for_their_exchange() -> None:
    run = changed(MEGATRON, model=MIXTRAL, ep=8)
    x = features([run])
    # Dispatch and return, forward and backward, 32 layers and 2 micro-batches.
    assert parts_of(run)[Part.EXPERT][0] == pytest.approx(float(2 * x.expert_inner[0]) * 32 * 2)


def test_dual_pipe_exchanges_experts_beside_another_micro_batch() -> None:
    """All that is computed hides as much of the all-to-alls, but for the multiprocessors that they
    take; what is longer shows, and so do those of the passes without a partner."""
    plain_run = changed(MEGATRON, model=MIXTRAL, ep=8, global_batch=64)
    alone = 1 / plain_run.num_microbatches
    paired = replace(plain_run, schedule="dualpipev")
    waits, hides = parts_of(plain_run), parts_of(paired)
    assert hides[Part.COMPUTE][0] == pytest.approx(waits[Part.COMPUTE][0])
    computed, sent = hides[Part.COMPUTE], waits[Part.EXPERT]
    beside = larger(computed + 20 / 132 * sent, sent) - computed
    shown = alone * sent + (1 - alone) * beside
    assert hides[Part.EXPERT][0] == pytest.approx(float(shown[0]), rel=0.02, abs=1e-4)
    assert hides[Part.EXPERT][0] < 0.4 * waits[Part.EXPERT][0]


@given(a=st.floats(1e-9, 1e3), b=st.floats(1e-9, 1e3))
def test_larger_lies_a_little_above_the_larger(a: float, b: float) -> None:
    def of(x: float, y: float) -> float:
        values: NDArray[np.float64] = larger(np.asarray([x]), np.asarray([y]))
        return float(values[0])

    found = of(a, b)
    # At most 2^(1/6) = 1.12 of it, where both are alike.
    assert max(a, b) * (1 - 1e-12) <= found <= 2 ** (1 / 6) * max(a, b) * (1 + 1e-12)
    assert found == pytest.approx(of(b, a))
