"""`run_prediction`: the prediction of a described run, stage by stage, for the plan that runs it.

The step time, its parts and the memory are those of the described run (step_time.py, footprint.py).
The timeline draws them: passes in the proportions of the kernels' surfaces, stretched so that the
pipeline ends where the step's parts say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from profiles.sourced import Sourced
from simulator.memory.footprint import footprint
from simulator.schedules.schedule import ActionKind, build_schedule
from simulator.schedules.timeline import Durations, Timeline, simulate
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import assign, shipped_coefficients
from simulator.training_run.step.features import Features, features
from simulator.training_run.step.step_time import step_parts
from simulator.values.plan import Plan
from simulator.values.prediction import (
    Component,
    Interval,
    MemorySample,
    Prediction,
    RankMemory,
    SourceTag,
    StagePrediction,
)
from simulator.values.timeline_events import timeline_events

# The parts of a described step as the components of a plan's prediction.
_COMPONENT_OF = {
    "compute_s": "compute",
    "host_s": "runtime",
    "overhead_s": "runtime",
    "tensor_s": "tensor_parallel_communication",
    "expert_s": "expert_parallel_communication",
    "context_s": "context_parallel_communication",
    "cut_s": "pipeline_communication",
    "stall_s": "pipeline_communication",
    "gather_s": "data_parallel_communication",
    "reduce_s": "data_parallel_communication",
    "bubble_s": "bubble",
    "optimizer_s": "optimizer",
}
_FITTED = "profiles/data/calibration/runs.toml, fitted on published runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The totals of a prediction that its layout already has, with their intervals."""

    step_time_s: Interval
    mfu: Interval
    tokens_per_s: Interval
    peak_memory_bytes: Interval
    price_usd_per_hour: Sourced | None
    usd_per_million_tokens: Interval | None
    kwh_per_million_tokens: Interval


