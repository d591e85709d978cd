"""Plans for mixed devices: the value's rules, and predictions against `traced.predict`."""

from dataclasses import replace
from itertools import pairwise

import pytest

from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster, Level, NodeGroup
from simulator.mixed.mixed_prediction import predict_mixed, usd_of
from simulator.traced.predict import predict
from simulator.traced.stack import load_stack
from simulator.values.degrees import Degrees
from simulator.values.mixed_plan import MixedPipeline, MixedPlan, MixedStage
from simulator.values.plan import Recompute
from simulator.values.prediction import Interval
from simulator.values.workload import Workload
from tests.simulator.hand_made import GIB, Traced, cluster, device, link, plan, said

STACK = load_stack()


def mixed(
    pipelines: list[tuple[int, list[tuple[str, tuple[int, ...], int, int]]]],
    *,
    tp: int = 1,
    zero_stage: int = 0,
    recompute: Recompute = Recompute.NONE,
    num_blocks: int = 8,
    **more: object,
) -> MixedPlan:
    """(micro-batches, [(device, devices, first, last), ...]) per replica; micro-batch 1."""
    return MixedPlan(
        model="hand-made",
        model_hash="hand",
        block_entries=("", *(f"layers.{k}" for k in range(1, num_blocks - 1)), "head"),
        cluster="hand",
        cluster_hash="",
        workload=Workload(global_batch=sum(count for count, _ in pipelines), sequence_length=1024),
        degrees=Degrees(tp=tp),
        zero_stage=zero_stage,
        micro_batch=1,
        pipelines=tuple(
            MixedPipeline(
                num_microbatches=count,
                stages=tuple(
                    MixedStage(
                        device=name,
                        devices=devices,
                        first_block=first,
                        last_block=last,
                        recompute=(recompute,) * (last - first),
                    )
                    for name, devices, first, last in stages
                ),
            )
            for count, stages in pipelines
        ),
        **more,
    )


@pytest.mark.parametrize("zero_stage", [0, 1, 2])
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
def test_equal_replicas_are_predicted_as_the_ordinary_plan(zero_stage, tp, recompute):
    # 2 stages x 2 replicas x tp: rank (stage * 2 + replica) * tp, on 8 equal devices.
    on, traced = cluster(2, 2 * tp), Traced()
    ordinary = plan(pp=2, dp=2, tp=tp, zero_stage=zero_stage, recompute=recompute)
    expected = predict(ordinary, traced, on, stack=STACK, price=said(3.0, 0.1))
    cuts = [stage.first_block for stage in ordinary.stages] + [8]
    unlike = mixed(
        [
            (
                4,
                [
                    (
                        "hand-gpu",
                        tuple((s * 2 + r) * tp + t for t in range(tp)),
                        first,
                        last,
                    )
                    for s, (first, last) in enumerate(pairwise(cuts))
                ],
            )
            for r in range(2)
        ],
        tp=tp,
        zero_stage=zero_stage,
        recompute=recompute,
    )
    found = predict_mixed(unlike, traced, on, stack=STACK, prices={"hand-gpu": said(3.0, 0.1)})
    for end in ("value", "low", "high"):
        assert getattr(found.step_time_s, end) == pytest.approx(
            getattr(expected.step_time_s, end), rel=1e-12
        )
    assert found.mfu == pytest.approx(expected.mfu.value, rel=1e-12)
    assert found.usd_per_million_tokens.value == pytest.approx(
        expected.usd_per_million_tokens.value, rel=1e-12
    )
    for stage, rank in zip(found.replicas[0].stages, expected.ranks, strict=True):
        assert stage.memory.peak_bytes == pytest.approx(rank.peak_bytes, rel=1e-12)
        assert stage.memory.rank == rank.rank


