"""A plan file and a run of it with round numbers."""

from __future__ import annotations

from dataclasses import replace

from profiles.document import content_hash
from simulator.measurement import GradientCheck, Measurement, RankSample, StageSample, StepSample
from simulator.plan import Plan, Recompute, Stage
from simulator.plan_file import PlanFile
from simulator.prediction import (
    Component,
    Event,
    Interval,
    MemorySample,
    Prediction,
    RankMemory,
    SourceTag,
    StagePrediction,
)
from simulator.workload import Workload


def exact(value: float) -> Interval:
    return Interval(value=value, low=0.9 * value, high=1.1 * value)


def plan(model: str = "toy") -> Plan:
    return Plan(
        model=model,
        model_hash="m",
        block_entries=("", "a", "b", "c"),
        cluster="2xtoy",
        cluster_hash="c",
        workload=Workload(global_batch=8, sequence_length=16, precision="fp32"),
        pp=2,
        dp=1,
        tp=1,
        micro_batch=2,
        schedule="1f1b",
        stages=(
            Stage(first_block=0, last_block=2, recompute=(Recompute.NONE,) * 2),
            Stage(first_block=2, last_block=4, recompute=(Recompute.FULL,) * 2),
        ),
    )


def prediction() -> Prediction:
    ranks = tuple(
        RankMemory(
            rank=r,
            parameters_bytes=100.0,
            gradients_bytes=100.0,
            optimizer_bytes=200.0,
            activations_bytes=50.0,
            transient_bytes=40.0,
            communication_bytes=10.0,
            capacity_bytes=1000.0,
            peak_time_s=0.5,
            timeline=(MemorySample(time_s=0.0, memory_bytes=400.0),),
        )
        for r in (0, 1)
    )
    return Prediction(
        step_time_s=exact(2.0),
        components=(
            Component(name="compute", time_s=1.5),
            Component(name="bubble", time_s=0.4),
            Component(name="optimizer", time_s=0.1),
        ),
        mfu=exact(0.4),
        tokens_per_s=exact(64.0),
        peak_memory_bytes=exact(500.0),
        usd_per_million_tokens=exact(1.25),
        kwh_per_million_tokens=exact(3.0),
        bubble_fraction=0.2,
        stages=tuple(
            StagePrediction(
                stage=s,
                rank=s,
                forward_s=0.1,
                backward_s=0.2,
                optimizer_s=0.1,
                data_parallel_s=0.0,
            )
            for s in (0, 1)
        ),
        ranks=ranks,
        events=(
            Event(rank=0, stream="compute", name="0F0", start_s=0.0, end_s=0.1),
            Event(rank=1, stream="compute", name="1F0", start_s=0.1, end_s=0.2),
        ),
        sources=(SourceTag(name="block A", method="measured", source="here", share=1.0),),
        limit="compute of pipeline rank 0",
        fits=True,
    )


def answer(model: str = "toy") -> PlanFile:
    return PlanFile(
        status="optimal",
        bound=2.0,
        gap=0.0,
        step_time_s=2.0,
        step_time_low_s=1.8,
        step_time_high_s=2.2,
        mfu=0.4,
        peak_memory_bytes=500.0,
        usd_per_million_tokens=1.25,
        search_time_s=0.5,
        cells_considered=10,
        cells_pruned=8,
        cells_refined=2,
        solver="dp+ilp",
        plan=plan(model),
        prediction=prediction(),
        assumptions=("bf16 (--precision)",),
    )


def run_of(found: PlanFile) -> Measurement:
    assert found.plan is not None
    return Measurement(
        plan_hash=content_hash(found.plan),
        backend="gloo",
        world_size=2,
        step_wall_s=2.5,
        step_cpu_s=2.0,
        steps=tuple(
            StepSample(wall_s=2.5, cpu_s=2.0, delay_fraction=d, disturbed=d > 0.05)
            for d in (0.0, 0.2)
        ),
        stages=tuple(
            StageSample(
                stage=s,
                rank=s,
                forward_wall_s=0.125,
                forward_cpu_s=0.1,
                backward_wall_s=0.2,
                backward_cpu_s=0.2,
                count=8,
            )
            for s in (0, 1)
        ),
        ranks=tuple(
            RankSample(
                rank=r,
                peak_memory_bytes=400.0,
                peak_memory_kind="allocated",
                optimizer_s=0.08,
                data_parallel_s=0.0,
                communication_s=0.3,
            )
            for r in (0, 1)
        ),
        events=(Event(rank=0, stream="compute", name="0F0", start_s=0.0, end_s=0.125),),
        delay_limit=0.05,
        gradient_check=GradientCheck(
            passed=True,
            tolerance=1e-5,
            loss=1.0,
            reference_loss=1.0,
            worst_relative_error=1e-7,
            worst_parameter="a.weight",
            parameters_checked=4,
        ),
        versions={"torch": "2.13"},
        machine="toy cpu",
        date="2026-11-21",
    )


def slower(found: PlanFile) -> PlanFile:
    assert found.plan is not None
    other = replace(found.plan, micro_batch=1)
    return replace(found, plan=other)
