"""`run_prediction`: the prediction of a run; `with_timeline` adds the timeline of its step.

The duration of a pass in the timeline is the sum of its terms of the step (step_terms.py). Under
1F1B with the head in the slowest stage, the timeline ends exactly at the step time. For other
schedules it is an estimate ("idle stages" in step_terms.py) with the error
`Prediction.timeline_gap`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from profiles.hardware.catalogue.catalog import get_device
from simulator.memory.footprint import Footprint
from simulator.mfu import mfu, model_flop_per_token
from simulator.schedules.schedule import ActionKind
from simulator.schedules.timeline import Durations, Timeline, simulate
from simulator.step_prediction import StepFacts, limit_words, source_tags, step_prediction
from simulator.training_run.fit.memory_interval import memory_interval
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.features import Features
from simulator.training_run.step.step_term import (
    CHUNK,
    LOGITS,
    WIDE_LAYER,
    Array,
    Earlier,
    Term,
    passes,
)
from simulator.training_run.step.step_time import price_runs, step_seconds, unit_seconds
from simulator.training_run.work.stage_share import StageShare, stage_split
from simulator.values.plan import Plan
from simulator.values.prediction import (
    Component,
    Interval,
    MemorySample,
    Part,
    Prediction,
    RankMemory,
    SourceTag,
    StagePrediction,
)
from simulator.values.timeline_events import timeline_events

_FITTED = "profiles/data/calibration/runs.toml, fitted on published runs"
# Parts after a rank's last pass and its gradient exchange.
_LAST = (Part.OPTIMIZER, Part.HOST, Part.OVERHEAD)


def run_prediction(
    run: TrainingRun, step: Interval, parts: tuple[Component, ...], memory: Footprint | None
) -> Prediction:
    """A run's prediction, without dollars, energy and timeline.

    parts  of the step;  memory  its footprint, None if no file describes it
    """
    ranks = memory.ranks if memory else ()
    return step_prediction(
        StepFacts(
            step=step,
            parts=parts,
            model_flop=_model_flop(run),
            peak_flop_per_s=_peak_flop_per_s(run),
            counted=run.global_batch * run.seq_len,
            ranks=tuple(replace(rank, rank=run.degrees.rank(pp=rank.rank)) for rank in ranks),
            peak=memory_interval(run, memory.allocated_bytes) if memory else None,
            fits=memory.fits if memory else None,
        )
    )


def mfu_of_run(run: TrainingRun, step: Interval) -> Interval:
    """MFU of a run's step."""
    return mfu(_model_flop(run), step, _peak_flop_per_s(run))


def _model_flop(run: TrainingRun) -> float:
    each = model_flop_per_token(run.model, run.attended_length, adapters=run.lora)
    return run.global_batch * run.seq_len * each


def _peak_flop_per_s(run: TrainingRun) -> float:
    return run.degrees.num_devices * get_device(run.device).peak(run.precision).value


