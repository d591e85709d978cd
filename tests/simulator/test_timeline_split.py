"""The timeline where a backward is split: by hand, and against a fixed point of the rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import InputError
from simulator.schedules.durations import Durations
from simulator.schedules.schedule import Schedule, build_schedule
from simulator.schedules.timeline import longest_rank_s, simulate
from simulator.schedules.zero_bubble_automatic import _Search
from tests.oracles.schedule_csv import schedule_from_csv
from tests.simulator.bubble_rate import bubble_rate, busiest_rank_s


def test_by_hand():
    # F = (2, 1), I = (3, 2), W = (1, 4), full B = (9, 9) unused; sends 1 down, 0.5 up.
    # rank 0: 0F0 0-2; 0I0 waits for 1I0 (ends 6, +0.5) 6.5-9.5; 0W0 9.5-10.5
    # rank 1: 1F0 waits for 0F0 (2, +1) 3-4; 1I0 4-6; 1W0 6-10: nobody waits for it
    schedule = schedule_from_csv("0F0,0I0,0W0\n1F0,1I0,1W0\n")
    durations = Durations(
        forward_s=(2.0, 1.0),
        backward_s=(9.0, 9.0),
        backward_input_s=(3.0, 2.0),
        backward_weight_s=(1.0, 4.0),
        send_forward_s=(0.0, 1.0),
        send_backward_s=(0.0, 0.5),
    )
    timeline = simulate(schedule, durations)
    rows = zip(map(str, timeline.actions), timeline.start_s, timeline.end_s, strict=True)
    assert {name: (start, end) for name, start, end in rows} == {
        "0F0": (0.0, 2.0),
        "0I0": (6.5, 9.5),
        "0W0": (9.5, 10.5),
        "1F0": (3.0, 4.0),
        "1I0": (4.0, 6.0),
        "1W0": (6.0, 10.0),
    }
    assert (timeline.rank_start_s(0), timeline.rank_start_s(1)) == (0.0, 3.0)
    assert longest_rank_s(timeline) == 10.5
    assert busiest_rank_s(timeline) == 7.0
    assert bubble_rate(timeline) == pytest.approx(3.5 / 10.5)


@given(
    st.integers(1, 5),
    st.integers(1, 9),
    st.integers(0, 2**32 - 1),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
@settings(max_examples=100, deadline=None)
def test_a_search_runs_the_pipeline_as_the_timeline_does(p, m, seed, choices):
    """Unlike stages and sends: what ZB-1p and ZB-2p take their times to be is what they are."""
    f, i, w, down, up = np.random.default_rng(seed).random((5, p)).tolist()
    durations = Durations(
        forward_s=tuple(f),
        backward_s=tuple(a + b for a, b in zip(i, w, strict=True)),
        backward_input_s=tuple(i),
        backward_weight_s=tuple(w),
        send_forward_s=tuple(down),
        send_backward_s=tuple(up),
    )
    fit, yields, small = choices
    search = _Search(m, durations, 2 * p, 0.5)
    search.first_round(only_fitting=fit)
    for _ in range(1, m):
        search.forwards(may_yield=yields, fill_small_gaps=small)
        search.backwards(fill_small_gaps=small)
    longest_s, rows = search.finish()
    schedule = Schedule(
        name="searched", num_microbatches=m, stage_to_rank=tuple(range(p)), ranks=rows
    )
    assert longest_s == pytest.approx(longest_rank_s(simulate(schedule, durations)))


NAMES = (
    *(("zb-h1", 1), ("zb-h2", 1), ("zb-1p", 1), ("zb-2p", 1), ("zbv", 2)),
    *(("v-half", 2), ("v-min", 2), ("dualpipe", 1), ("dualpipev", 2)),
)


@given(st.sampled_from(NAMES), st.integers(1, 2), st.data())
@settings(max_examples=120, deadline=None)
def test_against_a_fixed_point_of_the_rules(kind, half, data):
    name, v = kind
    p, m = 2 * half, 4 * half + 2 * data.draw(st.integers(0, 3))
    schedule = build_schedule(name, num_ranks=p, num_microbatches=m, stages_per_rank=v)
    n = schedule.num_stages
    seconds = st.lists(st.floats(0.0, 5.0), min_size=n, max_size=n).map(tuple)
    f, b, i, w, down, up = (data.draw(seconds) for _ in range(6))
    durations = Durations(
        forward_s=f,
        backward_s=b,
        backward_input_s=i,
        backward_weight_s=w,
        send_forward_s=down,
        send_backward_s=up,
    )
    # Relax every rule until nothing changes: knows nothing of graphs or topological orders.
    length = {"F": f, "B": b, "I": i, "W": w}
    ends, changed = {}, True
    while changed:
        changed = False
        for rank, row in enumerate(schedule.ranks):
            clock = 0.0
            for action in row:
                stage, mb, letter = action.stage, action.microbatch, action.kind.value
                begin = clock
                first, last = (
                    stage % schedule.stages_per_copy == 0,
                    (stage + 1) % schedule.stages_per_copy == 0,
                )
                if letter == "F" and not first:
                    far = schedule.stage_to_rank[stage - 1] != rank
                    begin = max(begin, ends.get((stage - 1, "F", mb), 0.0) + far * down[stage])
                if letter in "BI" and not last:
                    far = schedule.stage_to_rank[stage + 1] != rank
                    begin = max(begin, ends.get((stage + 1, "B", mb), 0.0) + far * up[stage + 1])
                clock = begin + length[letter][stage]
                key = (stage, "B" if letter == "I" else letter, mb)
                if ends.get(key) != clock:
                    ends[key], changed = clock, True
    timeline = simulate(schedule, durations)
    for action, end in zip(timeline.actions, timeline.end_s, strict=True):
        letter = "B" if action.kind.value == "I" else action.kind.value
        assert end == pytest.approx(ends[action.stage, letter, action.microbatch], abs=1e-9)


def test_halves_default_to_the_share_of_a_full_backward():
    whole = Durations(
        forward_s=(1.0,),
        backward_s=(4.0,),
        send_forward_s=(0.0,),
        send_backward_s=(0.0,),
        weight_share=0.25,
    )
    assert (whole.input_s(), whole.weight_s()) == ((3.0,), (1.0,))
    assert whole.lengths() == [1.0, 4.0, 3.0, 1.0]
    even = Durations.even(2, forward_s=1.0, backward_input_s=2.0, backward_weight_s=0.5, send_s=0.1)
    assert even.lengths() == [1.0, 1.0, 2.5, 2.5, 2.0, 2.0, 0.5, 0.5]
    assert even.num_stages == 2


def test_half_of_the_halves_is_refused():
    row = (1.0,)
    common = {
        "forward_s": row,
        "backward_s": row,
        "send_forward_s": row,
        "send_backward_s": row,
    }
    with pytest.raises(InputError, match="only backward_input_s of the two halves"):
        Durations(**common, backward_input_s=row)
    with pytest.raises(InputError, match="only backward_weight_s of the two halves"):
        Durations(**common, backward_weight_s=row)
    with pytest.raises(InputError, match="different numbers of stages"):
        Durations(**common, backward_input_s=(1.0, 2.0), backward_weight_s=(1.0, 2.0))
