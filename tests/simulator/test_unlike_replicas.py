"""Plans whose replicas differ: the value's rules, and predictions against those of plans alike."""

import json
from dataclasses import replace
from itertools import pairwise

import pytest

from profiles.errors import DocumentError, InputError
from profiles.hardware.catalogue.cluster import Cluster, Level, NodeGroup
from shardwright.requests.opened_plan import open_plan
from simulator.traced.predict import predict
from simulator.traced.priced_replica import exchange
from simulator.training_run.framework.framework import load_stack
from simulator.values.degrees import Degrees
from simulator.values.plan import Pipeline, Plan, Recompute, Stage
from simulator.values.plan_file import PlanFile, read_plan_file, write_plan_file
from simulator.values.plan_title import plan_title
from simulator.values.prediction import Prediction
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
) -> Plan:
    """(micro-batches, [(device, devices, first, last), ...]) per replica; micro-batch 1."""
    return Plan(
        model="hand-made",
        model_hash="hand",
        block_entries=("", *(f"layers.{k}" for k in range(1, num_blocks - 1)), "head"),
        cluster="hand",
        cluster_hash="",
        workload=Workload(global_batch=sum(count for count, _ in pipelines), sequence_length=1024),
        degrees=Degrees(
            tp=tp, dp=len(pipelines), pp=max((len(stages) for _, stages in pipelines), default=1)
        ),
        schedule="1f1b",
        stages=(),
        zero_stage=zero_stage,
        micro_batch=1,
        pipelines=tuple(
            Pipeline(
                num_microbatches=count,
                stages=tuple(
                    Stage(
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
    found = predict(unlike, traced, on, stack=STACK, price=said(3.0, 0.1))
    for end in ("value", "low", "high"):
        assert getattr(found.step_time_s, end) == pytest.approx(
            getattr(expected.step_time_s, end), rel=1e-12
        )
    assert found.mfu.value == pytest.approx(expected.mfu.value, rel=1e-12)
    assert found.usd_per_million_tokens.value == pytest.approx(
        expected.usd_per_million_tokens.value, rel=1e-12
    )
    assert {c.name: c.time_s for c in found.components} == pytest.approx(
        {c.name: c.time_s for c in expected.components}, rel=1e-9, abs=1e-12
    )
    for stage, rank in zip(found.ranks[:2], expected.ranks, strict=True):
        assert stage.peak_bytes == pytest.approx(rank.peak_bytes, rel=1e-12)
        assert stage.rank == rank.rank


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
    found = predict(unlike, traced, on, stack=STACK)
    fast, slow = backward_ends(found)
    assert fast == pytest.approx(slow, rel=1e-9)
    assert found.usd_per_million_tokens is None
    # Exchange and the slow optimizer follow: step = end + exchange + update of the slow one.
    late = found.stages[1]
    assert late.rank == 2
    assert found.step_time_s.value == pytest.approx(slow + late.data_parallel_s + late.optimizer_s)
    equal = mixed([(5, whole[0]), (5, whole[1])], unused=(1, 3))
    later = predict(equal, traced, on, stack=STACK)
    assert backward_ends(later)[1] == pytest.approx(2.5 * slow, rel=1e-9)
    # The fast one waits for the slow one, whose optimizer is the slower one too.
    assert later.limit.startswith("compute of device 2 (")


def backward_ends(found: Prediction) -> list[float]:
    """When each device has done its last backward."""
    ends: dict[int, float] = {}
    for event in found.events:
        if event.stream == "compute" and event.name != "optimizer":
            ends[event.rank] = max(event.end_s, ends.get(event.rank, 0.0))
    return list(ends.values())


def test_memory_is_held_against_each_device():
    on, traced = two_types(), Traced()
    tight = replace(on.groups[1].device, memory_bytes=said(0.1 * GIB))
    on = replace(on, groups=(on.groups[0], replace(on.groups[1], device=tight)))
    unlike = mixed([(4, [("hand-gpu", (0,), 0, 4), ("hand-slow", (2,), 4, 8)])], unused=(1, 3))
    found = predict(unlike, traced, on, stack=STACK)
    assert not found.fits
    first, second = found.ranks
    assert first.fits
    assert (second.capacity_bytes, second.rank) == (tight.tensor_bytes, 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zero_stage": 3}, "ZeRO 0, 1 or 2, got 3: ZeRO-3 gathers"),
        ({"pipelines": ()}, "at least one replica"),
        ({"micro_batch": 2}, r"3 micro-batches of 2 are 6 sequences, the global batch is 3"),
        ({"degrees": Degrees(tp=2)}, "a stage of replica 0 has 1 devices, tp is 2"),
        (
            {"degrees": Degrees(pp=2)},
            "must have the degrees tp1 pp1 dp1 and no",
        ),
        ({"unused": (0,)}, r"devices \[0\] are in the plan twice"),
    ],
)
def test_what_does_not_add_up_is_named(change, message):
    whole = mixed([(3, [("hand-gpu", (0,), 0, 8)])])
    with pytest.raises(InputError, match=message):
        replace(whole, **change)


def test_stages_of_each_replica_cover_the_chain():
    whole, part = [("hand-gpu", (0,), 0, 8)], [("hand-gpu", (1,), 0, 7)]
    with pytest.raises(InputError, match="the stages cover 7 of 8 blocks of the model"):
        mixed([(1, whole), (1, part)])
    apart = [("hand-gpu", (1,), 0, 3), ("hand-gpu", (2,), 4, 8)]
    with pytest.raises(InputError, match="one begins at block 4, the one before ends at 3"):
        mixed([(1, whole), (1, apart)])


def test_parts_are_between_all_cuts():
    unlike = mixed(
        [
            (1, [("hand-gpu", (0,), 0, 3), ("hand-gpu", (1,), 3, 8)]),
            (1, [("hand-gpu", (2,), 0, 5), ("hand-gpu", (3,), 5, 8)]),
        ]
    )
    parts = unlike.parts
    assert [stage.first_block for stage in parts.stages] == [0, 3, 5]
    # Each part is exchanged by the devices that hold it in the two replicas.
    assert [parts.degrees.group("dp", pp=part) for part in range(3)] == [(0, 2), (1, 2), (1, 3)]
    assert unlike.devices == (0, 1, 2, 3)
    first, second = unlike.replicas
    assert [first.degrees.group("dp", pp=stage) for stage in range(2)] == [(0, 2), (1, 2)]
    assert [second.degrees.group("dp", pp=stage) for stage in range(2)] == [(2, 0), (3, 1)]
    assert plan_title(unlike) == "2 replicas of tp1, micro-batch 1"


def test_the_slowest_replica_holds_up_the_exchange():
    assert exchange([[12.0], [10.0]], [[0], [0]], [2.0]) == [[14.0], [14.0]]


def test_early_stages_exchange_last_and_alone():
    # Stage 1 ends at 3, stage 0 at 4: stage 1 exchanges from 3 to 3.5 during stage 0's backward;
    # with a barrier it waits until 4.
    cuts = [[0, 1]] * 2
    assert exchange([[4.0, 3.0]] * 2, cuts, [0.25, 0.5]) == [[4.25, 3.5]] * 2
    assert exchange([[4.0, 4.0]] * 2, cuts, [0.25, 0.5]) == [[4.25, 4.5]] * 2


def test_unlike_cuts_exchange_by_part():
    # Parts 0, 1, 2; one replica has [0, 1] [2], the other all on one device. That one does all in
    # 6 s and exchanges 2, 1, 0 in turn: 7, 8, 9.
    assert exchange([[4.0, 3.0], [6.0]], [[0, 2], [0]], [1.0] * 3) == [[9.0, 7.0], [9.0]]


def test_plans_with_unlike_replicas_are_read_and_not_opened(tmp_path):
    unlike = mixed(
        [(8, [("hand-gpu", (0,), 0, 8)]), (2, [("hand-slow", (2,), 0, 8)])], unused=(1, 3)
    )
    answer = PlanFile(status="feasible", search_time_s=1.0, cells_considered=4, plan=unlike)
    path = tmp_path / "plan.json"
    write_plan_file(path, answer, provenance={})
    assert read_plan_file(path) == answer
    with pytest.raises(DocumentError, match="unequal replicas on mixed devices; `run`"):
        open_plan(path)
    edited = json.loads(path.read_text())
    edited["plan"]["pipelines"][0]["stages"][0]["devices"] = [3]
    edited["plan"]["unused"] = [0, 1]
    path.write_text(json.dumps(edited))
    with pytest.raises(DocumentError, match=r"plan\.pipelines was changed after the plan was made"):
        read_plan_file(path)
