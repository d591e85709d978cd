"""The timeline against simpy: one process per rank, one per message, an event per action."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator.schedules.schedule import Action, ActionKind, build_schedule
from simulator.schedules.timeline import Durations, simulate
from tests.oracles.schedule_csv import schedule_from_csv

simpy = pytest.importorskip("simpy", reason="the oracle is a simpy model: .[dev] installs it")


def by_simpy(schedule, durations):
    """{action: (start, end)}; knows nothing of our engine but the meaning of its inputs."""
    environment = simpy.Environment()
    arrived = {}
    times = {}
    last = schedule.num_stages - 1

    def event(*key):
        return arrived.setdefault(key, environment.event())

    def message(delay, key):
        yield environment.timeout(delay)
        event(*key).succeed()

    def rank(row):
        for action in row:
            stage, mb, kind = action.stage, action.microbatch, action.kind
            if kind is ActionKind.FORWARD and stage > 0:
                yield event("activation", stage, mb)
            backward = kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_INPUT)
            if backward and stage < last:
                yield event("gradient", stage, mb)
            start = environment.now
            length = {
                ActionKind.FORWARD: durations.forward_s[stage],
                ActionKind.BACKWARD: durations.backward_s[stage],
                ActionKind.BACKWARD_INPUT: durations.backward_s[stage]
                * (1 - durations.weight_share),
                ActionKind.BACKWARD_WEIGHT: durations.backward_s[stage] * durations.weight_share,
            }[kind]
            yield environment.timeout(length)
            times[action] = (start, environment.now)
            if kind is ActionKind.FORWARD and stage < last:
                near = schedule.stage_to_rank[stage] == schedule.stage_to_rank[stage + 1]
                delay = 0.0 if near else durations.send_forward_s[stage + 1]
                environment.process(message(delay, ("activation", stage + 1, mb)))
            if backward and stage > 0:
                near = schedule.stage_to_rank[stage] == schedule.stage_to_rank[stage - 1]
                delay = 0.0 if near else durations.send_backward_s[stage]
                environment.process(message(delay, ("gradient", stage - 1, mb)))

    for row in schedule.ranks:
        environment.process(rank(row))
    environment.run()
    return times


SECONDS = st.floats(min_value=0.0, max_value=10.0, allow_nan=False)


@st.composite
def cases(draw):
    name = draw(st.sampled_from(("gpipe", "1f1b", "interleaved")))
    p = draw(st.integers(2, 5))
    v = draw(st.integers(2, 3)) if name == "interleaved" else 1
    m = p * draw(st.integers(1, 3)) if name == "interleaved" else draw(st.integers(1, 9))
    schedule = build_schedule(name, num_ranks=p, num_microbatches=m, stages_per_rank=v)
    columns = [tuple(draw(st.lists(SECONDS, min_size=p * v, max_size=p * v))) for _ in range(4)]
    return schedule, Durations(
        forward_s=columns[0],
        backward_s=columns[1],
        send_forward_s=columns[2],
        send_backward_s=columns[3],
    )


def agrees(schedule, durations):
    ours = simulate(schedule, durations)
    theirs = by_simpy(schedule, durations)
    assert len(theirs) == len(ours.actions)
    for action, start, end in zip(ours.actions, ours.start_s, ours.end_s, strict=True):
        assert (start, end) == pytest.approx(theirs[action], abs=1e-9)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_random_durations(case):
    agrees(*case)


@given(st.lists(SECONDS, min_size=10, max_size=10), st.floats(0.0, 1.0))
@settings(max_examples=50, deadline=None)
def test_split_backward_on_a_schedule_of_our_own(times, weight_share):
    # Two ranks whose weight gradients fill the wait (as in zero-bubble schedules).
    schedule = schedule_from_csv(
        "0F0,0F1,0I0,0F2,0W0,0I1,0W1,0I2,0W2\n1F0,1I0,1F1,1I1,1W0,1F2,1B2,1W1\n"
    )
    durations = Durations(
        forward_s=tuple(times[0:2]),
        backward_s=tuple(times[2:4]),
        send_forward_s=tuple(times[4:6]),
        send_backward_s=tuple(times[6:8]),
        weight_share=weight_share,
    )
    agrees(schedule, durations)


def test_v_shaped_placement_sends_nothing_between_stages_of_one_rank():
    # Stages 1 and 2 are both on rank 1: no message between them.
    schedule = schedule_from_csv("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n")
    durations = Durations(
        forward_s=(1.0, 1.0, 1.0, 1.0),
        backward_s=(2.0, 2.0, 2.0, 2.0),
        send_forward_s=(0.0, 0.5, 0.5, 0.5),
        send_backward_s=(0.0, 0.25, 0.25, 0.25),
    )
    agrees(schedule, durations)
    # 4 x 1 + 4 x 2 of work, cuts 1 and 3 crossed down and up: 2 x 0.5 + 2 x 0.25.
    assert max(simulate(schedule, durations).end_s) == pytest.approx(13.5)
    assert Action(3, ActionKind.FORWARD, 0) in simulate(schedule, durations).actions
