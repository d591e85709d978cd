"""What a schedule's name alone says: where its stages lie, how many a rank holds, and how few
micro-batches it can take. `build_schedule` makes the actions; a test keeps the two alike."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.schedule import Placement


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleShape:
    """The shape of a pipeline schedule.

    placement            of its virtual stages on the ranks
    stages_per_rank      how many it needs; 0 for two or more, as the plan says
    splits_backward      runs the gradients of inputs (I) and of weights (W) as actions of their own
    microbatches_per_rank   it needs so many times the number of ranks, at least
    """

    placement: Placement = Placement.LOOP
    stages_per_rank: int = 1
    splits_backward: bool = False
    microbatches_per_rank: int = 0


SHAPES = {
    "gpipe": ScheduleShape(),
    "1f1b": ScheduleShape(),
    "interleaved": ScheduleShape(stages_per_rank=0),
    "zb-h1": ScheduleShape(splits_backward=True),
    "zb-h2": ScheduleShape(splits_backward=True),
    "zbv": ScheduleShape(placement=Placement.V, stages_per_rank=2, splits_backward=True),
    "v-half": ScheduleShape(placement=Placement.V, stages_per_rank=2, splits_backward=True),
    "v-min": ScheduleShape(placement=Placement.V, stages_per_rank=2, splits_backward=True),
    "dualpipev": ScheduleShape(
        placement=Placement.V, stages_per_rank=2, splits_backward=True, microbatches_per_rank=2
    ),
}
"""The pipeline schedules that a plan may name."""

SPLIT_SCHEDULES = tuple(name for name, shape in SHAPES.items() if shape.splits_backward)


def rank_of_stage(schedule: str, num_ranks: int, stage: int) -> int:
    """The pipeline rank that holds a virtual stage.

    >>> [rank_of_stage("zbv", 3, stage) for stage in range(6)]
    [0, 1, 2, 2, 1, 0]
    """
    turn, place = divmod(stage, num_ranks)
    back = turn % 2 == 1 and placement_of(schedule) is Placement.V
    return num_ranks - 1 - place if back else place


def placement_of(schedule: str) -> Placement:
    """LOOP for names that have no shape here: `none`, and schedules that no plan names."""
    return SHAPES[schedule].placement if schedule in SHAPES else Placement.LOOP
