"""The timeline: closed forms, a hand-computed example, monotony."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import InputError
from simulator.schedules.schedule import build_schedule
from simulator.schedules.timeline import Durations, simulate


def even(stages, forward_s=1.0, backward_s=2.0, send_s=0.0):
    return Durations(
        forward_s=(forward_s,) * stages,
        backward_s=(backward_s,) * stages,
        send_forward_s=(send_s,) * stages,
        send_backward_s=(send_s,) * stages,
    )


COUNTS = [(p, m) for p in (2, 3, 4, 8) for m in (p, 2 * p, 4 * p)]


@pytest.mark.parametrize(("p", "m"), COUNTS)
@pytest.mark.parametrize("name", ["1f1b", "gpipe"])
def test_equal_stages_take_m_plus_p_minus_1_turns(name, p, m):
    # Narayanan et al., SC'21, section 2.2.1: bubble (p - 1) (f + b) beside m (f + b) of work.
    schedule = build_schedule(name, num_ranks=p, num_microbatches=m)
    assert max(simulate(schedule, even(p)).end_s) == pytest.approx((m + p - 1) * 3.0)


@pytest.mark.parametrize(("p", "m"), COUNTS)
@pytest.mark.parametrize("v", [2, 3])
def test_interleaving_divides_the_bubble_by_v(p, m, v):
    # Section 2.2.2: a stage of 1 / v of the rank's layers; bubble (p - 1) (f + b) / v.
    schedule = build_schedule("interleaved", num_ranks=p, num_microbatches=m, stages_per_rank=v)
    durations = even(p * v, forward_s=1.0 / v, backward_s=2.0 / v)
    expected = m * 3.0 + (p - 1) * 3.0 / v
    assert max(simulate(schedule, durations).end_s) == pytest.approx(expected)


def test_gpipe_with_uneven_stages_is_two_flow_shops():
    # Equal jobs through machines of times f_s: sum f + (m - 1) max f, and the same backwards.
    schedule = build_schedule("gpipe", num_ranks=3, num_microbatches=5)
    durations = Durations(
        forward_s=(1.0, 3.0, 2.0),
        backward_s=(2.0, 4.0, 5.0),
        send_forward_s=(0.0, 0.5, 0.25),
        send_backward_s=(0.0, 0.5, 0.25),
    )
    expected = (6.0 + 0.75 + 4 * 3.0) + (11.0 + 0.75 + 4 * 5.0)
    assert max(simulate(schedule, durations).end_s) == pytest.approx(expected)


def test_two_ranks_by_hand():
    # f = (2, 1), b = (3, 2), send 1 down and 1 up; 1f1b with two micro-batches:
    # rank 0: 0F0 0-2, 0F1 2-4, 0B0 waits for 1B0 (ends 6, +1) 7-10, 0B1 (1B1 ends 9, +1) 10-13
    # rank 1: 1F0 waits for 0F0 (2, +1) 3-4, 1B0 4-6, 1F1 6-7 (arrived at 5), 1B1 7-9
    schedule = build_schedule("1f1b", num_ranks=2, num_microbatches=2)
    durations = Durations(
        forward_s=(2.0, 1.0),
        backward_s=(3.0, 2.0),
        send_forward_s=(0.0, 1.0),
        send_backward_s=(0.0, 1.0),
    )
    timeline = simulate(schedule, durations)
    rows = zip(timeline.actions, timeline.start_s, timeline.end_s, strict=True)
    assert {str(action): (start, end) for action, start, end in rows} == {
        "0F0": (0.0, 2.0),
        "0F1": (2.0, 4.0),
        "0B0": (7.0, 10.0),
        "0B1": (10.0, 13.0),
        "1F0": (3.0, 4.0),
        "1B0": (4.0, 6.0),
        "1F1": (6.0, 7.0),
        "1B1": (7.0, 9.0),
    }
    assert timeline.rank_end_s(0) == 13.0
    assert timeline.rank_end_s(1) == 9.0


def test_the_ramps_sends_leave_each_ranks_first_stage_by_hand():
    # Two stages on each of two ranks, all passes 1 s. 0.25 s more from stage 0 to 1 for the first
    # micro-batch, and back for the last; none from stage 1 to 2, which are on the same two ranks:
    # 1F0 1.25, 2F0 2.25, 2F1 3.25, 3B0 4.25, 3B1 6.25, 2B1 7.25, 1B1 8.25, 0B1 9.5
    schedule = build_schedule("interleaved", num_ranks=2, num_microbatches=2, stages_per_rank=2)
    timeline = simulate(schedule, replace(even(4, 1.0, 1.0), ramp_send_s=0.25))
    starts = dict(zip(map(str, timeline.actions), timeline.start_s, strict=True))
    assert [starts[name] for name in ("1F0", "2F0", "1B1", "0B1")] == [1.25, 2.25, 8.25, 9.5]


@given(
    st.sampled_from(["gpipe", "1f1b", "interleaved"]),
    st.lists(st.floats(0.0, 5.0), min_size=32, max_size=32),
    st.integers(0, 31),
    st.floats(0.0, 3.0),
)
@settings(max_examples=60, deadline=None)
def test_nothing_gets_faster_by_more_work(name, times, which, more):
    v = 2 if name == "interleaved" else 1
    schedule = build_schedule(name, num_ranks=4, num_microbatches=8, stages_per_rank=v)
    count = schedule.num_stages

    def durations(values):
        return Durations(
            forward_s=tuple(values[0:count]),
            backward_s=tuple(values[8 : 8 + count]),
            send_forward_s=tuple(values[16 : 16 + count]),
            send_backward_s=tuple(values[24 : 24 + count]),
        )

    longer = list(times)
    longer[which] += more
    before, after = simulate(schedule, durations(times)), simulate(schedule, durations(longer))
    assert max(after.end_s) >= max(before.end_s) - 1e-9
    work = max(8 * sum(times[s] + times[8 + s] for s in range(r, count, 4)) for r in range(4))
    assert max(before.end_s) >= work - 1e-9


def test_durations_of_other_stages_are_refused():
    schedule = build_schedule("1f1b", num_ranks=2, num_microbatches=2)
    with pytest.raises(InputError, match="2 stages, durations are given for 3"):
        simulate(schedule, even(3))
    with pytest.raises(InputError, match="different numbers of stages"):
        Durations(
            forward_s=(1.0,), backward_s=(1.0, 1.0), send_forward_s=(0.0,), send_backward_s=(0.0,)
        )
