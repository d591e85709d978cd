"""Where a step goes, rank by rank, in parts that a run can measure too.

A run times the forwards and backwards of every stage, the gradient exchange and the optimizer; the
rest of the step is waiting. A prediction knows more parts (recomputation, launches, communication
inside blocks): they lie inside forwards and backwards here.
"""

from __future__ import annotations

from dataclasses import dataclass

from simulator.schedules.schedule import build_schedule
from simulator.schedules.timeline import Durations, simulate
from simulator.values.measurement import Measurement
from simulator.values.plan import Plan
from simulator.values.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParts:
    """Seconds of one step of a rank; the parts add up to the step.

    forward_s, backward_s  all micro-batches of all stages of the rank
    gradient_exchange_s    of a run: of the replica that takes least, as the others wait in it
    waiting_s              everything else: the pipeline's bubble, sends, slower ranks, the host
    """

    rank: int
    forward_s: float
    backward_s: float
    gradient_exchange_s: float
    optimizer_s: float
    waiting_s: float

    @property
    def busy_s(self) -> float:
        """Forwards and backwards."""
        return self.forward_s + self.backward_s

    @property
    def step_s(self) -> float:
        """The parts' sum."""
        return self.busy_s + self.gradient_exchange_s + self.optimizer_s + self.waiting_s


def predicted_parts(plan: Plan, prediction: Prediction) -> tuple[RankParts, ...]:
    """One entry per pipeline rank, by rank."""
    micro = plan.num_microbatches
    found = []
    for rank in sorted({stage.rank for stage in prediction.stages}):
        own = [stage for stage in prediction.stages if stage.rank == rank]
        found.append(
            _with_waiting(
                rank=rank,
                forward_s=micro * sum(stage.forward_s for stage in own),
                backward_s=micro * sum(stage.backward_s for stage in own),
                gradient_exchange_s=own[0].data_parallel_s,
                optimizer_s=own[0].optimizer_s,
                step_s=prediction.step_time_s.value,
            )
        )
    return tuple(found)


def measured_parts(plan: Plan, measured: Measurement) -> tuple[RankParts, ...]:
    """The same of a run, from medians over its undisturbed steps.

    The stages were timed on the first replica: its ranks are the entries.
    """
    micro = plan.num_microbatches
    samples = {sample.rank: sample for sample in measured.ranks}
    found = []
    for rank in sorted({stage.rank for stage in measured.stages}):
        own = [stage for stage in measured.stages if stage.rank == rank]
        if rank not in samples:
            continue
        found.append(
            _with_waiting(
                rank=rank,
                forward_s=micro * sum(stage.forward_wall_s for stage in own),
                backward_s=micro * sum(stage.backward_wall_s for stage in own),
                gradient_exchange_s=min(
                    samples[other].data_parallel_s
                    for other in plan.degrees.group("dp", pp=plan.degrees.coordinates(rank).pp)
                    if other in samples
                ),
                optimizer_s=samples[rank].optimizer_s,
                step_s=measured.step_wall_s,
            )
        )
    return tuple(found)


def _with_waiting(
    *,
    rank: int,
    forward_s: float,
    backward_s: float,
    gradient_exchange_s: float,
    optimizer_s: float,
    step_s: float,
) -> RankParts:
    busy_s = forward_s + backward_s + gradient_exchange_s + optimizer_s
    return RankParts(
        rank=rank,
        forward_s=forward_s,
        backward_s=backward_s,
        gradient_exchange_s=gradient_exchange_s,
        optimizer_s=optimizer_s,
        waiting_s=max(0.0, step_s - busy_s),
    )


def critical_rank(prediction: Prediction) -> int:
    """The rank whose step the prediction's components are: the one that ends last."""
    ends: dict[int, float] = {}
    for event in prediction.events:
        if event.stream != "send":
            ends[event.rank] = max(ends.get(event.rank, 0.0), event.end_s)
    if not ends:
        return min((stage.rank for stage in prediction.stages), default=0)
    return max(sorted(ends), key=lambda rank: ends[rank])


def measured_bubble_s(plan: Plan, measured: Measurement, parts: RankParts) -> float | None:
    """Seconds that a rank of a run would wait if sends took no time; None where it cannot be told.

    As the prediction defines it (traced/predict.py): the plan's schedule is timed with the
    run's median forwards and backwards and with sends of no length; what the rank is idle then is
    the bubble, at most all its waiting.
    """
    degrees = plan.degrees
    stages = {stage.stage: stage for stage in measured.stages}
    if sorted(stages) != list(range(len(plan.stages))):
        return None
    schedule = build_schedule(
        plan.schedule,
        num_ranks=degrees.pp,
        num_microbatches=plan.num_microbatches,
        stages_per_rank=degrees.vpp,
    )
    free = (0.0,) * len(plan.stages)
    timeline = simulate(
        schedule,
        Durations(
            forward_s=tuple(stages[s].forward_wall_s for s in sorted(stages)),
            backward_s=tuple(stages[s].backward_wall_s for s in sorted(stages)),
            send_forward_s=free,
            send_backward_s=free,
        ),
    )
    pp_rank = degrees.coordinates(parts.rank).pp
    idle_s = max(0.0, timeline.rank_end_s(pp_rank) - parts.busy_s)
    return min(idle_s, parts.waiting_s)
