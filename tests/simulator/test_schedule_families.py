"""Properties of every registered schedule, closed forms of bubbles, and the registry itself."""

from __future__ import annotations

import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import InputError
from simulator.schedules.action import Action, ActionKind, backward_input, forward
from simulator.schedules.durations import Durations
from simulator.schedules.in_flight import most_in_flight
from simulator.schedules.schedule import (
    Schedule,
    build_schedule,
    schedule_kind,
    schedule_names,
)
from simulator.schedules.timeline import longest_rank_s, simulate
from tests.oracles.held_activations import Kept, most_held
from tests.oracles.schedule_csv import parse_action, schedule_from_csv, to_csv
from tests.simulator.bubble_rate import bubble_rate, busiest_rank_s

TWO_STAGES = ("zbv", "v-half", "v-min", "dualpipev")
SEARCHED = ("zb-1p", "zb-2p")


def dependencies(action: Action, num_stages: int, copies: int = 1) -> tuple[Action, ...]:
    """Actions whose results an action needs: its stage's forward, its neighbor's output.

    A backward's neighbor may run `B` or `I`. The result has the action's own letter; callers must
    accept either.
    """
    stage, mb = action.stage, action.microbatch
    per_copy = num_stages // copies
    if action.kind is ActionKind.FORWARD:
        return (forward(stage - 1, mb),) if stage % per_copy else ()
    if action.kind is ActionKind.BACKWARD_WEIGHT:
        return (backward_input(stage, mb),)
    own = forward(stage, mb)
    if stage % per_copy == per_copy - 1:
        return (own,)
    return (own, Action(stage + 1, action.kind, mb))


