"""A plan file and a run of it with round numbers."""

from __future__ import annotations

from dataclasses import replace

from profiles.document import content_hash
from simulator.values.measurement import Measurement, StepSample
from simulator.values.plan import Plan, Recompute
from simulator.values.plan_file import PlanFile
from simulator.values.prediction import (
    Component,
    Event,
    MemorySample,
    Part,
    Prediction,
    RankMemory,
    SourceTag,
)
from tests.shardwright.two_ranks import (
    PRICE,
    four_blocks,
    measured_ranks,
    measured_stages,
    passed_check,
    predicted_stages,
    within,
)


def plan(model: str = "toy") -> Plan:
    return four_blocks((model, "m", "2xtoy", "c"), (Recompute.FULL,) * 2)


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
        step_time_s=within(2.0),
        components=(
            Component(name=Part.COMPUTE, time_s=1.5),
            Component(name=Part.BUBBLE, time_s=0.4),
            Component(name=Part.OPTIMIZER, time_s=0.1),
        ),
        mfu=within(0.4),
        tokens_per_s=within(64.0),
        peak_memory_bytes=within(500.0),
        usd_per_million_tokens=within(1.25),
        price_usd_per_hour=PRICE,
        kwh_per_million_tokens=within(3.0),
        bubble_fraction=0.2,
        stages=predicted_stages(),
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
        solver="dp",
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
        stages=measured_stages((0.125, 0.1), (0.2, 0.2)),
        ranks=measured_ranks((400.0, 400.0), 0.3),
        events=(Event(rank=0, stream="compute", name="0F0", start_s=0.0, end_s=0.125),),
        delay_limit=0.05,
        gradient_check=passed_check(),
        versions={"torch": "2.13"},
        machine="toy cpu",
        date="2026-11-21",
    )


def slower(found: PlanFile) -> PlanFile:
    assert found.plan is not None
    other = replace(found.plan, micro_batch=1)
    return replace(found, plan=other)