def two_types() -> Cluster:
    """Two devices of 100 TFLOP/s with 80 GiB, then two of a quarter of all that."""
    slow = device(
        name="hand-slow", flop_per_s=25e12, bandwidth=0.25e12, memory_bytes=20 * GIB, launch_s=4e-6
    )
    return Cluster(
        name="two types",
        groups=(
            NodeGroup(count=1, devices_per_node=2, device=device()),
            NodeGroup(count=1, devices_per_node=2, device=slow),
        ),
        levels=(
            Level(name="node", domain_size=2, link=link()),
            Level(name="all", domain_size=4, link=link(bandwidth=10e9, latency_s=10e-6)),
        ),
    )


def test_shares_by_speed_end_together():
    # A quarter of the speed in everything and a quarter of the micro-batches: the same end.
    on, traced = two_types(), Traced()
    whole = [("hand-gpu", (0,), 0, 8)], [("hand-slow", (2,), 0, 8)]
    unlike = mixed([(8, whole[0]), (2, whole[1])], unused=(1, 3))
    found = predict_mixed(unlike, traced, on, stack=STACK, prices={})
    fast, slow = found.replicas
    assert fast.end_s == pytest.approx(slow.end_s, rel=1e-9)
    assert found.usd_per_million_tokens is None
    # Exchange and the slow optimizer follow: step = end + exchange + update of the slow one.
    (update,) = (stage.optimizer_s for stage in slow.stages)
    assert found.step_time_s.value == pytest.approx(slow.end_s + found.exchange_s + update)
    equal = mixed([(5, whole[0]), (5, whole[1])], unused=(1, 3))
    later = predict_mixed(equal, traced, on, stack=STACK, prices={})
    assert later.replicas[1].end_s == pytest.approx(2.5 * slow.end_s, rel=1e-9)


def test_memory_is_held_against_each_device():
    on, traced = two_types(), Traced()
    tight = replace(on.groups[1].device, memory_bytes=said(0.1 * GIB))
    on = replace(on, groups=(on.groups[0], replace(on.groups[1], device=tight)))
    unlike = mixed([(4, [("hand-gpu", (0,), 0, 4), ("hand-slow", (2,), 4, 8)])], unused=(1, 3))
    found = predict_mixed(unlike, traced, on, stack=STACK, prices={})
    assert not found.fits
    first, second = (stage.memory for stage in found.replicas[0].stages)
    assert first.fits
    assert (second.capacity_bytes, second.rank) == (0.1 * GIB, 2)


def test_dollars_are_those_of_the_devices_in_use():
    rate = Interval(value=1e6, low=0.5e6, high=2e6)
    # 1 million tokens a second on a device of 3.6 $/h and one of 7.2: 0.001 + 0.002 $.
    usd = usd_of(["a", "b"], rate, {"a": said(3.6), "b": said(7.2)})
    assert usd.value == pytest.approx(0.003)
    assert (usd.low, usd.high) == pytest.approx((0.0015, 0.006))
    assert usd_of(["a", "c"], rate, {"a": said(3.6)}) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zero_stage": 3}, "ZeRO 0, 1 or 2, got 3: ZeRO-3 gathers"),
        ({"pipelines": ()}, "one replica or more"),
        ({"micro_batch": 2}, r"3 micro-batches of 2 are 6 sequences, the global batch is 3"),
        ({"degrees": Degrees(tp=2)}, "a stage of replica 0 has 1 devices, tp is 2"),
        ({"degrees": Degrees(pp=2)}, "have tp only, got tp1 pp2 dp1"),
        ({"unused": (0,)}, r"devices \[0\] are in the plan twice"),
    ],
)
def test_what_does_not_add_up_is_named(change, message):
    whole = mixed([(3, [("hand-gpu", (0,), 0, 8)])])
    with pytest.raises(InputError, match=message):
        replace(whole, **change)


def test_parts_are_between_all_cuts():
    unlike = mixed(
        [
            (1, [("hand-gpu", (0,), 0, 3), ("hand-gpu", (1,), 3, 8)]),
            (1, [("hand-gpu", (2,), 0, 5), ("hand-gpu", (3,), 5, 8)]),
        ]
    )
    assert unlike.cuts() == (0, 3, 5)
    assert unlike.pipelines[0].stage_of(4).devices == (1,)
    assert unlike.world_size == 4