def promise(name, p, m, v, rank, kept):
    """The most that a rank keeps, in stages' activations of a micro-batch, as its source says."""
    return {
        "none": 1,
        "gpipe": m,
        "1f1b": p - rank,
        "interleaved": (v - 1) * p + 2 * (p - 1 - rank) + 1,
        "interleaved-overlap": (v - 1) * p + 2 * (p - 1 - rank) + 2,
        # Table 2 of arXiv 2401.10241, its i being rank + 1, and a round per further stage.
        "zb-h1": (p - rank) + rank * kept,
        "zb-h2": 2 * (p - rank) - 1 + 2 * rank * kept,
        "zb-1p": p,
        "zb-2p": 2 * p,
        "zbv": 2 * p,  # section 6: p M_B, in halves
        "v-half": 2 * ((p + 2) // 2),  # arXiv 2405.15362, in halves
        "v-min": 2 * ((p + 4) // 3),
        "dualpipe": p + 1,  # arXiv 2412.19437, table 2
        "dualpipev": 2 * p + 1,
    }[name]


@st.composite
def built(draw, names=None):
    """A schedule of any name with counts that it takes, and M_W / M_B."""
    name = draw(st.sampled_from(names or schedule_names()))
    p = 1 if name == "none" else draw(st.integers(1, 7))
    m = draw(st.integers(1, 24))
    v = 2 if name in TWO_STAGES else 1
    kept = draw(st.sampled_from((0.0, 0.37, 1.0)))
    options = {}
    if schedule_kind(name).is_interleaved:
        v, m = draw(st.integers(2, 3)), p * draw(st.integers(1, 4))
    if name == "dualpipe":
        p, m = 2 * draw(st.integers(1, 3)), 2 * m
        m = max(m, 2 * p)
    if name == "dualpipev":
        m = max(m, 2 * p)
    if name in SEARCHED:
        seconds = st.floats(0.1, 4.0)
        times = [tuple(draw(st.lists(seconds, min_size=p, max_size=p))) for _ in range(5)]
        options["durations"] = Durations(
            forward_s=times[0],
            backward_s=times[1],
            backward_input_s=times[1],
            backward_weight_s=times[2],
            send_forward_s=times[3],
            send_backward_s=times[4],
        )
        options["kept_for_weights"] = kept
    schedule = build_schedule(name, num_ranks=p, num_microbatches=m, stages_per_rank=v, **options)
    return schedule, v, kept


@given(built())
@settings(max_examples=250, deadline=None)
def test_each_action_once_and_after_what_it_needs(case):
    schedule, _, _ = case
    # Not by the constructor's check: by the times of the timeline.
    timeline = simulate(schedule, Durations.even(schedule.num_stages, send_s=0.25))
    ends = dict(zip(timeline.actions, timeline.end_s, strict=True))
    starts = dict(zip(timeline.actions, timeline.start_s, strict=True))
    assert len(ends) == sum(len(row) for row in schedule.ranks)
    for stage in range(schedule.num_stages):
        taken = list(schedule.microbatches_of(stage))
        for kinds in ("F", "BI", "BW"):
            of = [a.microbatch for a in ends if a.stage == stage and a.kind.value in kinds]
            assert sorted(of) == taken
    for action, start in starts.items():
        for need in dependencies(action, schedule.num_stages, schedule.copies):
            other = "I" if need.kind.value == "B" else "B" if need.kind.value == "I" else None
            end = ends.get(need)
            if end is None:
                end = next(
                    e for a, e in ends.items() if str(a) == f"{need.stage}{other}{need.microbatch}"
                )
            near = schedule.stage_to_rank[need.stage] == schedule.stage_to_rank[action.stage]
            assert start >= end + (0.0 if near else 0.25) - 1e-9


@given(built())
@settings(max_examples=250, deadline=None)
def test_every_rank_keeps_what_was_promised(case):
    schedule, v, kept = case
    p, m = schedule.num_ranks, schedule.num_microbatches
    split = kept if schedule.name in ("zb-h1", "zb-h2", *SEARCHED) else 1.0
    held = most_held(schedule, Kept.units(schedule.num_stages, split))
    for rank, most in enumerate(held):
        assert most <= promise(schedule.name, p, m, v, rank, split) + 1e-9


@given(built())
@settings(max_examples=100, deadline=None)
def test_csv_round_trip(case):
    schedule, _, _ = case
    assert schedule_from_csv(to_csv(schedule), schedule.name) == schedule


@pytest.mark.parametrize("name", ["zb-h2", "v-half", "v-min", "zbv"])
def test_the_promise_is_reached(name):
    v = 1 if name == "zb-h2" else 2
    for p in (2, 4, 5, 8):
        held = most_held(
            build_schedule(name, num_ranks=p, num_microbatches=4 * p, stages_per_rank=v)
        )
        assert max(held) == max(promise(name, p, 4 * p, v, rank, 1.0) for rank in range(p))


@given(
    st.integers(2, 8),
    st.integers(0, 12),
    st.floats(0.5, 2.0),
    st.floats(0.5, 2.0),
    st.floats(0.1, 1.0),
)
@settings(max_examples=80, deadline=None)
def test_bubbles_of_table_2_of_the_zero_bubble_paper(p, more, f, b, part):
    # 1F1B (p-1)(F+B+W), ZB-H1 (p-1)(F+B-W), ZB-H2 (p-1)(F+B-2W): for W no longer than F and B.
    w = part * min(f, b)
    m = 2 * p - 1 + more
    durations = Durations.even(p, forward_s=f, backward_input_s=b, backward_weight_s=w)
    closed = {
        "1f1b": (p - 1) * (f + b + w),
        "gpipe": (p - 1) * (f + b + w),
        "zb-h1": (p - 1) * (f + b - w),
        "zb-h2": (p - 1) * (f + b - 2 * w),
    }
    for name, bubble in closed.items():
        timeline = simulate(build_schedule(name, num_ranks=p, num_microbatches=m), durations)
        cost = m * (f + b + w) + bubble
        assert longest_rank_s(timeline) == pytest.approx(cost)
        assert busiest_rank_s(timeline) == pytest.approx(m * (f + b + w))
        assert bubble_rate(timeline) == pytest.approx(bubble / cost, abs=1e-9)


@pytest.mark.parametrize(("p", "m"), [(2, 3), (4, 7), (4, 16), (8, 24)])
def test_zero_bubble_where_all_passes_are_alike(p, m):
    for name, v in (("zb-h2", 1), ("zb-2p", 1), ("zbv", 2)):
        schedule = build_schedule(name, num_ranks=p, num_microbatches=m, stages_per_rank=v)
        timeline = simulate(schedule, Durations.even(p * v))
        assert longest_rank_s(timeline) == 3 * v * m
        # Ranks begin one after another, so that the step takes a little longer than its ranks.
        assert max(timeline.end_s) == 3 * v * m + p - 1


@given(built(names=SEARCHED), st.floats(0.1, 4.0))
@settings(max_examples=40, deadline=None)
def test_the_search_prices_as_the_timeline_does(case, send):
    # Of its eight outcomes it takes the shortest by its own clock: no worse than zb-h1, whose
    # order it can reach, where stages are alike.
    schedule, _, kept = case
    p, m = schedule.num_ranks, schedule.num_microbatches
    durations = Durations.even(p, forward_s=1.1, backward_weight_s=0.7, send_s=send / 10)
    found = build_schedule(
        schedule.name, num_ranks=p, num_microbatches=m, durations=durations, kept_for_weights=kept
    )
    by_hand = build_schedule("zb-h1", num_ranks=p, num_microbatches=m)
    most = longest_rank_s(simulate(by_hand, durations))
    assert longest_rank_s(simulate(found, durations)) <= most + 1e-9


def test_v_placement():
    schedule = build_schedule("zbv", num_ranks=3, num_microbatches=2, stages_per_rank=2)
    assert schedule.stage_to_rank == (0, 1, 2, 2, 1, 0)
    assert [schedule.stages_of(rank) for rank in range(3)] == [(0, 5), (1, 4), (2, 3)]
    loop = build_schedule("interleaved", num_ranks=3, num_microbatches=3, stages_per_rank=2)
    assert loop.stages_of(1) == (1, 4)
    both = build_schedule("dualpipe", num_ranks=2, num_microbatches=4)
    assert both.stage_to_rank == (0, 1, 1, 0)  # two copies: down the ranks and up
    assert (both.copies, both.stages_per_copy) == (2, 2)
    assert [list(both.microbatches_of(stage)) for stage in range(4)] == [
        [0, 1],
        [0, 1],
        [2, 3],
        [2, 3],
    ]


def test_zb_h1_by_hand():
    # Figure 3 (top) with three ranks: rank r runs its first W after r + 1 I.
    schedule = build_schedule("zb-h1", num_ranks=3, num_microbatches=3)
    assert to_csv(schedule) == (
        "0F0,0F1,0F2,0I0,0W0,0I1,0W1,0I2,0W2\n"
        "1F0,1F1,1I0,1F2,1I1,1W0,1I2,1W1,1W2\n"
        "2F0,2I0,2F1,2I1,2F2,2I2,2W0,2W1,2W2\n"
    )


@pytest.mark.parametrize(
    ("ranks", "says"),
    [
        (("0F0 0I0", "1F0 1B0"), "0 W actions for 1 I actions"),
        (("0F0 0B0 0W0", "1F0 1B0"), "1 W actions for 0 I actions"),
        (("0F0 0W0 0I0", "1F0 1B0"), "never ends"),
        (("0F0 0I0 0W0", "1F1 1B1"), "its stage does not run this micro-batch"),
    ],
)
def test_a_wrong_split_is_refused(ranks, says):
    rows = tuple(tuple(parse_action(cell) for cell in row.split()) for row in ranks)
    with pytest.raises(InputError, match=says):
        Schedule(name="mine", num_microbatches=1, stage_to_rank=(0, 1), ranks=rows)


@pytest.mark.parametrize(
    ("name", "counts", "says"),
    [
        ("zbv", {"num_ranks": 2, "num_microbatches": 4}, "two stages per rank, got 1; use --vpp 2"),
        ("v-min", {"num_ranks": 2, "num_microbatches": 4}, "v-min has two stages"),
        ("zb-2p", {"num_ranks": 2, "num_microbatches": 4, "stages_per_rank": 2}, "one stage"),
        ("dualpipe", {"num_ranks": 3, "num_microbatches": 8}, "even numbers of ranks"),
        (
            "dualpipev",
            {"num_ranks": 3, "num_microbatches": 5, "stages_per_rank": 2},
            "needs 6 micro-batches or more on pp=3, there are 5",
        ),
        (
            "zb-1p",
            {"num_ranks": 2, "num_microbatches": 4, "durations": Durations.even(3)},
            "over 2 ranks needs durations of 2 stages, got 3",
        ),
        ("zb-1p", {"num_ranks": 2, "num_microbatches": 4, "kept_for_weights": 1.5}, "from 0 to 1"),
    ],
)
def test_counts_that_a_schedule_cannot_take(name, counts, says):
    with pytest.raises(InputError, match=says):
        build_schedule(name, **counts)


def test_names():
    assert set(schedule_names()) == {
        *("none", "gpipe", "1f1b", "interleaved", "interleaved-overlap"),
        *("zb-h1", "zb-h2", "zb-1p", "zb-2p", "zbv", "v-half", "v-min", "dualpipe", "dualpipev"),
    }


@pytest.mark.parametrize(("ranks", "count", "stages"), [(2, 4, 2), (4, 8, 2), (4, 12, 3)])
def test_a_pair_of_interleaved_overlap_is_of_two_micro_batches(ranks, count, stages):
    """A backward that runs beside a forward cannot need it: between its own forward and it there is
    another forward. Interleaved 1F1B runs both in a row on the last stage."""

    def in_a_row(name):
        made = build_schedule(name, num_ranks=ranks, num_microbatches=count, stages_per_rank=stages)
        return [
            rank
            for rank, row in enumerate(made.ranks)
            for one, other in pairwise(row)
            if (one.stage, one.microbatch) == (other.stage, other.microbatch)
        ]

    assert set(in_a_row("interleaved")) == {ranks - 1}
    # The last micro-batch of all has no other left.
    assert len(in_a_row("interleaved-overlap")) <= 1
    held = [
        most_in_flight(n, ranks, count, stages)[-1] for n in ("interleaved", "interleaved-overlap")
    ]
    assert held[1] == held[0] + 1


def test_a_file_of_its_own_is_all_that_a_new_schedule_needs(tmp_path):
    root = Path(__file__).parents[2]
    for package in ("profiles", "simulator"):
        (tmp_path / package).mkdir()
        for file in ("__init__.py", "errors.py", "action.py", "durations.py", "schedule.py"):
            if (root / package / file).exists():
                shutil.copy(root / package / file, tmp_path / package / file)
    shutil.copytree(root / "simulator" / "schedules", tmp_path / "simulator" / "schedules")
    (tmp_path / "simulator" / "schedules" / "mine.py").write_text(
        "from simulator.schedules.action import backward, forward\n"
        "from simulator.schedules.schedule import ScheduleKind, register\n"
        "@register(ScheduleKind(name='one-at-a-time'))\n"
        "def mine(num_ranks, num_microbatches, options):\n"
        "    rows = [[f(r, m) for m in range(num_microbatches) for f in (forward, backward)]\n"
        "            for r in range(num_ranks)]\n"
        "    return tuple(tuple(row) for row in rows)\n"
    )
    script = (
        "from simulator.schedules.schedule import build_schedule\n"
        "made = build_schedule('one-at-a-time', num_ranks=2, num_microbatches=2)\n"
        "print(*(' '.join(map(str, row)) for row in made.ranks), sep=', ')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.stdout == "0F0 0B0 0F1 0B1, 1F0 1B0 1F1 1B1\n", ran.stderr


def test_kinds_of_a_split_schedule():
    schedule = build_schedule("zbv", num_ranks=2, num_microbatches=3, stages_per_rank=2)
    kinds = {action.kind for row in schedule.ranks for action in row}
    assert kinds == {ActionKind.FORWARD, ActionKind.BACKWARD_INPUT, ActionKind.BACKWARD_WEIGHT}
