"""From a pipeline's log to seconds per block: a log made by hand, in milliseconds that add up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from executor.pipeline_times import (
    RankLog,
    StepLog,
    block_points,
    gaps_of,
    quiet_steps,
    step_overhead,
    weight_shares,
)
from profiles.errors import RunError
from profiles.model.graph import Block, BlockRef, ModelGraph
from simulator.values.degrees import Degrees
from simulator.values.plan import Plan, Recompute, Stage
from simulator.values.workload import Workload

MS = 1e-3
# One micro-batch through two stages of two blocks. Rank 1's clock began 2 ms after rank 0's.
ACTIONS = (
    (("0F0", 0, 11, 10), ("0B0", 70, 91, 20)),
    (("1F0", 10, 33, 22), ("1B0", 34, 66, 31)),
)
BLOCKS = (
    ((0, "F", 3), (1, "F", 6), (0, "B", 5), (1, "B", 15)),
    ((2, "F", 10), (3, "F", 10), (2, "B", 10), (3, "B", 20)),
)
BEGINS = (100.0, 100.002)


def log(rank: int, *, delay: float = 0.0) -> RankLog:
    step = StepLog(
        begin_s=BEGINS[rank],
        wall_s=0.1,
        delay_fraction=delay,
        actions=tuple((n, a * MS, b * MS, c * MS) for n, a, b, c in ACTIONS[rank]),
    )
    blocks = tuple((0, b, letter, c * MS, c * MS) for b, letter, c in BLOCKS[rank])
    stamping = ((0, rank, 1 * MS),)
    return RankLog(steps=(step,), blocks=blocks, stamping=stamping, warm_up=0)


def block(kind: str) -> Block:
    return Block(
        kind=kind,
        label=kind,
        inputs=(),
        outputs=(),
        forward_ops=(),
        backward_ops=(),
        parameters=(),
        saved=(),
        attention_module="",
        attention_input_bytes=0,
        forward_peak_bytes=0,
        backward_peak_bytes=0,
    )


GRAPH = ModelGraph(
    name="made",
    source="test",
    micro_batch=1,
    sequence_length=1,
    dtype="float32",
    tp=1,
    kinds=(block("edge"), block("middle")),
    chain=tuple(BlockRef(entry=str(i) if i else "", kind=k) for i, k in enumerate((0, 1, 1, 0))),
)
PLAN = Plan(
    model="made",
    model_hash="",
    block_entries=("", "1", "2", "3"),
    cluster="test",
    cluster_hash="",
    workload=Workload(global_batch=1, sequence_length=1, precision="fp32"),
    degrees=Degrees(pp=2),
    micro_batch=1,
    schedule="1f1b",
    stages=tuple(
        Stage(first_block=a, last_block=a + 2, recompute=(Recompute.NONE,) * 2) for a in (0, 2)
    ),
)


def test_waiting_for_a_message_is_no_gap() -> None:
    # Rank 0 idles from 11 ms to 70 ms, as 1B0 ends at 66 + 2 = 68 ms. Rank 1 goes on by itself
    # after 1 ms.
    ((stage, letter, time_s),) = gaps_of(PLAN, [log(0), log(1)], 0)
    assert (stage, letter) == (1, "B")
    assert time_s == pytest.approx(1 * MS)


def test_actions_are_dealt_to_their_blocks() -> None:
    points = {p.kind: p for p in block_points(PLAN, GRAPH, [log(0), log(1)])}
    # Stage 0 forward: 10 ms of CPU less 1 of stamps, blocks 3 + 6: dealt 3 and 6; 1 ms outside,
    # dealt 1/3 and 2/3. Stage 1 forward: 22 - 1 = 21 over 10 + 10: 10.5 each, 1 ms outside.
    edge, middle = points["edge"], points["middle"]
    assert edge.forward_runtime_s == pytest.approx((1 / 3 + 0.5) / 2 * MS)
    assert edge.forward_s - edge.forward_runtime_s == pytest.approx((3 + 10.5) / 2 * MS)
    assert middle.forward_s - middle.forward_runtime_s == pytest.approx((6 + 10.5) / 2 * MS)
    # Stage 1 backward: 31 ms of CPU over 10 + 20; 1 ms of wall and a gap of 1 ms outside.
    # Stage 0 backward: 20 over 5 + 15, 1 ms outside; its gap was a message's.
    assert edge.backward_runtime_s == pytest.approx((2 * 20 / 30 + 1 * 5 / 20) / 2 * MS)
    assert middle.backward_s - middle.backward_runtime_s == pytest.approx(
        (31 * 10 / 30 + 15) / 2 * MS
    )
    # Beside the blocks: 0 and 1 ms of forwards, 0 and 1 ms of backwards.
    assert edge.action is not None
    assert edge.action.forward_cpu_s == pytest.approx(0.5 * MS)
    assert edge.action.backward_cpu_s == pytest.approx(0.5 * MS)
    assert edge.action.forward_outside_s == pytest.approx(1 * MS)
    assert edge.action.backward_outside_s == pytest.approx(1.5 * MS)
    # Nothing is lost: the chain's blocks are the actions.
    total = sum(points[GRAPH.kinds[r.kind].kind].forward_s for r in GRAPH.chain)
    assert total == pytest.approx((9 + 1 + 21 + 1) * MS)


def test_disturbed_steps_are_left_out_unless_all_are() -> None:
    calm, late = log(0), log(0, delay=0.5)
    both = replace(calm, steps=(*late.steps, *calm.steps))
    assert quiet_steps([both, both]) == (1,)
    assert quiet_steps([late, late]) == (0,)


def test_the_middle_half_of_the_steps_counts() -> None:
    (step,) = log(0).steps
    lengths = (0.1, 0.9, 0.4, 0.3, 0.2, 0.5, 0.05, 0.6)
    steps = tuple(replace(step, wall_s=t) for t in (9.0, *lengths))
    some = replace(log(0), steps=steps, warm_up=1)
    # 0.2, 0.3, 0.4 and 0.5 s, by their places behind the warm-up
    assert quiet_steps([some, some]) == (3, 4, 5, 6)


def test_a_stage_without_work_is_refused() -> None:
    idle = replace(log(0), blocks=tuple((s, b, k, 0.0, 0.0) for s, b, k, _, _ in log(0).blocks))
    with pytest.raises(RunError, match="stage 0 of the measured pipeline took no CPU time"):
        block_points(PLAN, GRAPH, [idle, log(1)])


def test_the_part_of_w_is_that_of_its_kind_s_blocks() -> None:
    """Edges: W 1 + 3 of I + W 4 + 16; middles: 5 of 20 and none of 5."""
    halves = (
        ((0, "I", 3), (0, "W", 1), (1, "I", 15), (1, "W", 5)),
        ((2, "I", 5), (2, "W", 0), (3, "I", 13), (3, "W", 3)),
    )
    logs = [
        replace(log(rank), blocks=tuple((0, b, letter, s, s) for b, letter, s in halves[rank]))
        for rank in (0, 1)
    ]
    assert weight_shares(GRAPH, logs) == {
        "edge": pytest.approx(4 / 20),
        "middle": pytest.approx(5 / 25),
    }


def test_the_overhead_of_steps_without_a_pipeline():
    """Two replicas of one micro-batch of three blocks; of rank 0 in milliseconds:

    0 - 1 before, 1 - 12 forward (10 of CPU, of which 1 stamps and 8 blocks), 12 - 13 between,
    13 - 35 backward (20 of CPU, 19.5 of blocks), 2 before the exchange, 1 before the optimizer, 2
    at the end. Rank 1 is the same, but its backward takes 2 ms more, of which 1 of CPU and blocks,
    and its end 3 ms.
    """
    workload = replace(PLAN.workload, global_batch=2)
    plan = replace(
        PLAN,
        workload=workload,
        degrees=replace(PLAN.degrees, pp=1, dp=2),
        schedule="none",
        stages=(Stage(first_block=0, last_block=4, recompute=(Recompute.NONE,) * 4),),
    )
    logs = []
    for more in (0, 2):
        actions = (
            ("0F0", 1, 12, 10),
            ("0B0", 13, 35 + more, 20 + more / 2),
            ("data_parallel", 37 + more, 40, 1),
            ("optimizer", 41, 45, 4),
        )
        step = StepLog(
            begin_s=100.0,
            wall_s=(47 + 1.5 * more) * MS,
            delay_fraction=0.0,
            actions=tuple((n, a * MS, b * MS, c * MS) for n, a, b, c in actions),
        )
        each = {"F": (2, 2, 2, 2), "B": (5, 5, 5, 4.5 + more / 2)}
        blocks = tuple(
            (0, b, k, c * MS, c * MS) for k, row in each.items() for b, c in enumerate(row)
        )
        logs.append(RankLog(steps=(step,), blocks=blocks, stamping=((0, 0, MS),), warm_up=0))
    found = step_overhead(plan, logs)
    assert found.forward_s == pytest.approx(1 * MS + 1 * MS)
    assert found.backward_s == pytest.approx(0.5 * MS + 1 * MS)
    assert found.step_s == pytest.approx((2 + 1 + (2 + 5) / 2) * MS)
    # The slower takes 11 + 24 ms, 34 without the stamps, of 29 and 30 ms of CPU; both 33.
    assert found.slowest == pytest.approx(34 / 29.5)
    assert found.outside == pytest.approx(33 / 29.5 - 1)
    assert found.work_s == pytest.approx(29.5 * MS)
    # Of 50 ms 35 are the slower's passes, 4 the optimizer's, 1 the exchange of the one that comes
    # last, and 7 or 10 lie between.
    assert found.meeting_s == pytest.approx((50 - 35 - 4 - 1 - 8.5) * MS)
