"""No schedule hangs on an accelerator's transport, and an order that does is found."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from executor.torch_pipeline import received_early
from profiles.errors import InputError
from simulator.memory.moments import rank_moments
from simulator.schedules.schedule import Schedule, build_schedule, schedule_kind
from simulator.values.runnable import runnable_schedules
from tests.executor.fake_accelerator.message_order import (
    Queue,
    programs,
    stuck,
    under_way,
    with_messages,
)

PIPELINES = tuple(name for name in runnable_schedules() if name != "none")


def schedules(
    name: str, ranks: tuple[int, ...], micro_batches: tuple[int, ...]
) -> Iterator[Schedule]:
    kind = schedule_kind(name)
    for pp in ranks:
        for micro in micro_batches:
            for vpp in (1, 2, 3):
                if not kind.takes_stages(vpp) or kind.why_not(pp, micro):
                    continue
                try:
                    yield build_schedule(
                        name, num_ranks=pp, num_microbatches=micro, stages_per_rank=vpp
                    )
                except InputError:
                    continue  # micro-batches that do not go into whole rounds


def fails(schedule: Schedule) -> list[str]:
    rows = with_messages(schedule)
    return stuck(programs(rows, schedule.stage_to_rank), Queue.RANK)


@pytest.mark.parametrize("name", PIPELINES)
def test_no_schedule_hangs(name: str) -> None:
    tried = 0
    for schedule in schedules(name, (2, 3, 4, 8), (1, 2, 3, 4, 8, 13)):
        assert not fails(schedule), (schedule.num_ranks, schedule.num_microbatches)
        tried += 1
    assert tried >= 6


@pytest.mark.slow
@pytest.mark.parametrize("ranks", range(2, 17))
@pytest.mark.parametrize("name", PIPELINES)
def test_no_schedule_hangs_in_any_size(name: str, ranks: int) -> None:
    for schedule in schedules(name, (ranks,), tuple(range(1, 65))):
        assert not fails(schedule), (schedule.num_ranks, schedule.num_microbatches)


@pytest.mark.parametrize("queue", Queue)
def test_a_pair_that_sends_first_on_both_ends_is_found(queue: Queue) -> None:
    """Where both directions of a pair share a queue, two sends that come first meet nobody."""
    schedule = build_schedule("1f1b", num_ranks=2, num_microbatches=4, stages_per_rank=1)
    rows = with_messages(schedule)
    sends = [i for i, action in enumerate(rows[0]) if "SEND_F" in str(action)]
    # The second activation goes out before the first gradient is received: so it is in 1F1B. The
    # last one goes out in the place of the first.
    rows[0][sends[0]], rows[0][sends[-1]] = rows[0][sends[-1]], rows[0][sends[0]]
    assert stuck(programs(rows, schedule.stage_to_rank), queue)


def test_receives_posted_early_hang_where_both_directions_share_a_queue() -> None:
    """Why the executor posts receives early over gloo alone."""
    hanging = 0
    for schedule in schedules("1f1b", (2, 4), (4, 8)):
        rows = {rank: received_early(row) for rank, row in with_messages(schedule).items()}
        hanging += bool(stuck(programs(rows, schedule.stage_to_rank), Queue.RANK))
    assert hanging


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("name", PIPELINES)
def test_the_simulator_counts_the_messages_that_the_runtime_has_under_way(
    name: str, early: bool
) -> None:
    """From the rows of actions and messages that the executor hands to torch's runtime."""
    for schedule in schedules(name, (2, 3, 4), (1, 2, 3, 8, 12)):
        found = rank_moments(schedule, early=early)
        for rank, row in with_messages(schedule).items():
            counted = [
                (moment.arriving, moment.returning, moment.leaving) for moment in found[rank]
            ]
            assert counted == under_way(schedule, rank, received_early(row) if early else row)
