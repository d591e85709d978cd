"""The accuracy pages: what they say, and that no text escapes its place."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import pytest

from profiles.errors import InputError
from profiles.published.measured import Measured
from profiles.published.run import PublishedRun
from shardwright.reports.markdown_table import cell, percent
from shardwright.validate.accuracy_html import accuracy_html
from shardwright.validate.accuracy_markdown import accuracy_markdown
from shardwright.validate.compared import ComparedRun, compare_runs
from shardwright.validate.predicted import PredictedRun
from shardwright.validate.scatter import Sample, scatter_svg
from shardwright.validate.study import SOURCE_LEFT_OUT, AccuracyStudy, Column, lost_to_baseline

NASTY = 'GPT | <script>alert("x")</script> & `co`\nnext'


def compared(factor: float) -> tuple[ComparedRun, ...]:
    """Four Zero Bubble rows, one BLOOM row that is too hard, predicted `factor` times too slow."""
    runs = [
        PublishedRun(
            row=i + 1, id=f"zb_{i}", model=NASTY, num_devices=8, global_batch=8, tp=1, pp=8
        )
        for i in range(4)
    ]
    runs.append(PublishedRun(row=5, id="bloom_1", model="176B"))
    measured = [Measured(id=f"zb_{i}", step_time_s=1.0 + i, peak_memory_gib=10.0) for i in range(4)]
    predicted = [
        PredictedRun(
            id=f"zb_{i}",
            step_time_s=(1.0 + i) * factor,
            step_time_low_s=0.5,
            step_time_high_s=2.5,
            peak_memory_gib=10.5,
        )
        for i in range(4)
    ]
    predicted.append(PredictedRun(id="bloom_1", status="unsupported: num_layers | is not stated"))
    return compare_runs(runs, measured, predicted)


def study(factor: float = 1.04) -> AccuracyStudy:
    return AccuracyStudy(
        columns=(
            Column(name="in-sample", rows=compared(1.01)),
            Column(name="5-fold", rows=compared(factor)),
        ),
        judged="5-fold",
        baseline=compared(1.5),
        table="a table <b>",
        command="shardwright validate runs.csv",
        date="2026-11-21",
    )


def test_the_markdown_page_says_what_the_rows_say() -> None:
    page = accuracy_markdown(study())
    assert page.startswith("# Accuracy\n")
    assert "5 runs, 4 with a measured step time, 80.0 % predicted" in page
    sources = next(line for line in page.splitlines() if line.startswith("| zb | 4 |"))
    assert "| 1.0 % / 1.0 % | 4.0 % / 4.0 % | +4.0 % | 50.0 % | 1.00 | 50.0 % / 50.0 % |" in sources
    target = next(line for line in page.splitlines() if line.startswith("| zb | - |"))
    assert target.endswith("| 4.0 % (5.0 %) | - | 5.0 % (8.0 %) | yes |")
    assert "- The 90 % intervals hold 50.0 % of the measured step times" in page
    assert "- Of the rows that state devices, tp and pp, 100.0 % have a prediction" in page
    assert "6 of 6 pairs of schedules" in page
    assert "- 1: unsupported: num_layers \\| is not stated" in page
    assert "No source is predicted better by a constant 45 % MFU." in page
    assert "shardwright validate runs.csv" in page


def test_what_intervals_hold_of_sources_left_out_is_said() -> None:
    """Two of four Zero Bubble rows lie inside, 1 of 1 of another source; the average over sources
    weighs both alike."""
    other = compare_runs(
        [PublishedRun(row=9, id="llmf-001")],
        [Measured(id="llmf-001", step_time_s=1.0)],
        [PredictedRun(id="llmf-001", step_time_s=1.0, step_time_low_s=0.9, step_time_high_s=1.1)],
    )
    rows = (*compared(1.04), *other)
    found = AccuracyStudy(
        columns=(Column(name="5-fold", rows=rows), Column(name=SOURCE_LEFT_OUT, rows=rows)),
        judged="5-fold",
        baseline=rows,
        table="a table",
        command="shardwright validate runs.csv",
        date="2026-11-21",
    )
    page = accuracy_markdown(found)
    assert "hold 75.0 % of its rows on average over the sources, 60.0 % of all rows" in page
    assert "hold 75.0 % of a source's rows on average, 50.0 % at least (zb)" in page
    assert "Peak memory: mean error 5.0 % over 4 rows, 5.0 % on average over 1 sources" in page
    assert "No source left out is predicted better by a constant 45 % of peak" in page
    assert "With a whole source left out" not in accuracy_markdown(study())


def test_every_table_row_has_the_cells_of_its_head() -> None:
    width = 0
    for line in accuracy_markdown(study()).splitlines():
        if not line.startswith("|"):
            width = 0
            continue
        cells = line.replace("\\|", "").count("|")
        width = width or cells
        assert cells == width, line
        assert "<script" not in line


def test_losing_to_the_baseline_is_said() -> None:
    lost = study(factor=1.7)
    assert lost_to_baseline(lost) == (("zb", pytest.approx(0.7), pytest.approx(0.5)),)
    assert (
        "A constant 45 % MFU is more accurate on: zb (70.0 % against 50.0 %)"
        in accuracy_markdown(lost)
    )


class Tags(HTMLParser):
    """Counts tags and remembers whether they close in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "line"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_html_page_is_whole_and_escaped() -> None:
    page = accuracy_html(study())
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert "script" not in tags.seen
    assert "&lt;script&gt;" in page
    assert "a table &lt;b&gt;" in page
    assert "<a" not in page  # no link, no address
    assert "src=" not in page
    assert tags.seen.count("circle") == 8  # four step times, four peaks of memory
    assert "zb_0: measured 1 s, predicted 1.04 s (+4.0 %)" in page