def run_prediction(run: TrainingRun, plan: Plan, totals: Figures) -> Prediction:
    """What a plan would do whose layout is that of a described run.

    run     its layout;  plan  the same as stages of the model's own blocks
    totals  the layout's own figures
    """
    degrees = plan.degrees
    known = features([run])
    assigned = assign([run])
    parts = step_parts(known, assigned.of(assigned.from_file(shipped_coefficients())))
    seconds = {name: _one(getattr(parts, name)) for name in _COMPONENT_OF}
    scale = totals.step_time_s.value / sum(seconds.values())
    seconds = {name: time_s * scale for name, time_s in seconds.items()}
    stages = _stage_seconds(run, plan, known, seconds)
    timeline = _timeline(plan, stages)
    reduce_s = seconds["reduce_s"]
    tail_s = reduce_s + seconds["optimizer_s"]
    end_s = max(timeline.rank_end_s(rank) for rank in range(degrees.pp))
    stretch = (totals.step_time_s.value - tail_s) / end_s
    timeline = timeline.stretched(stretch)
    ranks = tuple(
        _with_course(rank, degrees.rank(pp=rank.rank), timeline) for rank in footprint(run).ranks
    )
    components = _components(known, seconds)
    tight = max(ranks, key=lambda rank: rank.use)
    largest = max(components, key=lambda part: part.time_s)
    return Prediction(
        step_time_s=replace(totals.step_time_s, value=sum(part.time_s for part in components)),
        components=components,
        mfu=totals.mfu,
        tokens_per_s=totals.tokens_per_s,
        peak_memory_bytes=totals.peak_memory_bytes,
        price_usd_per_hour=totals.price_usd_per_hour,
        usd_per_million_tokens=totals.usd_per_million_tokens,
        kwh_per_million_tokens=totals.kwh_per_million_tokens,
        bubble_fraction=seconds["bubble_s"] / totals.step_time_s.value,
        stages=tuple(
            StagePrediction(
                stage=number,
                rank=degrees.rank(pp=plan.pp_rank_of(number)),
                forward_s=stage.forward_s * stretch,
                backward_s=stage.backward_s * stretch,
                optimizer_s=seconds["optimizer_s"],
                data_parallel_s=reduce_s,
            )
            for number, stage in enumerate(stages)
        ),
        ranks=ranks,
        events=timeline_events(
            plan,
            timeline,
            send_s=[stage.send_s * stretch for stage in stages],
            exchange_s=[reduce_s] * degrees.pp,
            optimizer_s=[seconds["optimizer_s"]] * degrees.pp,
        ),
        sources=_sources(run, seconds),
        limit=f"{largest.name.replace('_', ' ')} "
        f"({largest.time_s / totals.step_time_s.value:.0%} of the step); memory of rank "
        f"{tight.rank} is {tight.use:.0%} full",
        fits=all(rank.fits for rank in ranks),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """Seconds of a virtual stage per micro-batch, and of one send beside it."""

    forward_s: float
    backward_s: float
    weight_share: float
    send_s: float


def _one(values: object) -> float:
    return float(values[0])  # type: ignore[index] # arrays of one run


def _stage_seconds(
    run: TrainingRun, plan: Plan, x: Features, seconds: dict[str, float]
) -> tuple[_Stage, ...]:
    """The busiest stage's seconds per micro-batch shared out by layers, with the head's own."""
    degrees = run.degrees
    busy = sum(
        seconds[name]
        for name in ("compute_s", "tensor_s", "expert_s", "context_s", "gather_s", "host_s")
    )
    each = busy / run.num_microbatches
    forward = _one(x.matmul_forward + x.grouped_forward + x.attention_forward + x.pass_forward)
    forward += _one(x.score_forward + x.state_forward)
    again = _again(x)
    backward = _one(x.matmul_backward + x.grouped_backward + x.attention_backward)
    backward += _one(x.pass_backward + 1.5 * x.score_forward + x.state_backward) + again
    head = _one(x.head_matmul + x.head_pass) / (forward + backward)
    layers, last = _one(x.layers), _one(x.last_layers)
    layer_s = each / max(layers + (head if degrees.pp == 1 else 0.0), last + head)
    ahead = forward / (forward + backward)
    weight = 0.5 * _one(x.matmul_backward) / backward if backward else 0.0
    send = seconds["cut_s"] / max(1, 2 * run.num_microbatches * degrees.vpp + 2 * (degrees.pp - 1))
    outer = {0, len(plan.stages) - 1}
    own = len(plan.block_entries) - run.model.num_layers
    found = []
    for number, stage in enumerate(plan.stages):
        count = float(stage.num_blocks)
        if number in outer:
            # The blocks around the layers are the embedding and the head.
            count -= own if len(outer) == 1 else own / 2
        is_last = number == len(plan.stages) - 1
        total = layer_s * count
        extra = layer_s * head if is_last else 0.0
        found.append(
            _Stage(
                forward_s=total * ahead + extra / 3,
                backward_s=total * (1 - ahead) + 2 * extra / 3,
                weight_share=weight,
                send_s=send if number and not _same_rank(plan, number) else 0.0,
            )
        )
    return tuple(found)


def _same_rank(plan: Plan, stage: int) -> bool:
    return plan.pp_rank_of(stage) == plan.pp_rank_of(stage - 1)


def _again(x: Features) -> float:
    """Seconds of a layer's forward that its backward does again, at the surfaces' speed."""
    matmuls = _one(x.recomputed_matmul * (x.matmul_forward + x.grouped_forward))
    attention = _one(x.recomputed_attention * (x.attention_forward + x.score_forward))
    return matmuls + attention + _one(x.recomputed_pass * x.pass_forward)


def _timeline(plan: Plan, stages: tuple[_Stage, ...]) -> Timeline:
    durations = Durations(
        forward_s=tuple(stage.forward_s for stage in stages),
        backward_s=tuple(stage.backward_s for stage in stages),
        backward_input_s=tuple(s.backward_s * (1 - s.weight_share) for s in stages),
        backward_weight_s=tuple(s.backward_s * s.weight_share for s in stages),
        send_forward_s=tuple(stage.send_s for stage in stages),
        send_backward_s=tuple(stage.send_s for stage in stages),
    )
    schedule = build_schedule(
        plan.schedule,
        num_ranks=plan.degrees.pp,
        num_microbatches=plan.num_microbatches,
        stages_per_rank=plan.degrees.vpp,
    )
    return simulate(schedule, durations)


def _components(x: Features, seconds: dict[str, float]) -> tuple[Component, ...]:
    """The parts by name; of the computing, what recomputation does again stands apart."""
    sums: dict[str, float] = {}
    for part, name in _COMPONENT_OF.items():
        sums[name] = sums.get(name, 0.0) + seconds[part]
    again = _again(x)
    layer = _one(x.matmul_forward + x.grouped_forward + x.attention_forward + x.pass_forward)
    layer += _one(x.matmul_backward + x.grouped_backward + x.attention_backward + x.pass_backward)
    sums["recompute"] = sums["compute"] * again / (again + layer)
    sums["compute"] -= sums["recompute"]
    return tuple(Component(name=name, time_s=time_s) for name, time_s in sums.items() if time_s > 0)


def _held(timeline: Timeline, pp_rank: int) -> tuple[tuple[float, float], ...]:
    """(time, share of the most) of the activations that a rank keeps: a forward adds its chunk's
    when it starts, the backward, of a split one W, gives it back when it ends."""
    held, course = 0, [(0.0, 0.0)]
    for index, action in enumerate(timeline.actions):
        if timeline.ranks[index] != pp_rank or action.kind is ActionKind.BACKWARD_INPUT:
            continue
        starts = action.kind is ActionKind.FORWARD
        held += 1 if starts else -1
        when = (timeline.start_s if starts else timeline.end_s)[index]
        course.append((when, float(held)))
    most = max(level for _, level in course) or 1.0
    return tuple((time_s, level / most) for time_s, level in course)


def _with_course(rank: RankMemory, device: int, timeline: Timeline) -> RankMemory:
    """A pipeline rank's memory over the step, named by the device's number."""
    base = rank.static_bytes + rank.communication_bytes
    samples = tuple(
        MemorySample(time_s=time_s, memory_bytes=base + rank.activations_bytes * share)
        for time_s, share in _held(timeline, rank.rank)
    )
    peak = max(samples, key=lambda sample: sample.memory_bytes)
    return replace(rank, rank=device, peak_time_s=peak.time_s, timeline=samples)


def _sources(run: TrainingRun, seconds: dict[str, float]) -> tuple[SourceTag, ...]:
    """What the step rests on: kernels' surfaces and link rates, each with fitted coefficients."""
    total = sum(seconds.values())
    groups = {
        "kernels": ("compute_s", "bubble_s"),
        "messages": (
            "tensor_s",
            "expert_s",
            "context_s",
            "gather_s",
            "cut_s",
            "stall_s",
            "reduce_s",
        ),
        "optimizer and host": ("optimizer_s", "host_s", "overhead_s"),
    }
    surfaces = f"measured kernels of {run.device} or its nearest relative; {_FITTED}"
    rates = f"measured collectives and link rates; {_FITTED}"
    words = {"kernels": surfaces, "messages": rates, "optimizer and host": _FITTED}
    found = [
        SourceTag(
            name=name,
            method="interpolated",
            source=words[name],
            share=sum(seconds[part] for part in parts) / total,
        )
        for name, parts in groups.items()
    ]
    return tuple(sorted((tag for tag in found if tag.share > 0), key=lambda tag: -tag.share))
