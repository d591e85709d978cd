"""Shapes of schedules against the schedules that are built under the same names."""

from __future__ import annotations

import pytest

from profiles.errors import InputError
from simulator.action import ActionKind
from simulator.runnable import FREE_SCHEDULES, RUNNABLE_SCHEDULES
from simulator.schedule import build_schedule
from simulator.schedule_shape import SHAPES, SPLIT_SCHEDULES, rank_of_stage


@pytest.mark.parametrize("name", sorted(SHAPES))
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_shape_is_that_of_the_schedule(name, ranks):
    shape = SHAPES[name]
    per_rank = shape.stages_per_rank or 3
    made = build_schedule(
        name, num_ranks=ranks, num_microbatches=4 * ranks, stages_per_rank=per_rank
    )
    stages = range(made.num_stages)
    assert made.stage_to_rank == tuple(rank_of_stage(name, ranks, s) for s in stages)
    assert made.placement is shape.placement
    kinds = {action.kind for row in made.ranks for action in row}
    assert (ActionKind.BACKWARD_WEIGHT in kinds) == shape.splits_backward


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_a_schedule_takes_as_few_micro_batches_as_its_shape_says(name):
    shape = SHAPES[name]
    per_rank = shape.stages_per_rank or 2
    least = max(1, shape.microbatches_per_rank * 3)
    build_schedule(name, num_ranks=3, num_microbatches=least, stages_per_rank=per_rank)
    if shape.microbatches_per_rank:
        with pytest.raises(InputError, match="micro-batches or more"):
            build_schedule(name, num_ranks=3, num_microbatches=least - 1, stages_per_rank=per_rank)


def test_every_shape_is_run_or_planned():
    assert {*SHAPES, "none"} == set(RUNNABLE_SCHEDULES) == {*FREE_SCHEDULES, *SPLIT_SCHEDULES}
