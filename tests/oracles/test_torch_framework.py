"""The framework `torch` beside the block-by-block model of the same executor, whose memory is
counted from the trace and checked against measured runs."""

from __future__ import annotations

import pytest

from planner.axes import Axes
from planner.blocks.block_search import search
from planner.layout.layout_question import base_run
from shardwright import api
from shardwright.requests.named_model import described_of
from simulator.memory.footprint import footprint
from simulator.training_run.framework.framework import load_framework, load_stack
from simulator.values.plan import Recompute
from simulator.values.recompute_kind import RECOMPUTE_KINDS
from simulator.values.workload import Workload
from tests.simulator.described_runs import changed

MODEL, SEQ, BATCH = "llama-3.1-8b", 4096, 256


@pytest.mark.parametrize(
    ("tp", "pp", "zero", "schedule", "vpp", "recompute"),
    [
        (1, 1, 3, "none", 1, "none"),
        (1, 1, 3, "none", 1, "full"),
        (1, 1, 2, "none", 1, "attention"),
        (2, 1, 3, "none", 1, "none"),
        (1, 4, 1, "1f1b", 1, "attention"),
        (2, 4, 3, "1f1b", 1, "none"),
        (2, 2, 2, "zbv", 2, "full"),
    ],
)
def test_both_models_of_our_executor_count_the_same_memory(
    tp: int, pp: int, zero: int, schedule: str, vpp: int, recompute: str
) -> None:
    """Within 12 %: layers are cut otherwise, and a traced stage has two largest blocks gathered.

    With everything recomputed within 17 %: the layouts count the head's gathered weights (1 GiB of
    11) while the loss runs, where FSDP2 has freed them, so they are on the safe side.
    """
    cluster = api.cluster("4x8xh100-sxm")
    dp = 32 // (tp * pp)
    traced = search(
        api.trace(MODEL, sequence_length=SEQ, tp_degrees=(1, 2)),
        cluster,
        Workload(global_batch=BATCH, sequence_length=SEQ, precision="bf16"),
        space=Axes(
            tp=(tp,),
            pp=(pp,),
            vpp=(vpp,),
            zero=(zero,),
            micro_batch=(1,),
            schedule=(schedule,),
            recompute=(Recompute(recompute),),
        ),
        stack=load_stack(),
    ).prediction
    assert traced is not None
    base = base_run(
        MODEL,
        described_of(MODEL, None).figures,
        cluster,
        rules=load_framework("torch").rules,
        global_batch=BATCH,
        seq_len=SEQ,
        precision="bf16",
    )
    run = changed(
        base,
        tp=tp,
        pp=pp,
        dp=dp,
        vpp=vpp,
        zero_stage=zero,
        schedule=schedule,
        recompute=recompute,
    )
    peak = max(rank.peak_bytes for rank in traced.ranks)
    assert footprint(run).allocated_bytes == pytest.approx(
        peak, rel=0.17 if recompute == "full" else 0.12
    )


def test_blocks_and_layers_name_the_same_kinds_of_recomputation() -> None:
    assert {kind.value for kind in Recompute} == set(load_framework("torch").rules.recompute)
    assert set(load_framework("torch").rules.recompute) <= set(RECOMPUTE_KINDS)
