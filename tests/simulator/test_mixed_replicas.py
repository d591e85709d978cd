"""Replicas that differ."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import InputError
from simulator.mixed.mixed_replicas import Replica, mixed_step
from simulator.schedules.durations import Durations


def durations(forward, backward, send=None):
    sends = tuple(send or (0.0,) * len(forward))
    return Durations(
        forward_s=tuple(forward),
        backward_s=tuple(backward),
        send_forward_s=sends,
        send_backward_s=sends,
    )


def replica(forward, backward, microbatches, *, first_parts=None, update=0.0, send=None):
    return Replica(
        durations=durations(forward, backward, send),
        num_microbatches=microbatches,
        first_parts=first_parts or tuple(range(len(forward))),
        update_s=(update,) * len(forward),
    )


def test_the_slowest_replica_holds_up_the_reduction():
    # 4 micro-batches of 3 s = 12 s and 2 of 5 s = 10 s; reduced at 12 + 2, updated at 14.5.
    step = mixed_step(
        [replica([1.0], [2.0], 4, update=0.5), replica([2.0], [3.0], 2, update=0.25)],
        reduce_s=[2.0],
    )
    assert step.backward_end_s == ((12.0,), (10.0,))
    assert step.reduced_s == (14.0,)
    assert step.reduction_s == 2.0
    assert step.step_s == 14.5


def test_early_stages_reduce_last_and_alone():
    # Two stages of 1 s + 1 s, one micro-batch: stage 1 ends at 3, stage 0 at 4. Stage 1 reduces
    # 3 to 3.5 beside stage 0's backward; with a barrier it waits until 4.
    pair = [replica([1.0, 1.0], [1.0, 1.0], 1)] * 2
    assert mixed_step(pair, reduce_s=[0.25, 0.5]).reduced_s == (4.25, 3.5)
    together = mixed_step(pair, reduce_s=[0.25, 0.5], backward_ends_s=[(4.0, 4.0)] * 2)
    assert together.reduced_s == (4.25, 4.5)


def test_unlike_cuts_reduce_by_part():
    # Parts 0, 1, 2; one replica has [0, 1] [2], the other all on one device. That one does all in
    # 6 s and reduces 2, 1, 0 in turn: 7, 8, 9.
    two = replica([1.0, 1.0], [1.0, 1.0], 1, first_parts=(0, 2))
    one = replica([3.0], [3.0], 1, first_parts=(0,))
    step = mixed_step([two, one], reduce_s=[1.0, 1.0, 1.0])
    assert step.backward_end_s == ((4.0, 3.0), (6.0,))
    assert step.reduced_s == (9.0, 8.0, 7.0)


SECONDS = st.floats(0.0, 4.0)


@given(st.lists(st.tuples(SECONDS, SECONDS, st.integers(1, 6)), min_size=1, max_size=5), SECONDS)
@settings(max_examples=50, deadline=None)
def test_one_stage_replicas_have_a_closed_form(shares, reduce_s):
    step = mixed_step([replica([f], [b], m) for f, b, m in shares], reduce_s=[reduce_s])
    assert step.step_s == pytest.approx(max((f + b) * m for f, b, m in shares) + reduce_s)


def test_wrong_numbers_are_named():
    with pytest.raises(InputError, match="leave a replica without work out"):
        replica([1.0], [1.0], 0)
    with pytest.raises(InputError, match=r"begin with part 0 and then rise, got \(1,\)"):
        replica([1.0], [1.0], 1, first_parts=(1,))
    with pytest.raises(InputError, match="begins with part 3, but there are 2 parts"):
        mixed_step([replica([1.0, 1.0], [1.0, 1.0], 1, first_parts=(0, 3))], reduce_s=[0.0, 0.0])
