"""The accuracy pages: what they say, and that no text escapes its place."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from evidence.accuracy_html import accuracy_html
from evidence.accuracy_markdown import accuracy_markdown
from evidence.compared_run import ComparedRun, compare_runs
from evidence.groups import source_of
from evidence.ledger import LedgerEntry
from evidence.prospective import score
from evidence.releases import Release
from evidence.scatter import Sample, scatter_svg
from evidence.study import SOURCE_LEFT_OUT, AccuracyStudy, Column, lost_to_baseline
from profiles.errors import InputError
from shardwright.commands.tables.predict_runs import PredictedRun
from shardwright.reports.markdown_table import cell, percent
from shardwright.runs.run import PublishedRun
from shardwright.runs.run_table import Measured

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
    target = next(line for line in page.splitlines() if line.startswith("| zb | 4 | mean |"))
    assert target.endswith("| 4.0 % (5.0 %) | - | 5.0 % (8.0 %) | yes |")
    assert "bias +4.0 %; the 90 % intervals hold 50.0 % of the rows" in page
    assert "6 of 6 pairs of schedules" in page
    assert "- 1: unsupported: num_layers \\| is not stated" in page
    assert "The baseline is better on no source." in page
    assert "They have not been opened yet." in page
    assert "Left out of the fit" not in page
    assert "shardwright validate runs.csv" in page


def unseen_study() -> AccuracyStudy:
    """The rows above and one of llmf, with sources, devices and frameworks left out, an earlier
    release and two openings of the locked half."""
    other = compare_runs(
        [PublishedRun(row=9, id="llmf-001", family="moe")],
        [Measured(id="llmf-001", step_time_s=1.0)],
        [PredictedRun(id="llmf-001", step_time_s=0.8, step_time_low_s=0.7, step_time_high_s=1.4)],
    )
    rows = (*compared(1.04), *other)
    seen = (*compared(1.01), *other)
    sources = {row.run.id: source_of(row.run.id) for row in rows}
    first = LedgerEntry(
        date="2026-11-24", commit="aaa", rows_sha256="0", scores=score([*rows, *other])
    )
    return AccuracyStudy(
        columns=(
            Column(name="5-fold", rows=seen),
            Column(name=SOURCE_LEFT_OUT, rows=rows, folds=sources),
            Column(name="devices left out", rows=rows, folds=dict.fromkeys(sources, "h|100")),
        ),
        judged="5-fold",
        baseline=compared(1.5) + other,
        ledger=(first, replace(first, date="2026-11-25", commit="bbb", scores=score(seen))),
        releases=(Release(name="c731d44", predicted_on="2026-11-22", rows=rows),),
        locked=3,
        table="a table",
        command="shardwright validate runs.csv",
        date="2026-11-26",
    )


def lines_of(page: str, title: str) -> list[str]:
    """The lines under a heading up to the next one."""
    return re.split(r"\n##+ ", page.split(f"# {title}\n", 1)[1], maxsplit=1)[0].splitlines()


def test_the_page_begins_with_the_hardest_test() -> None:
    page = accuracy_markdown(unseen_study())
    titles = re.findall(r"^##+ (.*)$", page, flags=re.MULTILINE)
    assert titles[:8] == [
        "Locked sources",
        "Predictions made before the measurements were seen",
        "Left out of the fit",
        "Sources left out, by kind of run",
        "Sources left out, one by one",
        "Devices left out, one by one",
        "Step time by source",
        "Step time by family",
    ]
    assert "3 runs of locked sources removed." in page
    assert "**include the effect of the source**" in page


def test_the_ledger_leads_with_its_latest_entry() -> None:
    lines = lines_of(accuracy_markdown(unseen_study()), "Locked sources")
    assert any(
        line.startswith("Latest opening (2026-11-25, commit bbb): 6 rows, 1 without")
        for line in lines
    )
    # Medians of zb and llmf: 1 % and 20 %.
    assert "| median over sources | 10.5 % | <= 12.0 % | met |" in lines
    assert "| experts: median | 20.0 % | <= 16.0 % | missed |" in lines
    assert "| mainstream: median | - | <= 10.0 % | no rows |" in lines
    openings = [line for line in lines if line.startswith("| 2026-")]
    assert [line.split(" | ")[:4] for line in openings] == [
        ["| 2026-11-24", "aaa", "6", "2"],
        ["| 2026-11-25", "bbb", "5", "2"],
    ]


def test_releases_and_rows_left_out_are_scored_by_source() -> None:
    """Zero Bubble: four rows, 4 % too slow, two inside their interval of 0.5 to 2.5; llmf: 20 % too
    fast, inside 0.7 to 1.4, of experts. Their widths: 5 and 2."""
    page = accuracy_markdown(unseen_study())
    scores = "| 5 | 2 | 12.0 % | 12.0 % | -8.0 % | 60.0 % | 5.00 |"
    release = next(line for line in page.splitlines() if line.startswith("| c731d44 |"))
    assert release == f"| c731d44 | 2026-11-22 {scores} 4 | 5.0 % | 0.0 % |"
    summary = lines_of(page, "Left out of the fit")
    assert f"| sources left out {scores} - |" in summary
    assert f"| devices left out {scores} - |" in summary
    llmf = "1 | 1 | 20.0 % | 20.0 % | -20.0 % | 100.0 % | 2.00 | 20.0 %"
    kinds = lines_of(page, "Sources left out, by kind of run")
    assert [line for line in kinds if line.startswith("| experts |")] == [f"| experts | {llmf} |"]
    assert [line for line in kinds if "| all others |" in line] == [
        "| all others | 4 | 1 | 4.0 % | 4.0 % | +4.0 % | 50.0 % | 5.00 | 1.0 % |"
    ]
    assert f"| llmf | {llmf} |" in lines_of(page, "Sources left out, one by one")
    assert f"| h\\|100 {scores} 10.5 % |" in lines_of(page, "Devices left out, one by one")
    assert "With any source left out, its errors are below those of a constant" in page
    peaks = lines_of(page, "Peak memory by source")
    assert peaks[1].endswith("| source left out: mean | intervals hold |")
    assert peaks[3] == "| zb | 4 | 5.0 % | 5.0 % | +5.0 % | 0.0 % | 5.0 % | 0.0 % |"


def test_every_table_row_has_the_cells_of_its_head() -> None:
    width = 0
    pages = accuracy_markdown(study()) + accuracy_markdown(unseen_study())
    for line in pages.splitlines():
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
    assert "The baseline is better on zb (70.0 % against 50.0 %)." in accuracy_markdown(lost)


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
    for each in (study(), unseen_study()):
        tags = Tags()
        tags.feed(accuracy_html(each))
        assert tags.open == []
    page = accuracy_html(study())
    tags = Tags()
    tags.feed(page)
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
