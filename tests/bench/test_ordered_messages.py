"""Messages in order with the computation, beside DeepSpeed's published rule as an oracle."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.sailor.ordered_messages import rank_ends
from profiles.errors import InputError
from simulator.schedules.durations import Durations
from simulator.schedules.schedule import build_schedule
from simulator.schedules.timeline import simulate


def durations(forward, backward, send=None):
    sends = tuple(send or (0.0,) * len(forward))
    return Durations(
        forward_s=tuple(forward),
        backward_s=tuple(backward),
        send_forward_s=sends,
        send_backward_s=sends,
    )


def test_messages_hold_both_ends():
    # Two stages, one micro-batch, 1 s each, messages of 2 s: F0 1, message 3, F1 4, B1 5, message
    # 7, B0 8; stage 1 is free when its gradient has left: at 7, or at 6 if half of it is buffered.
    schedule = build_schedule("1f1b", num_ranks=2, num_microbatches=1)
    times = durations([1.0, 1.0], [1.0, 1.0], [0.0, 2.0])
    assert rank_ends(schedule, times, sender_held=(1.0, 1.0)) == (8.0, 7.0)
    assert rank_ends(schedule, times, sender_held=(1.0, 0.5)) == (8.0, 6.0)


def deepspeed_program(stages, stage, microbatches):
    """Instructions of a stage by DeepSpeed's published rule, turn by turn: an oracle.

    Turn t is a forward where t and the stage are both even or both odd.
    """
    program, before = [], -1
    for turn in range(2 * (microbatches + stages - 1)):
        is_forward = turn % 2 == stage % 2
        now = (turn - stage) // 2 if is_forward else (turn + stage + 1) // 2 - stages
        valid, had = 0 <= now < microbatches, 0 <= before < microbatches
        if is_forward:
            program += [("send", "up", before)] * (had and stage > 0)
            program += [("receive", "down", now)] * (valid and stage > 0)
        else:
            program += [("receive", "up", now)] * (valid and stage < stages - 1)
            program += [("send", "down", before)] * (had and stage < stages - 1)
        program += [("run", "F" if is_forward else "B", now)] * valid
        before = now
    return program


def deepspeed_ends(times, microbatches):
    """Ends of each stage's program with both ends of a message held for all of it."""
    stages = len(times.forward_s)
    programs = [deepspeed_program(stages, s, microbatches) for s in range(stages)]
    ends, at = [0.0] * stages, [0] * stages
    moved = True
    while moved:
        moved = False
        for s in range(stages):
            while at[s] < len(programs[s]):
                what, way, _ = programs[s][at[s]]
                if what == "run":
                    ends[s] += (times.forward_s if way == "F" else times.backward_s)[s]
                    at[s] += 1
                else:
                    other = s + 1 if (what == "send") == (way == "down") else s - 1
                    wanted = ("receive" if what == "send" else "send", *programs[s][at[s]][1:])
                    if at[other] >= len(programs[other]) or programs[other][at[other]] != wanted:
                        break
                    row = times.send_forward_s if way == "down" else times.send_backward_s
                    ends[s] = ends[other] = max(ends[s], ends[other]) + row[max(s, other)]
                    at[s] += 1
                    at[other] += 1
                moved = True
    assert all(a == len(p) for a, p in zip(at, programs, strict=True))
    return tuple(ends)


SECONDS = st.floats(0.0, 4.0)


@st.composite
def pipelines(draw):
    stages = draw(st.integers(1, 5))

    def row():
        return tuple(draw(st.lists(SECONDS, min_size=stages, max_size=stages)))

    times = Durations(
        forward_s=row(), backward_s=row(), send_forward_s=row(), send_backward_s=row()
    )
    return times, draw(st.integers(1, 8))


@given(pipelines())
@settings(max_examples=150, deadline=None)
def test_order_is_deepspeeds(case):
    times, microbatches = case
    stages = times.num_stages
    schedule = build_schedule("1f1b", num_ranks=stages, num_microbatches=microbatches)
    ends = rank_ends(schedule, times, sender_held=(1.0,) * stages)
    assert ends == pytest.approx(deepspeed_ends(times, microbatches))


@given(pipelines(), st.floats(0.0, 1.0))
@settings(max_examples=100, deadline=None)
def test_waiting_for_messages_is_never_faster(case, held):
    times, microbatches = case
    stages = times.num_stages
    schedule = build_schedule("1f1b", num_ranks=stages, num_microbatches=microbatches)
    beside = max(simulate(schedule, times).end_s)
    part = max(rank_ends(schedule, times, sender_held=(held,) * stages))
    whole = max(rank_ends(schedule, times, sender_held=(1.0,) * stages))
    assert beside <= part + 1e-9
    assert part <= whole + 1e-9


def test_other_schedules_are_refused():
    schedule = build_schedule("zb-h1", num_ranks=2, num_microbatches=4)
    with pytest.raises(InputError, match="modelled for the 1f1b schedule, not for 'zb-h1'"):
        rank_ends(schedule, durations([1.0, 1.0], [1.0, 1.0]), sender_held=(1.0, 1.0))