def test_a_scatter_by_hand() -> None:
    """From 1 to 100 both axes span 1 to 100: 10 is in the middle."""
    samples = [
        Sample(group="a", measured=1.0, predicted=100.0, title="first"),
        Sample(group="a", measured=10.0, predicted=10.0, title="second"),
    ]
    drawn = scatter_svg("t", samples, lambda value: f"{value:g}")
    first, second = (
        (float(x), float(y)) for x, y in re.findall(r'circle cx="([\d.]+)" cy="([\d.]+)"', drawn)
    )
    left, right, top, bottom = 74.0, 744.0, 10.0, 570.0  # the frame of the picture
    assert first == (left, top)
    assert second == pytest.approx(((left + right) / 2, (top + bottom) / 2), abs=0.1)
    assert re.findall(r'text-anchor="end">([^<]*)', drawn) == ["1", "10", "100"]
    rules = re.findall(r'x1="(.*?)" y1="(.*?)" x2="(.*?)" y2="(.*?)" stroke="#8a97a5"', drawn)
    assert len(rules) == 3
    for rule in rules:
        x1, y1, x2, y2 = map(float, rule)
        assert left <= x1 <= x2 <= right
        assert top <= y2 <= y1 <= bottom


def test_a_study_of_unlike_columns_is_refused() -> None:
    good = study()
    with pytest.raises(InputError, match="'10-fold' that targets apply to is none of in-sample"):
        AccuracyStudy(
            columns=good.columns,
            judged="10-fold",
            baseline=good.baseline,
            table="",
            command="",
            date="",
        )
    with pytest.raises(InputError, match="same runs in one order"):
        AccuracyStudy(
            columns=good.columns,
            judged="5-fold",
            baseline=good.baseline[:2],
            table="",
            command="",
            date="",
        )


def test_small_formats() -> None:
    assert (percent(0.0423), percent(0.1, signed=True), percent(math.nan)) == (
        "4.2 %",
        "+10.0 %",
        "-",
    )
    assert cell("a|b\n<c> `d`") == "a\\|b &lt;c&gt; \\`d\\`"
