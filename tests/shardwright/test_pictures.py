"""The report's pictures and parts: breakdown, timeline, memory, roofline, recipe."""

from __future__ import annotations

import shlex
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.document import content_hash
from shardwright.analysis.breakdown import (
    critical_rank,
    measured_bubble_s,
    measured_parts,
    predicted_parts,
)
from shardwright.reports.brief.plan_page import report_html
from shardwright.reports.brief.roofline_picture import roof_flop_per_s, roofline_picture
from shardwright.reports.memory_picture import memory_picture
from shardwright.reports.picture import WIDTH, apart, even_ticks
from shardwright.reports.reproduce import plan_command, recipe
from shardwright.reports.roofline import Roofline, find_roofline, roofline
from shardwright.reports.timeline_picture import MOST_RANKS, timeline_picture
from simulator.values.plan import Recompute
from simulator.values.prediction import Event
from tests.shardwright.fixed_pair import MIB, answer, events, fixed_roofline, plan, prediction, run
from tests.shardwright.typed_axes import axes_of_texts
from tests.simulator import hand_made

# --- where the step goes ----------------------------------------------------------------------


def test_the_parts_of_the_critical_rank() -> None:
    # Four micro-batches of 0.1 + 0.2 s, 0.1 s of optimizer, the rest of 1.6 s is waiting.
    first = predicted_parts(plan(), prediction())[0]
    assert first.forward_s == pytest.approx(0.4)
    assert first.backward_s == pytest.approx(0.8)
    assert first.waiting_s == pytest.approx(0.3)
    assert first.step_s == pytest.approx(1.6)
    assert critical_rank(prediction()) == 0


def test_the_bubble_of_a_run_is_what_its_stage_times_leave_idle() -> None:
    # (4 + 2 - 1) x 0.33 s less the 4 x 0.33 s of work; the other 0.05 s of waiting are no bubble.
    parts = measured_parts(plan(), run())[0]
    assert parts.waiting_s == pytest.approx(0.38)
    assert measured_bubble_s(plan(), run(), parts) == pytest.approx(0.33)
    assert parts.step_s == pytest.approx(1.78)


def test_a_run_without_some_stage_has_no_bubble() -> None:
    cut = replace(run(), stages=run().stages[:1])
    assert measured_bubble_s(plan(), cut, measured_parts(plan(), cut)[0]) is None


# --- drawing ----------------------------------------------------------------------------------


@given(st.lists(st.floats(0, 200), max_size=12))
def test_labels_stay_apart_in_order_and_inside(wanted: list[float]) -> None:
    placed = apart(wanted, 13, 0, 200)
    assert len(placed) == len(wanted)
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    for before, after in pairwise(order):
        assert placed[after] - placed[before] >= 13 - 1e-6
    assert all(-1e-6 <= y <= 200 for y in placed)


@given(st.floats(1e-7, 1e7), st.integers(3, 12))
def test_ticks_are_round_even_and_inside(end: float, most: int) -> None:
    ticks = even_ticks(end, most)
    assert 2 <= len(ticks) <= most + 1
    assert 0 <= ticks[-1] <= end * (1 + 1e-5)
    step = ticks[1]
    assert float(f"{step:.0e}") == pytest.approx(step)


def test_predicted_lanes_stand_above_measured_ones() -> None:
    drawn = timeline_picture(events(0.1, 0.1), events(0.11, 0.08))
    heights = {group: {b.y for b in drawn.boxes if group in b.title} for group in GROUPS}
    assert max(heights["predicted"]) < min(heights["measured"])
    assert [len(heights[group]) for group in GROUPS] == [2, 2]
    # The longest ends where the axis does.
    assert max(b.x + b.width for b in drawn.boxes) == pytest.approx(WIDTH, abs=0.1)


GROUPS = ("predicted", "measured")


def test_a_long_step_of_many_ranks_stays_small() -> None:
    many = tuple(
        Event(rank=r, stream=s, name=f"{r}{kind}{i}", start_s=i * 1.0, end_s=i + 0.7)
        for r in range(64)
        for i in range(800)
        for s, kind in (("compute", "F"), ("send", "SEND_F"))
    )
    drawn = timeline_picture(many, many)
    assert drawn.boxes == ()
    assert f"{MOST_RANKS} of 64 ranks" in drawn.note
    assert any(label.text == "rank 0" for label in drawn.labels)
    assert any(label.text == "rank 63" for label in drawn.labels)
    assert sum(len(path.data) for path in drawn.paths) < 1_000_000
    full = replace(prediction(), events=many)
    page = report_html(replace(answer(), prediction=full), None)
    assert len(page.encode()) < 3_000_000


@pytest.mark.parametrize(
    ("capacity_mib", "where"), [(510, "line"), (1400, "line"), (1501, "text"), (40_000, "text")]
)
def test_the_capacity_is_a_line_or_says_that_it_is_far_above(
    capacity_mib: float, where: str
) -> None:
    # Peaks of 500 MiB: three times that is the border.
    drawn = memory_picture(prediction(capacity_bytes=capacity_mib * MIB), run())
    (said,) = [label.text for label in drawn.labels if "the device has" in label.text]
    assert ("times the highest peak" in said) == (where == "text")
    assert sum(path.width == 2 for path in drawn.paths) == (where == "line")


def test_measured_peaks_are_dashed_lines_with_labels_apart() -> None:
    drawn = memory_picture(prediction(), run())
    assert sum(path.dashed for path in drawn.paths) == 2
    heights = sorted(label.y for label in drawn.labels if "measured peak" in label.text)
    assert heights[1] - heights[0] >= 13 - 0.2


# --- roofline ---------------------------------------------------------------------------------


