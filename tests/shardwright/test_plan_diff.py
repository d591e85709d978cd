"""The difference of two plans: what changed, what it brings, and why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from profiles.document import write_document
from shardwright.analysis.plan_diff import diff_plans, plan_diff_data
from shardwright.reports.brief.brief_markdown import section_markdown
from shardwright.reports.brief.comparison_section import diff_section
from simulator.values.plan import PLAN_SCHEMA, Recompute, Stage
from simulator.values.plan_file import Infeasibility, PlanFile
from simulator.values.prediction import Component, Interval, Part
from tests.shardwright.golden import check_golden
from tests.shardwright.hand_made import answer
from tests.shardwright.test_cli import shardwright


def quicker() -> PlanFile:
    """The plan of hand_made without recomputation, at micro-batch 4: 1.6 s instead of 2.0 s.

    Compute 1.5 -> 1.3 s and bubble 0.4 -> 0.15 s, a send of 0.05 s is new, the optimizer stays:
    1.3 + 0.15 + 0.05 + 0.1 = 1.6. Activations 50 -> 250 bytes, so the peak 500 -> 700.
    """
    before = answer()
    assert before.plan is not None
    assert before.prediction is not None
    ranks = tuple(replace(rank, activations_bytes=250.0) for rank in before.prediction.ranks)
    return replace(
        before,
        step_time_s=1.6,
        plan=replace(
            before.plan,
            micro_batch=4,
            stages=tuple(
                Stage(first_block=k, last_block=k + 2, recompute=(Recompute.NONE,) * 2)
                for k in (0, 2)
            ),
        ),
        prediction=replace(
            before.prediction,
            step_time_s=Interval(value=1.6, low=1.5, high=1.7),
            components=(
                Component(name=Part.COMPUTE, time_s=1.3),
                Component(name=Part.BUBBLE, time_s=0.15),
                Component(name=Part.CUT, time_s=0.05),
                Component(name=Part.OPTIMIZER, time_s=0.1),
            ),
            tokens_per_s=Interval(value=80.0, low=75.0, high=85.0),
            usd_per_million_tokens=Interval(value=1.0, low=0.9, high=1.1),
            peak_memory_bytes=Interval(value=700.0, low=650.0, high=750.0),
            ranks=ranks,
        ),
    )


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    first, second = tmp_path / "old.json", tmp_path / "new.json"
    write_document(first, answer(), schema=PLAN_SCHEMA)
    write_document(second, quicker(), schema=PLAN_SCHEMA)
    return str(first), str(second)


def test_the_reason_is_the_parts_that_moved_most() -> None:
    diff = diff_plans(answer(), quicker())
    # Of -0.4 s the bubble is -0.25 s, compute -0.2 s, the send +0.05 s. [1.5, 1.7] lies under
    # [1.8, 2.2], so nothing is said of overlapping intervals.
    assert diff.reason == (
        "the second is 20 % faster: 250 ms less bubble and 200 ms less compute, against 50 ms "
        "more sends between stages, for 200 B more memory"
    )
    step = diff.figures[0]
    assert (step.name, step.difference) == ("step", pytest.approx(-0.4))
    assert step.relative == pytest.approx(-0.2)
    moved = {d.name: (d.before, d.after) for d in diff.decided}
    assert moved == {
        "micro-batch": ("2 (4 per step)", "4 (2 per step)"),
        "recompute": ("full 2 blocks, none 2 blocks", "none 4 blocks"),
    }
    assert diff.asked == ()


def test_parts_add_up_to_the_step_and_memory_to_the_peak() -> None:
    diff = diff_plans(answer(), quicker())
    assert sum(part.before or 0.0 for part in diff.parts) == pytest.approx(2.0)
    assert sum(part.after or 0.0 for part in diff.parts) == pytest.approx(1.6)
    assert sum(part.before or 0.0 for part in diff.memory) == 500.0
    assert sum(part.after or 0.0 for part in diff.memory) == 700.0


def test_the_other_way_round_everything_changes_its_sign() -> None:
    there, back = diff_plans(answer(), quicker()), diff_plans(quicker(), answer())
    for a, b in zip(there.figures + there.memory, back.figures + back.memory, strict=True):
        assert (a.before, a.after) == (b.after, b.before)
        assert a.difference == -(b.difference or 0.0)
    assert back.reason.startswith("the second is 25 % slower: 250 ms more bubble")


def test_overlapping_intervals_and_other_questions_are_said() -> None:
    other = quicker()
    assert other.prediction is not None
    assert other.plan is not None
    wide = replace(other.prediction, step_time_s=Interval(value=1.6, low=1.2, high=2.0))
    unsure = replace(other, prediction=wide, plan=replace(other.plan, cluster="4xtoy"))
    reason = diff_plans(answer(), unsure).reason
    assert "Their intervals overlap, so the order is not certain" in reason
    assert "Their inputs differ (cluster)" in reason


def test_an_infeasible_answer_is_compared_by_its_words() -> None:
    why = Infeasibility(
        nearest="tp1 pp1",
        stage=0,
        term="activations",
        needed_bytes=2.0,
        capacity_bytes=1.0,
        relaxations=(),
    )
    nothing = PlanFile(
        status="infeasible", search_time_s=1.0, cells_considered=3, infeasibility=why
    )
    diff = diff_plans(answer(), nothing)
    assert diff.reason == "one plan file does not have a plan, so there are no times to compare"
    assert ("status", "optimal", "infeasible") in [
        (d.name, d.before, d.after) for d in diff.decided
    ]
    assert all(change.after is None for change in diff.figures)
    assert "activations of stage 0 of tp1 pp1" in section_markdown(diff_section(diff))


def test_equal_plans_are_equal_however_long_they_took() -> None:
    diff = diff_plans(answer(), replace(answer(), search_time_s=9.0))
    assert diff.equal
    assert section_markdown(diff_section(diff)) == "#### The two plans are equal.\n"


def test_the_terminal(pair: tuple[str, str]) -> None:
    done = shardwright("compare", *pair)
    assert done.returncode == 0, done.stderr
    assert all(len(line) <= 100 for line in done.stdout.splitlines())
    check_golden("plan_diff_terminal.txt", done.stdout)


def test_the_markdown_and_the_json(pair: tuple[str, str]) -> None:
    done = shardwright("compare", *pair, "--markdown", "-")
    assert done.returncode == 0, done.stderr
    check_golden("plan_diff.md", done.stdout)
    data = json.loads(shardwright("compare", *pair, "--json").stdout)
    assert data == json.loads(json.dumps(plan_diff_data(diff_plans(answer(), quicker()))))
    assert data["equal"] is False
    assert {"before", "after", "difference", "relative"} <= set(data["parts"][0])
