"""A plan file, a run of it and a roofline, with values fixed by hand: what golden files show.

Two ranks, 1F1B, four micro-batches; a forward takes 0.1 s, a backward 0.2 s, an optimizer step
0.1 s, sends nothing. So rank 0 ends its last action after (4 + 2 - 1) x 0.3 s = 1.5 s, of which it
works 1.2 s, and the step is 1.6 s. In the run forwards and backwards take a tenth longer, sends and
the host 0.05 s, the optimizer step 0.08 s: 1.65 + 0.05 + 0.08 = 1.78 s.
"""

from __future__ import annotations

from dataclasses import replace

from profiles.document import content_hash
from profiles.sourced import Sourced
from shardwright.reports.roofline import Roofline, RooflinePoint
from simulator.values.measurement import Measurement, StepSample
from simulator.values.plan import Plan, Recompute
from simulator.values.plan_file import Alternative, PlanFile
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

MIB = 2.0**20
# (action, start, end) in tenths of a second.
ORDER = {
    0: (
        ("0F0", 0, 1),
        ("0F1", 1, 2),
        ("0B0", 4, 6),
        ("0F2", 6, 7),
        ("0B1", 7, 9),
        ("0F3", 9, 10),
        ("0B2", 10, 12),
        ("0B3", 13, 15),
    ),
    1: (
        ("1F0", 1, 2),
        ("1B0", 2, 4),
        ("1F1", 4, 5),
        ("1B1", 5, 7),
        ("1F2", 7, 8),
        ("1B2", 8, 10),
        ("1F3", 10, 11),
        ("1B3", 11, 13),
    ),
}


def plan() -> Plan:
    names = ("fixed", "0123456789abcdef", "2xfixed", "fedcba9876543210")
    return four_blocks(names, (Recompute.NONE, Recompute.FULL), seed=3)


def events(scale_s: float, optimizer_s: float) -> tuple[Event, ...]:
    """Every action and the optimizer steps after them; scale_s is a tenth of a second's length."""
    found = []
    for rank, row in ORDER.items():
        for name, start, end in row:
            found.append(
                Event(
                    rank=rank,
                    stream="compute",
                    name=name,
                    start_s=start * scale_s,
                    end_s=end * scale_s,
                )
            )
        last = found[-1].end_s
        found.append(
            Event(
                rank=rank,
                stream="compute",
                name="optimizer",
                start_s=last,
                end_s=last + optimizer_s,
            )
        )
    return tuple(found)


def rank_memory(rank: int, capacity_bytes: float) -> RankMemory:
    parts = {"parameters": 100, "gradients": 100, "optimizer": 200, "activations": 50}
    parts |= {"transient": 40, "communication": 10}
    samples = ((0.0, 400.0), (0.1, 450.0), (0.4, 500.0), (1.5, 400.0))
    return RankMemory(
        rank=rank,
        **{f"{name}_bytes": value * MIB for name, value in parts.items()},
        capacity_bytes=capacity_bytes,
        peak_time_s=0.4,
        timeline=tuple(MemorySample(time_s=t, memory_bytes=b * MIB) for t, b in samples),
    )


def prediction(*, capacity_bytes: float = 1000 * MIB) -> Prediction:
    return Prediction(
        step_time_s=within(1.6),
        components=(
            Component(name=Part.COMPUTE, time_s=1.1),
            Component(name=Part.RECOMPUTE, time_s=0.1),
            Component(name=Part.CUT, time_s=0.0),
            Component(name=Part.BUBBLE, time_s=0.3),
            Component(name=Part.OPTIMIZER, time_s=0.1),
        ),
        mfu=within(0.4),
        tokens_per_s=within(80.0),
        peak_memory_bytes=within(500 * MIB),
        usd_per_million_tokens=within(1.25),
        price_usd_per_hour=PRICE,
        kwh_per_million_tokens=within(3.0),
        bubble_fraction=0.1875,
        stages=predicted_stages(),
        ranks=tuple(rank_memory(r, capacity_bytes) for r in (0, 1)),
        events=events(0.1, 0.1),
        sources=(
            SourceTag(name="block A", method="measured", source="10 samples", share=0.75),
            SourceTag(name="optimizer", method="assumed", source="by hand", share=0.25),
        ),
        limit="compute of pipeline rank 0 (69% of the step); memory of rank 0 is 50% full",
        fits=True,
    )


def answer(*, capacity_bytes: float = 1000 * MIB) -> PlanFile:
    return PlanFile(
        status="optimal",
        bound=1.6,
        gap=0.0,
        step_time_s=1.6,
        step_time_low_s=1.44,
        step_time_high_s=1.76,
        mfu=0.4,
        peak_memory_bytes=500 * MIB,
        usd_per_million_tokens=1.25,
        search_time_s=0.5,
        cells_considered=10,
        cells_pruned=8,
        cells_refined=2,
        solver="dp",
        plan=plan(),
        prediction=prediction(capacity_bytes=capacity_bytes),
        alternatives=(
            Alternative(
                plan=replace(plan(), micro_batch=1),
                step_time_s=2.0,
                step_time_low_s=1.8,
                step_time_high_s=2.2,
                mfu=0.3,
                peak_memory_bytes=450 * MIB,
                usd_per_million_tokens=1.5,
                why_not_first="25 % slower: smaller kernels",
            ),
        ),
        assumptions=("all 2 devices are used (--on)",),
    )


def run() -> Measurement:
    return Measurement(
        plan_hash=content_hash(plan()),
        backend="gloo",
        world_size=2,
        step_wall_s=1.78,
        step_cpu_s=1.5,
        steps=tuple(
            StepSample(wall_s=1.78, cpu_s=1.5, delay_fraction=d, disturbed=d > 0.05)
            for d in (0.0, 0.01, 0.2)
        ),
        stages=measured_stages((0.11, 0.1), (0.22, 0.21)),
        ranks=measured_ranks((480 * MIB, 500 * MIB), 0.38),
        events=events(0.11, 0.08),
        delay_limit=0.05,
        gradient_check=passed_check(),
        versions={"torch": "2.13.0", "python": "3.11.7"},
        machine="fixed cpu",
        date="2026-11-21",
    )


def point(level: str, method: str, *, name: str = "mm", flop: float = 1e9) -> RooflinePoint:
    """Ten flop per byte, a hundredth of a second."""
    return RooflinePoint(
        level=level,
        name=name,
        phase="forward",
        flop=flop,
        moved_bytes=flop / 10,
        time_s=0.01,
        count=4,
        method=method,
        source="by hand",
    )


def fixed_roofline() -> Roofline:
    def said(value: float) -> Sourced:
        return Sourced(value=value, source="by hand", date="2026-11-21", method="measured")

    return Roofline(
        device="fixed-device",
        rank=0,
        peaks=(("float32", said(200e9)),),
        bandwidth_bytes_per_s=said(50e9),
        points=(
            point("op", "interpolated"),
            point("op", "assumed", name="attention", flop=5e8),
            point("block", "measured", name="Layer"),
            point("stage", "measured", name="stage 0 on rank 0", flop=2e9),
        ),
        outside_share=0.1,
    )