def with_timeline(made: Prediction, run: TrainingRun, plan: Plan) -> Prediction:
    """A run's prediction with stages, events, and the memory of its ranks over time.

    plan  the run as stages of the model's blocks
    """
    seconds = made.seconds
    degrees = plan.degrees
    step = _drawn_step(run, plan, seconds)
    timeline = simulate(plan.actions, step.durations)
    exchange_s = seconds.get(Part.REDUCE, 0.0)
    stage_ranks = [plan.pp_rank_of(stage) for stage in range(len(plan.stages))]
    ranks = tuple(_with_course(rank, number, timeline) for number, rank in enumerate(made.ranks))
    return replace(
        made,
        stages=tuple(
            StagePrediction(
                stage=number,
                rank=degrees.rank(pp=stage_ranks[number]),
                forward_s=forward_s,
                backward_s=backward_s,
                optimizer_s=seconds.get(Part.OPTIMIZER, 0.0),
                data_parallel_s=exchange_s,
            )
            for number, (forward_s, backward_s) in enumerate(
                zip(step.durations.forward_s, step.durations.backward_s, strict=True)
            )
        ),
        ranks=ranks,
        events=timeline_events(
            plan,
            timeline,
            send_s=[
                step.send_s if sends else 0.0
                for sends in (False, *(a != b for a, b in itertools.pairwise(stage_ranks)))
            ],
            exchange_s=[exchange_s] * degrees.pp,
            optimizer_s=[step.last_s] * degrees.pp,
        ),
        sources=_sources(run, seconds),
        limit=limit_words(made),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _DrawnStep:
    """Seconds of the passes, of one send, and of the work after the gradient exchange."""

    durations: Durations
    send_s: float
    last_s: float


def _drawn_step(run: TrainingRun, plan: Plan, seconds: Mapping[Part, float]) -> _DrawnStep:
    """Durations per virtual stage and micro-batch, from the terms of a step.

    seconds  of the prediction, by part; the terms are scaled to these (calibration)
    """
    priced = price_runs([run])
    x, c = priced.x, priced.c
    terms = step_seconds(x, c, lambda term: (term.part, term.per is None))

    def calibrated(part: Part) -> float:
        usual = sum(_one(terms.get((part, once), np.zeros(1))) for once in (False, True))
        return seconds.get(part, 0.0) / usual if usual else 1.0

    shares = stage_split(run)[: len(plan.stages)]
    forward, backward, weight = ([0.0] * len(shares) for _ in range(3))
    for term, _, each in unit_seconds(x, c, Earlier(layer=np.zeros(1)), {}):
        unit_s = _one(c["level"] * each) * calibrated(term.part)
        ahead, later = _shares(term, _one(passes(x)))
        for number, share in enumerate(shares):
            stage_s = unit_s * _units(term, x, share, number, len(shares))
            forward[number] += stage_s * ahead
            backward[number] += stage_s * (1.0 - ahead)
            weight[number] += stage_s * later
    send_s = exposed_s = 0.0
    if run.degrees.pp > 1:
        # A share of every send is exposed, as in `_sends` of step_terms.py, and all sends during
        # fill and drain. Stalled messages are distributed over the passes.
        rounds, ramp = run.num_microbatches * run.degrees.vpp, run.degrees.pp - 1.0
        exposed = _one(c["cut_exposed"])
        send_s = seconds.get(Part.CUT, 0.0) / (2.0 * (rounds * exposed + ramp))
        exposed_s = send_s * exposed + seconds.get(Part.STALL, 0.0) / (2.0 * (rounds + ramp))
    none = (0.0,) * len(shares)
    later_s = tuple(b + exposed_s for b in backward)
    return _DrawnStep(
        durations=Durations(
            forward_s=tuple(f + exposed_s for f in forward),
            backward_s=later_s,
            backward_input_s=tuple(b - w for b, w in zip(later_s, weight, strict=True)),
            backward_weight_s=tuple(weight),
            send_forward_s=none,
            send_backward_s=none,
            ramp_send_s=max(0.0, send_s * (1.0 - _one(c["cut_exposed"]))),
        ),
        send_s=send_s,
        last_s=sum(_one(terms.get((part, True), np.zeros(1))) * calibrated(part) for part in _LAST),
    )


def _one(values: Array) -> float:
    return float(values[0])  # arrays of one run


def _shares(term: Term, passes: float) -> tuple[float, float]:
    """(share of a term in the forward, share in the W of a split backward). W has the matmuls of
    the weight gradients, about half of the backward's (idle_share.py)."""
    if term.per is LOGITS:
        return 1 / 3, 1 / 3
    ahead = {"forward": 1.0, "backward": 0.0}.get(term.way, 1.0 / passes)
    return ahead, 0.5 if term.name == "matmuls, backward" else 0.0


def _units(term: Term, x: Features, share: StageShare, number: int, stages: int) -> float:
    """Number of a term's units in a virtual stage."""
    if term.per is CHUNK:
        return 1.0
    if term.per is LOGITS:
        return float(share.has_head)
    if term.per is WIDE_LAYER:
        return _one(x.wide_first) if number == 0 else _one(x.wide_last) * (number == stages - 1)
    return float(share.num_layers)


def _held(timeline: Timeline, pp_rank: int) -> tuple[tuple[float, float], ...]:
    """(time in s, fraction of the maximum) of the activations kept by a rank. A forward adds
    those of its virtual stage at its start. The backward, or the W of a split one, frees them at
    its end."""
    held, course = 0, [(0.0, 0.0)]
    for index, action in enumerate(timeline.actions):
        if timeline.ranks[index] != pp_rank or action.kind is ActionKind.BACKWARD_INPUT:
            continue
        starts = action.kind is ActionKind.FORWARD
        held += 1 if starts else -1
        when = (timeline.start_s if starts else timeline.end_s)[index]
        course.append((when, float(held)))
    most = max(level for _, level in course)
    return tuple((time_s, level / most) for time_s, level in course)


def _with_course(rank: RankMemory, pp_rank: int, timeline: Timeline) -> RankMemory:
    """A pipeline rank's memory with its timeline over the step."""
    base = rank.static_bytes + rank.communication_bytes
    samples = tuple(
        MemorySample(time_s=time_s, memory_bytes=base + rank.activations_bytes * share)
        for time_s, share in _held(timeline, pp_rank)
    )
    peak = max(samples, key=lambda sample: sample.memory_bytes)
    return replace(rank, peak_time_s=peak.time_s, timeline=samples)


def _sources(run: TrainingRun, seconds: Mapping[Part, float]) -> tuple[SourceTag, ...]:
    """Sources of the step time: kernel surfaces and link rates, with fitted coefficients."""
    surfaces = f"measured kernels of {run.device} or its nearest relative; {_FITTED}"
    rates = f"measured collectives and link rates; {_FITTED}"
    words = {"kernels": surfaces, "messages": rates, "optimizer and host": _FITTED}
    found: dict[tuple[str, str, str], float] = {}
    for part, time_s in seconds.items():
        kernels = part in (Part.COMPUTE, Part.BUBBLE)
        name = "kernels" if kernels else "optimizer and host" if part in _LAST else "messages"
        key = (name, "interpolated", words[name])
        found[key] = found.get(key, 0.0) + time_s
    return tuple(tag for tag in source_tags(found) if tag.share > 0)
