"""Comparing, and every form that a comparison is shown in."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from profiles.errors import DocumentError, MismatchError
from shardwright.analysis.comparison import Comparison, Row, compare_run, outdated_profile
from shardwright.reports.brief.brief_markdown import section_markdown
from shardwright.reports.brief.comparison_section import comparison_section, verdict
from shardwright.reports.brief.plan_page import report_html
from shardwright.reports.chrome_trace import chrome_trace
from tests.shardwright.hand_made import answer, run_of, slower


def test_errors_are_relative_to_what_was_measured() -> None:
    comparison = compare_run(answer(), run_of(answer()))
    rows = {row.name: row for row in comparison.rows}
    # 2.0 s predicted, 2.5 s measured: (2 - 2.5) / 2.5.
    assert comparison.step.error == pytest.approx(-0.2)
    # 2.5 lies above the interval's end of 2.2.
    assert comparison.step.inside is False
    # Forward 0.1 against 0.125 of wall and 0.1 of CPU time.
    assert rows["stage 0 forward"].error == pytest.approx(-0.2)
    assert rows["stage 0 forward"].cpu_error == pytest.approx(0.0)
    # Parts of the peak add up: 100 + 100 + 200 + 50 + 40 + 10 = 500 against 400.
    assert rows["rank 1 peak memory"].error == pytest.approx(0.25)
    assert rows["rank 0 optimizer"].error == pytest.approx(0.25)
    assert (comparison.undisturbed_steps, comparison.steps) == (1, 2)


def test_errors_that_cancel_are_named() -> None:
    step = Row(name="step", unit="s", predicted=1.0, measured=1.02, inside=True)

    def compared(forward: float, backward: float, **changed: bool) -> Comparison:
        # Four micro-batches of 0.1 s forward and 0.15 s backward, as measured.
        rows = (
            replace(step, **changed),
            Row(name="stage 0 forward", unit="s", predicted=forward, measured=0.1),
            Row(name="stage 0 backward", unit="s", predicted=backward, measured=0.15),
        )
        return replace(compare_run(answer(), run_of(answer())), rows=rows, micro_batches=4)

    # Off by 4 x 0.03 = 0.12 s and 4 x -0.05 = -0.2 s of 1.02 s.
    found = compared(0.13, 0.10).cancelling
    assert found is not None
    assert [row.name for row in found] == ["stage 0 forward", "stage 0 backward"]
    said = verdict(compared(0.13, 0.10))
    assert "stage 0 forward +30.0 %, stage 0 backward -33.3 %" in said
    # 4 x 0.01 s is 4 % of the step, less than its prediction may be off by.
    assert compared(0.11, 0.10).cancelling is None
    # A step outside its interval is no proof of anything.
    assert compared(0.13, 0.10, inside=False).cancelling is None


def test_a_profile_is_outdated_beyond_six_percent_of_cpu_time() -> None:
    def compared(measured_cpu: float | None) -> Comparison:
        row = Row(
            name="step: forward and backward",
            unit="s",
            predicted=1.0,
            measured=2.0,
            measured_cpu=measured_cpu,
        )
        return replace(compare_run(answer(), run_of(answer())), rows=(row,))

    assert outdated_profile(compared(None)) == ""
    assert outdated_profile(compared(1.0 / 1.05)) == ""
    # 1.0 s profiled, 0.8 s of CPU time: 25 % of those too slow.
    expected = "forward and backward ran 25 % faster than profiled, in CPU time"
    assert outdated_profile(compared(0.8)) == expected
    assert "slower" in outdated_profile(compared(1.25))


def test_a_run_of_another_plan_is_refused() -> None:
    with pytest.raises(MismatchError, match="the run is of another plan"):
        compare_run(slower(answer()), run_of(answer()))


def test_a_plan_file_without_prediction_is_refused() -> None:
    with pytest.raises(DocumentError, match="no prediction"):
        compare_run(replace(answer(), prediction=None), run_of(answer()))


def test_markdown_is_a_table_with_signed_errors() -> None:
    text = section_markdown(comparison_section(compare_run(answer(), run_of(answer()))))
    assert "| step | 2 s | 2.5 s | -20.0 % |  |  |" in text
    assert "Loss and gradients equal those of the unsplit model." in text


def test_cpu_time_is_not_compared_where_devices_compute() -> None:
    """There it is what the host took to launch, and says nothing of the profile."""
    gpu = replace(run_of(answer()), backend="nccl")
    text = section_markdown(comparison_section(compare_run(answer(), gpu)))
    assert "| step | 2 s | 2.5 s | -20.0 % |\n" in text
    assert "CPU" not in text
    assert outdated_profile(compare_run(answer(), gpu)) == ""
    assert "CPU time" not in report_html(answer(), gpu)


def test_the_report_is_one_file_that_loads_nothing_and_escapes_names() -> None:
    hostile = '<script>alert("x")</script>'
    page = report_html(answer(hostile), run_of(answer(hostile)))
    assert hostile not in page
    assert "&lt;script&gt;alert" in page
    assert len(page.encode()) < 3_000_000
    assert not re.search(r'(src|href)\s*=\s*"?(https?:)?//', page)
    assert "@import" not in page
    assert "url(" not in page
    for heading in ("Timeline of one step", "Memory over the step", "Sources"):
        assert heading in page


def test_the_trace_has_both_groups_on_one_track_per_rank_and_stream() -> None:
    events = chrome_trace(answer().prediction, run_of(answer()))["traceEvents"]
    groups = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert groups == ["predicted", "measured"]
    slices = [e for e in events if e["ph"] == "X"]
    assert [(e["pid"], e["name"], e["dur"]) for e in slices] == [
        (1, "0F0", pytest.approx(1e5)),
        (1, "1F0", pytest.approx(1e5)),
        (2, "0F0", pytest.approx(1.25e5)),
    ]
    assert len({(e["pid"], e["tid"]) for e in slices}) == 3
