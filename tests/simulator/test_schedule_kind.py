"""What a schedule's name says, against the schedule that is built under it."""

from __future__ import annotations

import pytest

from profiles.errors import InputError, UnknownNameError
from simulator.schedules.action import ActionKind
from simulator.schedules.schedule import build_schedule, pipeline_names, schedule_kind
from simulator.values.runnable import free_schedules, runnable_schedules


@pytest.mark.parametrize("name", pipeline_names())
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_kind_is_that_of_the_schedule(name, ranks):
    kind = schedule_kind(name)
    if kind.why_not(ranks, 4 * ranks):
        pytest.skip("not for so many ranks")
    per_rank = kind.stages_per_rank or 3
    made = build_schedule(
        name, num_ranks=ranks, num_microbatches=4 * ranks, stages_per_rank=per_rank
    )
    assert made.copies == kind.copies
    if made.copies == 1:
        assert made.stage_to_rank == tuple(
            kind.rank_of(ranks, stage) for stage in range(made.num_stages)
        )
    kinds = {action.kind for row in made.ranks for action in row}
    assert (ActionKind.BACKWARD_WEIGHT in kinds) == kind.splits_backward


@pytest.mark.parametrize("name", pipeline_names())
def test_a_schedule_takes_what_its_kind_says(name):
    kind = schedule_kind(name)
    for ranks in (2, 3, 4):
        for count in range(1, 4 * ranks):
            counts = {"num_ranks": ranks, "num_microbatches": count}
            per_rank = kind.stages_per_rank or 2
            if not kind.why_not(ranks, count):
                build_schedule(name, stages_per_rank=per_rank, **counts)
            elif not kind.whole_rounds:  # that one torch runs in uneven rounds too
                with pytest.raises(InputError, match="micro-batches"):
                    build_schedule(name, stages_per_rank=per_rank, **counts)


def test_our_executor_runs_what_holds_one_copy_and_is_known_before_the_step():
    left_out = {"zb-1p", "zb-2p", "dualpipe", "interleaved-overlap"}
    assert {*pipeline_names(), "none"} - left_out == set(runnable_schedules())
    assert set(free_schedules()) == {"none", "gpipe", "1f1b", "interleaved"}


@pytest.mark.parametrize(
    ("name", "ep", "recompute", "suits"),
    [
        ("interleaved", 1, "full", True),
        # Forward and backward of two micro-batches hide each other's all-to-alls, which need
        # experts on several ranks and layers whose backward does not run the experts again.
        ("interleaved-overlap", 8, "none", True),
        ("interleaved-overlap", 8, "full", False),
        ("interleaved-overlap", 1, "none", False),
    ],
)
def test_a_schedule_for_experts_needs_them_on_several_ranks(name, ep, recompute, suits):
    assert schedule_kind(name).suits(ep=ep, recompute=recompute) == suits


def test_an_unknown_name():
    with pytest.raises(UnknownNameError, match="Did you mean 'zbv'"):
        schedule_kind("zvb")
