"""Breakdown of a step by rank into measurable parts.

A run times the forwards and backwards of every stage, the gradient exchange and the optimizer. The
rest of the step is waiting. A prediction has more parts (recomputation, launches, communication
inside blocks); here they are included in forwards and backwards.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from simulator.schedules.timeline import Durations, simulate
from simulator.values.measurement import Measurement
from simulator.values.plan import Plan
from simulator.values.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class RankParts:
    """Seconds of one step of a rank; the parts add up to the step.

    forward_s, backward_s  all micro-batches of all stages of the rank
    gradient_exchange_s    for a run: the replica with the shortest exchange, as others wait in it
    waiting_s              the rest: the pipeline's bubble, sends, slower ranks, the host
    """

    rank: int
    forward_s: float
    backward_s: float
    gradient_exchange_s: float
    optimizer_s: float
    waiting_s: float = 0.0

    @property
    def busy_s(self) -> float:
        """Forwards and backwards."""
        return self.forward_s + self.backward_s

    @property
    def step_s(self) -> float:
        """Sum of the parts."""
        return self.busy_s + self.gradient_exchange_s + self.optimizer_s + self.waiting_s

    def within(self, step_s: float) -> RankParts:
        """The parts, with the rest of a step of `step_s` counted as waiting."""
        return replace(self, waiting_s=max(0.0, step_s - self.step_s))


def predicted_parts(plan: Plan, prediction: Prediction) -> tuple[RankParts, ...]:
    """Predicted parts of each pipeline rank, sorted by rank."""
    micro = plan.num_microbatches
    parts = []
    for rank in sorted({stage.rank for stage in prediction.stages}):
        own = [stage for stage in prediction.stages if stage.rank == rank]
        parts.append(
            RankParts(
                rank=rank,
                forward_s=micro * sum(stage.forward_s for stage in own),
                backward_s=micro * sum(stage.backward_s for stage in own),
                gradient_exchange_s=own[0].data_parallel_s,
                optimizer_s=own[0].optimizer_s,
            ).within(prediction.step_time_s.value)
        )
    return tuple(parts)


def measured_parts(plan: Plan, measured: Measurement) -> tuple[RankParts, ...]:
    """Measured parts of each rank of the first replica, whose stages are timed; medians over
    undisturbed steps."""
    micro = plan.num_microbatches
    samples = {sample.rank: sample for sample in measured.ranks}
    parts = []
    for rank in sorted({stage.rank for stage in measured.stages}):
        own = [stage for stage in measured.stages if stage.rank == rank]
        if rank not in samples:
            continue
        parts.append(
            RankParts(
                rank=rank,
                forward_s=micro * sum(stage.forward_wall_s for stage in own),
                backward_s=micro * sum(stage.backward_wall_s for stage in own),
                gradient_exchange_s=min(
                    samples[other].data_parallel_s
                    for other in plan.degrees.group("dp", pp=plan.degrees.coordinates(rank).pp)
                    if other in samples
                ),
                optimizer_s=samples[rank].optimizer_s,
            ).within(measured.step_wall_s)
        )
    return tuple(parts)


def critical_rank(prediction: Prediction) -> int:
    """The rank that ends last; the prediction's components are the parts of its step."""
    ends: dict[int, float] = {}
    for event in prediction.events:
        if event.stream != "send":
            ends[event.rank] = max(ends.get(event.rank, 0.0), event.end_s)
    if not ends:
        return min((stage.rank for stage in prediction.stages), default=0)
    return max(sorted(ends), key=lambda rank: ends[rank])


def measured_bubble_s(plan: Plan, measured: Measurement, parts: RankParts) -> float | None:
    """Seconds that a rank of a run would wait if sends took no time; None if not all stages were
    timed.

    Same definition as in the prediction (traced/predict.py): the plan's schedule is simulated with
    the run's median forwards and backwards and with sends of 0 s. The rank's idle time in it is the
    bubble, limited to all its waiting.
    """
    stages = {stage.stage: stage for stage in measured.stages}
    if sorted(stages) != list(range(len(plan.stages))):
        return None
    free = (0.0,) * len(plan.stages)
    timeline = simulate(
        plan.actions,
        Durations(
            forward_s=tuple(stages[s].forward_wall_s for s in sorted(stages)),
            backward_s=tuple(stages[s].backward_wall_s for s in sorted(stages)),
            send_forward_s=free,
            send_backward_s=free,
        ),
    )
    pp_rank = plan.degrees.coordinates(parts.rank).pp
    idle_s = max(0.0, timeline.rank_end_s(pp_rank) - parts.busy_s)
    return min(idle_s, parts.waiting_s)