def test_a_points_roof_is_the_lower_of_slope_and_ceiling() -> None:
    found = fixed_roofline()
    op = found.points[0]
    # 10 flop/byte x 50 GB/s = 500 GFLOP/s, above the 200 of the device; at 2 flop/byte 100.
    assert roof_flop_per_s(op, found) == 200e9
    assert roof_flop_per_s(replace(op, moved_bytes=op.flop / 2), found) == 100e9
    assert op.rate_flop_per_s == 100e9


def test_every_mark_says_on_hover_what_its_time_rests_on() -> None:
    drawn = roofline_picture(fixed_roofline())
    assert drawn is not None
    titles = [path.title for path in drawn.paths if path.filled]
    assert len(titles) == 4
    for method in ("measured", "interpolated", "assumed"):
        assert any(f"time {method}" in title for title in titles)
    assert roofline_picture(Roofline(missing="no trace")) is None


def test_rooflines_of_a_hand_made_model() -> None:
    graph, cluster = hand_made.graph(), hand_made.cluster(1, 2)
    made = hand_made.plan(pp=2)
    half = made.stages[0].num_blocks
    sampled = replace(run(), plan_hash=content_hash(made))
    found = roofline(made, graph, cluster, sampled, rank=0)
    ops = [p for p in found.points if p.level == "op"]
    own = [graph.kinds[ref.kind] for ref in graph.chain[:half]]
    # The ops' flop over all calls is that of the rank's blocks over four micro-batches.
    total = sum(block.forward_flop + block.backward_flop for block in own)
    assert sum(p.flop * p.count for p in ops) == pytest.approx(4 * total)
    stages = [p for p in found.points if p.level == "stage"]
    assert [p.name for p in stages[::2]] == ["stage 0 on rank 0", "stage 1 on rank 1"]
    assert stages[0].rate_flop_per_s == pytest.approx(sum(b.forward_flop for b in own) / 0.11)
    assert {p.method for p in found.points} <= {"measured", "interpolated", "assumed"}


def test_without_model_or_cluster_the_page_says_why() -> None:
    found = find_roofline(plan(), prediction(), run())
    assert found.points == ()
    assert "2xfixed" in found.missing
    page = report_html(answer(), run(), roofline=found)
    assert "Not drawn:" in page


def test_a_cluster_of_other_content_is_refused() -> None:
    other = replace(plan(), model="gpt2", cluster="2xh100-sxm")
    assert "another '2xh100-sxm'" in find_roofline(other, prediction(), None).missing


# --- reproducing ------------------------------------------------------------------------------


def flags_of(command: str) -> dict[str, str]:
    words = shlex.split(command)
    return dict(zip(words[3::2], words[4::2], strict=True))


def test_the_command_pins_every_axis_to_the_plans_own_value() -> None:
    flags = flags_of(plan_command(plan()))
    axes = ("micro_batch", "tp", "pp", "dp", "zero", "vpp", "recompute", "schedule")
    space = axes_of_texts(
        {axis: flags["--" + axis.replace("_", "-")] for axis in axes}
    ).for_blocks()
    assert (space.tp, space.pp, space.dp, space.vpp) == ((1,), (2,), (1,), (1,))
    assert (space.micro_batch, space.zero, space.schedule) == ((2,), (0,), ("1f1b",))
    assert space.recompute == (Recompute.NONE, Recompute.FULL)
    assert flags["--optimizer"] == "adamw"
    assert flags["--seq"] == "16"
    assert flags["--seed"] == "3"


def test_a_hostile_model_name_stays_one_word() -> None:
    command = plan_command(replace(plan(), model="x; rm -rf $HOME"))
    assert shlex.split(command)[2] == "x; rm -rf $HOME"


def test_the_recipe_names_versions_hashes_and_the_first_command() -> None:
    made = recipe(
        plan(), run(), version="2.0", provenance={"command": "shardwright plan x", "version": "1.0"}
    )
    facts = dict(made.facts)
    assert facts["plan made by"] == "shardwright plan x"
    assert facts["shardwright"] == "1.0 (report by 2.0)"
    assert facts["torch"] == "2.13.0"
    assert "fedcba9876543210" in facts["cluster"]
    assert made.commands[1] == "shardwright run plan.json --steps 3 --check -o run.json"
    local = recipe(replace(plan(), cluster="local"), None, version="1.0")
    assert local.commands[0].startswith("shardwright profile --devices 2 --model fixed")


def test_what_comes_from_files_is_escaped_everywhere() -> None:
    hostile = '"><script>alert(1)</script>'
    assert plan().model != hostile
    found = answer()
    assert found.plan is not None
    assert found.prediction is not None
    bad = replace(
        found,
        plan=replace(found.plan, model=hostile, cluster=hostile, cluster_hash=hostile),
        prediction=replace(
            found.prediction,
            limit=hostile,
            events=(Event(rank=0, stream=hostile, name=hostile, start_s=0.0, end_s=1.0),),
            sources=tuple(replace(t, name=hostile, source=hostile) for t in prediction().sources),
        ),
        assumptions=(hostile,),
        alternatives=tuple(replace(a, why_not_first=hostile) for a in found.alternatives),
    )
    measured = replace(
        run(), plan_hash=content_hash(bad.plan), machine=hostile, versions={hostile: hostile}
    )
    points = tuple(replace(p, name=hostile, source=hostile) for p in fixed_roofline().points)
    page = report_html(
        bad,
        measured,
        roofline=replace(fixed_roofline(), device=hostile, points=points),
        provenance={"command": hostile, "version": hostile},
    )
    assert page.count("<script") == 1  # the page's own, for zooming
    assert "alert(1)</script>" not in page
