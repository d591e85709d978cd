"""Parts of plans, predictions and runs of two pipeline ranks with a stage each."""

from __future__ import annotations

from profiles.sourced import Sourced
from simulator.values.degrees import Degrees
from simulator.values.measurement import GradientCheck, RankSample, StageSample
from simulator.values.plan import Plan, Recompute, Stage
from simulator.values.prediction import Interval, StagePrediction
from simulator.values.workload import Workload

PRICE = Sourced(
    value=2.88,
    source="median of 3 providers (a, b, c), on-demand, 2026-09-20 to 2026-10-08; $2.00 (a) to "
    "$4.00 (c)",
    date="2026-10-08",
    method="derived",
)


def within(value: float) -> Interval:
    """The value, a tenth of it to either side."""
    return Interval(value=value, low=0.9 * value, high=1.1 * value)


def four_blocks(
    names: tuple[str, str, str, str], second: tuple[Recompute, Recompute], *, seed: int = 0
) -> Plan:
    """1F1B of four micro-batches; names are of the model and the cluster, each with its hash."""
    model, model_hash, cluster, cluster_hash = names
    return Plan(
        model=model,
        model_hash=model_hash,
        block_entries=("", "a", "b", "c"),
        cluster=cluster,
        cluster_hash=cluster_hash,
        workload=Workload(global_batch=8, sequence_length=16, precision="fp32"),
        degrees=Degrees(pp=2),
        micro_batch=2,
        schedule="1f1b",
        stages=(
            Stage(first_block=0, last_block=2, recompute=(Recompute.NONE,) * 2),
            Stage(first_block=2, last_block=4, recompute=second),
        ),
        seed=seed,
    )


def predicted_stages() -> tuple[StagePrediction, ...]:
    return tuple(
        StagePrediction(
            stage=s,
            rank=s,
            forward_s=0.1,
            backward_s=0.2,
            optimizer_s=0.1,
            data_parallel_s=0.0,
        )
        for s in (0, 1)
    )


def measured_stages(
    forward: tuple[float, float], backward: tuple[float, float]
) -> tuple[StageSample, ...]:
    """Wall and CPU seconds of each."""
    return tuple(
        StageSample(
            stage=s,
            rank=s,
            forward_wall_s=forward[0],
            forward_cpu_s=forward[1],
            backward_wall_s=backward[0],
            backward_cpu_s=backward[1],
            count=8,
        )
        for s in (0, 1)
    )


def measured_ranks(
    peaks_bytes: tuple[float, float], communication_s: float
) -> tuple[RankSample, ...]:
    return tuple(
        RankSample(
            rank=rank,
            peak_memory_bytes=peak,
            peak_memory_kind="allocated",
            optimizer_s=0.08,
            data_parallel_s=0.0,
            communication_s=communication_s,
        )
        for rank, peak in enumerate(peaks_bytes)
    )


def passed_check() -> GradientCheck:
    return GradientCheck(
        passed=True,
        tolerance=1e-5,
        loss=1.0,
        reference_loss=1.0,
        worst_relative_error=1e-7,
        worst_parameter="a.weight",
        parameters_checked=4,
    )
