"""Timeline of a layout's step: every pass on every pipeline rank, and the memory over time."""

from __future__ import annotations

from dataclasses import replace

from planner.layout.layout_answer import LayoutChoice
from profiles.errors import InputError
from simulator.memory.footprint import footprint
from simulator.training_run.explain.run_prediction import with_timeline
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.stage_share import stage_split
from simulator.values.degrees import Degrees
from simulator.values.plan import Plan, Recompute, Stage
from simulator.values.prediction import Prediction
from simulator.values.workload import Workload

MOST_PASSES = 60_000
"""Largest number of forward and backward passes of all stages; more take seconds to draw and cannot
be distinguished."""


def layout_timeline(choice: LayoutChoice) -> Prediction:
    """The layout's prediction with a timeline of one replica and the memory of its ranks.

    Raises InputError for a stage without layers, and above MOST_PASSES.
    """
    run = choice.run
    if run.degrees.pp == 1:
        run = replace(run, degrees=replace(run.degrees, vpp=1))
    passes = 2 * run.num_microbatches * run.degrees.num_stages
    if passes > MOST_PASSES:
        raise InputError(f"the timeline is not drawn: its {passes:,} passes exceed {MOST_PASSES:,}")
    step = with_timeline(choice.prediction, run, _stages(run))
    # The first rank of a stage, also for axis orders with dp outermost.
    wide, pitch = run.degrees.stage_ranks, run.degrees.stride("pp")
    return replace(
        step, events=tuple(replace(one, rank=one.rank // wide * pitch) for one in step.events)
    )


def _stages(run: TrainingRun) -> Plan:
    """The layout as a plan with one block per layer, and one each for embedding and head.

    Context-parallel ranks count as tensor-parallel ones, as both are innermost in a stage."""
    degrees = run.degrees
    shares = stage_split(run)
    counts = [share.num_layers - share.predicting_layers for share in shares]
    if min(counts) < 1 or len(counts) != degrees.num_stages:
        raise InputError(
            "the timeline is not drawn: a stage has no layers, or ranks hold two model copies"
        )
    ends = [1 + sum(counts[: number + 1]) for number in range(len(counts))]
    ends[-1] += 1
    begins = [0, *ends[:-1]]
    return Plan(
        model=run.id,
        model_hash="",
        block_entries=("", *(f"layers.{number}" for number in range(ends[-1] - 2)), "head"),
        cluster=run.device,
        cluster_hash="",
        workload=Workload(global_batch=run.global_batch, sequence_length=run.seq_len),
        degrees=Degrees(pp=degrees.pp, dp=degrees.dp, tp=degrees.tp * degrees.cp, vpp=degrees.vpp),
        zero_stage=run.zero_stage,
        micro_batch=run.micro_batch,
        schedule=run.schedule if degrees.pp > 1 else "none",
        stages=tuple(
            Stage(first_block=i, last_block=j, recompute=(Recompute.NONE,) * (j - i))
            for i, j in zip(begins, ends, strict=True)
        ),
    )


def layout_memory(choice: LayoutChoice) -> list[tuple[str, float]]:
    """Bytes by part; they add up to `required_memory_bytes`."""
    memory = footprint(choice.run)
    full = memory.fullest
    parts = [
        ("weights", full.parameters_bytes),
        ("gradients", full.gradients_bytes),
        ("optimizer states", full.optimizer_bytes),
        ("activations", full.activations_bytes),
        ("buffers", full.communication_bytes),
        (f"at the peak ({memory.fullest_details.moment})", full.transient_bytes),
    ]
    required = choice.required_memory_bytes
    rest = required - sum(size for _, size in parts)
    if abs(rest) > 1e-3 * required:
        parts.append(("room of the allocator" if rest > 0 else "freed before the peak", rest))
    return [(name, size) for name, size in parts if size]
