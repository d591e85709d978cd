"""The whole prediction on hand-made models: sums, closed forms, properties, refusals."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.document import decode, encode
from profiles.errors import InputError, MismatchError
from profiles.hardware.energy.power_draw import power_draw
from simulator.traced.block_cost import price_block
from simulator.traced.predict import predict
from simulator.values.plan import Recompute
from simulator.values.prediction import Prediction
from tests.simulator.hand_made import Traced, cluster, device, link, plan, said

MODEL = Traced(8)
PLANS = {
    "one device": {"num_microbatches": 4},
    "1f1b": {"pp": 4, "num_microbatches": 8},
    "gpipe": {"pp": 4, "num_microbatches": 8, "schedule": "gpipe"},
    "interleaved": {"pp": 2, "vpp": 2, "num_microbatches": 4},
    "data": {"dp": 8, "num_microbatches": 2},
    "zero 1": {"dp": 8, "zero_stage": 1},
    "zero 2": {"dp": 4, "pp": 2, "zero_stage": 2},
    "zero 3": {"dp": 8, "zero_stage": 3},
    "tensor": {"tp": 4, "dp": 2},
    "all": {"pp": 2, "dp": 2, "tp": 2, "zero_stage": 1, "recompute": Recompute.FULL},
}


def run(on=None, model=MODEL, price=None, **settings) -> Prediction:
    return predict(plan(**settings), model, on or cluster(), price=price)


def components(prediction):
    return {part.name: part.time_s for part in prediction.components}


@pytest.mark.parametrize("name", PLANS)
def test_components_add_up_and_numbers_hold_together(name):
    found = run(**PLANS[name])
    parts = components(found)
    assert tuple(parts) == (
        "compute",
        "recompute",
        "launch",
        "runtime",
        "waiting_for_slowest_rank",
        "tensor_parallel_communication",
        "pipeline_communication",
        "data_parallel_communication",
        "bubble",
        "optimizer",
    )
    assert sum(parts.values()) == pytest.approx(found.step_time_s.value, rel=1e-12)
    assert min(parts.values()) >= -1e-12
    assert found.step_time_s.low <= found.step_time_s.value <= found.step_time_s.high
    tokens = plan(**PLANS[name]).workload.counted_per_step
    assert found.tokens_per_s.value == pytest.approx(tokens / found.step_time_s.value)
    assert 0 < found.mfu.value < 1
    assert found.mfu.low <= found.mfu.value <= found.mfu.high
    assert found.bubble_fraction == pytest.approx(parts["bubble"] / found.step_time_s.value)
    shares = [tag.share for tag in found.sources]
    assert sum(shares) == pytest.approx(1.0)
    assert shares == sorted(shares, reverse=True)  # the largest first
    assert max(event.end_s for event in found.events) == pytest.approx(found.step_time_s.value)
    assert found.peak_memory_bytes.value == max(rank.peak_bytes for rank in found.ranks)
    assert found.limit
    for rank in found.ranks:
        assert rank.peak_bytes >= rank.static_bytes
    # A prediction is a document: it survives being written and read.
    assert decode(Prediction, encode(found), where="here") == found


def test_one_device_by_hand():
    # Four micro-batches of eight blocks one after the other, and nothing else but the optimizer.
    on = cluster()
    found = run(on, num_microbatches=4)
    graph = MODEL.at(1)
    work = 0.0
    for ref in graph.chain:
        cost = price_block(
            graph.kinds[ref.kind], recompute=Recompute.NONE, devices=(0,), cluster=on
        )
        work += 4 * (cost.forward.value + cost.backward.value)
    parts = components(found)
    assert parts["compute"] + parts["launch"] == pytest.approx(work)
    assert found.step_time_s.value == pytest.approx(work + parts["optimizer"])
    # 2 x 1024^3 flop per product: 4 forward, 8 backward per block; 8 blocks x 4 micro-batches.
    flop = 2 * 1024**3 * 12 * 8 * 4
    assert found.mfu.value == pytest.approx(flop / (found.step_time_s.value * 100e12))


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("zero_stage", [1, 2, 3])
def test_one_replica_has_nothing_to_shard(zero_stage, pp):
    # The executor leaves its weights alone too (executor/parallelize.py).
    whole, alone = run(pp=pp), run(pp=pp, zero_stage=zero_stage)
    assert (alone.ranks, alone.step_time_s) == (whole.ranks, whole.step_time_s)


@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_even_pipelines_have_the_known_bubble(name):
    # All stages alike (8 like blocks on 4 ranks, sends for nothing): (p - 1) / (m + p - 1) of the
    # time before the optimizer.
    fast = link(bandwidth=1e30, latency_s=0.0)
    found = run(cluster(inner=fast, outer=fast), **PLANS[name])
    parts = components(found)
    step = found.step_time_s.value - parts["optimizer"]
    assert parts["bubble"] / step == pytest.approx(3 / (8 + 3), rel=1e-6)
    assert parts["pipeline_communication"] == pytest.approx(0.0, abs=1e-15)


def test_slow_sends_show_as_pipeline_communication():
    slow = link(bandwidth=1e9, latency_s=1e-3)
    fast = link(bandwidth=1e30, latency_s=0.0)
    before = run(cluster(inner=fast, outer=fast), **PLANS["1f1b"])
    after = run(cluster(inner=slow, outer=slow), **PLANS["1f1b"])
    grown = after.step_time_s.value - before.step_time_s.value
    assert components(after)["pipeline_communication"] == pytest.approx(grown)
    # Three crossings down and up at least, of 1 ms + 2 MiB / 1 GB/s.
    assert grown >= 6 * (1e-3 + 2 * 2**20 / 1e9) * 0.999


def test_recomputation_costs_time_and_saves_memory():
    none, attention, full = (run(pp=2, num_microbatches=8, recompute=kind) for kind in Recompute)
    times = [p.step_time_s.value for p in (none, attention, full)]
    peaks = [p.peak_memory_bytes.value for p in (none, attention, full)]
    assert times == sorted(times)
    assert times[0] < times[2]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[0] > peaks[2]
    assert components(none)["recompute"] == 0.0
    assert components(full)["recompute"] > 0.0
    # Recomputed flop do not count as useful: the slower plan has the lower MFU.
    assert full.mfu.value < none.mfu.value


def test_more_replicas_exchange_gradients():
    alone, many = run(num_microbatches=2), run(dp=8, num_microbatches=2)
    assert components(alone)["data_parallel_communication"] == 0.0
    assert components(many)["data_parallel_communication"] > 0.0
    assert components(many)["compute"] == pytest.approx(components(alone)["compute"])


US, MIB_S = 1e-6, 2**20 / 100e9  # of a message, and of a MiB


@pytest.mark.parametrize(
    ("zero_stage", "pp", "each", "once"),
    [
        # Eight blocks' gradients are all-reduced, 2 (n - 1) / n of 128 MiB.
        (0, 1, 0.0, 6 * US + 1.5 * 128 * MIB_S),
        # They are scattered, and 64 MiB of weights gathered for the next step.
        (1, 1, 0.0, 3 * US + 0.75 * 128 * MIB_S + 3 * US + 0.75 * 64 * MIB_S),
        # Of each block and micro-batch 8 MiB of weights are gathered for the forward, where ZeRO 3
        # freed them for the backward too, and 16 MiB of gradients are reduced in the backward.
        (2, 1, 3 * US + 0.75 * 8 * MIB_S + 3 * US + 0.75 * 16 * MIB_S, 0.0),
        (3, 1, 2 * (3 * US + 0.75 * 8 * MIB_S) + 3 * US + 0.75 * 16 * MIB_S, 0.0),
        # In a pipeline of two stages four blocks' 64 MiB of gradients are reduced once a step, and
        # 32 MiB of weights gathered once (ZeRO 2), or a block's for every pass (ZeRO 3).
        (2, 2, 0.0, 2 * US + 0.5 * (64 + 32) * MIB_S),
        (3, 2, 2 * (US + 0.5 * 8 * MIB_S), US + 0.5 * 64 * MIB_S),
    ],
    ids=["zero 0", "zero 1", "zero 2", "zero 3", "zero 2 in a pipeline", "zero 3 in a pipeline"],
)
def test_what_replicas_send_by_hand(zero_stage, pp, each, once):
    """Blocks of 4 x 1024^2 parameters in bf16 on four devices of a node, 100 GB/s and 1 us."""
    found = run(cluster(1, 4), pp=pp, dp=4 // pp, zero_stage=zero_stage, num_microbatches=4)
    sent = components(found)["data_parallel_communication"]
    assert sent == pytest.approx(4 * (8 // pp) * each + once)


def test_zero_lowers_memory():
    peaks = [
        run(dp=8, zero_stage=zero, num_microbatches=2).peak_memory_bytes.value for zero in range(4)
    ]
    assert peaks == sorted(peaks, reverse=True)
    assert peaks[3] < peaks[0] / 1.5


def test_it_fits_or_it_does_not():
    needed = run(**PLANS["1f1b"]).peak_memory_bytes.value
    small = run(cluster(of=device(memory_bytes=0.5 * needed)), **PLANS["1f1b"])
    assert not small.fits
    assert "memory" in small.limit
    assert run(cluster(of=device(memory_bytes=2 * needed)), **PLANS["1f1b"]).fits


def test_money_and_energy():
    found = run(cluster(overhead_power=0.5), price=said(3.60), **PLANS["data"])
    seconds = 1e6 / found.tokens_per_s.value
    assert found.usd_per_million_tokens.value == pytest.approx(8 * 3.60 / 3600 * seconds)
    assert found.price_usd_per_hour == said(3.60)
    watts = 1.5 * 8 * 500 * power_draw().share(found.mfu.value) * power_draw().pue.value
    assert found.kwh_per_million_tokens.value == pytest.approx(watts * seconds / 3.6e6)
    # Eight of sixteen devices idle: all draw power, at half the utilization.
    idle = run(cluster(4), **PLANS["data"])
    watts = 16 * 500 * power_draw().share(idle.mfu.value / 2) * power_draw().pue.value
    joules = watts * 1e6 / idle.tokens_per_s.value
    assert idle.kwh_per_million_tokens.value == pytest.approx(joules / 3.6e6)
    assert run(**PLANS["data"]).usd_per_million_tokens is None


@given(st.sampled_from(sorted(PLANS)), st.floats(1.0, 8.0))
@settings(deadline=None, max_examples=40)
def test_better_hardware_is_never_slower(name, factor):
    settings_ = PLANS[name]
    base = run(**settings_).step_time_s.value
    better = (
        cluster(of=device(flop_per_s=100e12 * factor)),
        cluster(of=device(bandwidth=1e12 * factor)),
        cluster(of=device(launch_s=1e-6 / factor)),
        cluster(inner=link(bandwidth=100e9 * factor)),
        cluster(outer=link(bandwidth=10e9 * factor, latency_s=10e-6)),
    )
    for on in better:
        assert run(on, **settings_).step_time_s.value <= base * (1 + 1e-9)


def test_equal_inputs_give_equal_bytes():
    assert encode(run(**PLANS["all"])) == encode(run(**PLANS["all"]))


def test_a_plan_for_another_model_is_refused():
    with pytest.raises(MismatchError, match=r"10 blocks.*8.*plan other.*model hand"):
        predict(plan(num_blocks=10, model_hash="other"), MODEL, cluster())


def test_too_few_devices():
    with pytest.raises(MismatchError, match=r"16 devices.*pp 4 x dp 2 x tp 2.*has 8"):
        run(pp=4, dp=2, tp=2)


def test_a_device_without_a_rate_for_the_precision():
    on = cluster(of=device(rates=("float32",)))
    with pytest.raises(InputError, match=r"no rate for bfloat16.*float32.*--precision bf16"):
        run(on)


def test_stages_and_events_name_their_ranks():
    found = run(**PLANS["all"])
    assert [stage.rank for stage in found.stages] == [0, 4]
    assert {event.rank for event in found.events} == {0, 4}
    names = {event.name for event in found.events if event.stream == "compute"}
    assert {"0F0", "1B3", "optimizer"} <= names
    streams = itertools.groupby(
        sorted((e.rank, e.stream, e.start_s, e.end_s) for e in found.events if e.end_s > e.start_s),
        key=lambda row: row[:2],
    )
    for (_, stream), rows in streams:
        if stream == "compute":
            spans = [row[2:] for row in rows]
            for (_, end), (start, _) in itertools.pairwise(spans):
                assert start >= end - 1e-12
