"""A plan of one block: what tests of comparisons and searches need of a plan."""

from __future__ import annotations

from simulator.values.degrees import Degrees
from simulator.values.plan import Plan, Recompute, Stage
from simulator.values.workload import Workload


def one_block_plan(*, global_batch=8, dp=1, tp=1, micro_batch=1):
    return Plan(
        model="m",
        model_hash="",
        block_entries=("",),
        cluster="c",
        cluster_hash="",
        workload=Workload(global_batch=global_batch, sequence_length=1),
        degrees=Degrees(tp=tp, dp=dp),
        micro_batch=micro_batch,
        schedule="1f1b",
        stages=(Stage(first_block=0, last_block=1, recompute=(Recompute.NONE,)),),
    )
