"""`shardwright validate`: the project's own table by default, another on request, pages written."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from evidence.command import validate
from evidence.groups import source_of
from profiles.errors import DocumentError, UnknownNameError
from shardwright.commands.tables.predict_runs import PredictedRun, predicted_runs
from shardwright.runs.run import FIGURES, PublishedRun
from shardwright.runs.run_table import read_runs
from tests.shardwright.test_cli import shardwright

ROOT = Path(__file__).parents[2]
WAYS = ("sources", "frameworks", "devices")


def page_of(
    capsys: pytest.CaptureFixture[str], path: Path | None = None, failed: Path | None = None
) -> str:
    tables = [path] if path else None
    validate(tables, failed=failed, cross_validate=False, markdown=None, html=None)
    return capsys.readouterr().out


def section(page: str, title: str) -> list[list[str]]:
    """The cells of the rows of the first table under a heading."""
    text = re.split(r"\n##+ ", page.split(f"## {title}\n", 1)[1], maxsplit=1)[0]
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def subset(folder: Path, keep: str, **changes: str) -> Path:
    """The rows of our own table whose id begins so, with some cells replaced."""
    with FIGURES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    path = folder / "some.csv"
    with path.open("w", encoding="utf-8", newline="") as out:
        writer = csv.DictWriter(out, list(rows[0]))
        writer.writeheader()
        writer.writerows(row | changes for row in rows if row["id"].startswith(keep))
    return path


def test_without_arguments_the_projects_own_table_is_used() -> None:
    done = shardwright("validate")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# Accuracy\n")
    runs = read_runs(FIGURES)
    assert f"the project's own table of published runs: {len(runs)} runs" in done.stdout
    counts = Counter(source_of(run.id) for run in runs)
    rows = section(done.stdout, "Step time by source")
    assert {row[0]: int(row[1]) for row in rows} == counts
    for source, _, predicted, errors, *_ in rows:
        assert predicted == "100.0 %", source
        mean = float(errors.split(" %")[0])
        # Predicted as rows of a new source, without the effect of their own: 23.6 % at most, and
        # below 16 % while the coefficients contained it.
        assert 0.0 < mean < 25.0, source
    # The baseline of 45 % of the peak, in the last column, was better on no source while the
    # coefficients contained the effects of the sources.
    closer = re.search(r"The baseline is better on (.*)\.$", done.stdout, re.MULTILINE)
    assert closer is not None
    assert re.findall(r"([a-z0-9-]+) \(", closer[1]) == ["simumax-b200"]
    assert "## Targets" in done.stdout


def test_the_mean_error_is_the_rows_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run measured at ten seconds whatever it is: the page says how far each is from that."""
    path = subset(tmp_path, "korthikanti", step_time_s="10")
    page = page_of(capsys, path)
    assert "some.csv: 8 runs, 8 with a measured step time" in page
    out = tmp_path / "out.csv"
    from shardwright.commands.tables.predict_runs import predict_table

    predict_table(path, out)
    with out.open(encoding="utf-8", newline="") as file:
        errors = [float(row["step_time_s"]) / 10 - 1 for row in csv.DictReader(file)]
    mean = 100 * sum(map(abs, errors)) / len(errors)
    bias = 100 * sum(errors) / len(errors)
    (row,) = section(page, "Step time by source")
    assert row[3].startswith(f"{mean:.1f} %")
    assert row[4] == f"{bias:+.1f} %"


def test_pages_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = subset(tmp_path, "simumax")
    markdown, html = tmp_path / "a.md", tmp_path / "a.html"
    validate([path], failed=None, cross_validate=False, markdown=markdown, html=html)
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("written:") == 2
    page = markdown.read_text(encoding="utf-8")
    assert page.startswith("# Accuracy\n")
    assert "shardwright validate some.csv" in page
    text = html.read_text(encoding="utf-8")
    assert text.lstrip().lower().startswith("<!doctype html>")
    assert "simumax-b200" in text
    assert "<svg" in text
    # A page that is mailed around loads nothing.
    assert not re.search(r"(?:src|href)=\"https?://[^\"]*\.(?:js|css|png)", text)


def test_layouts_that_failed_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = tmp_path / "failed.csv"
    failed.write_text(
        "model,nodes,micro_batch,grad_accum,dp,pp,tp,zero_stage\n80B,1,1,32,8,1,1,0\n",
        encoding="utf-8",
    )
    page = page_of(capsys, subset(tmp_path, "simumax"), failed)
    assert "--failed failed.csv" in page
    assert "fits" in page.lower()


def test_left_out_rows_have_columns_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = subset(tmp_path, "simumax")
    validate([path], failed=None, cross_validate=True, markdown=None, html=None)
    page = capsys.readouterr().out
    for name in ("shipped", "5-fold", "leave one model out"):
        assert f"| {name}: mean / median |" in page
    assert "shardwright validate some.csv --cross-validate" in page
    assert "All rows (5-fold)" in page
    # Of one source nothing would be left to fit on.
    assert "left out of the fit" not in page


def test_two_tables_are_one_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each source, framework and device of either table is left out as a whole."""
    first = subset(tmp_path, "korthikanti")
    first = first.rename(tmp_path / "first.csv")
    second = subset(tmp_path, "simumax")
    validate([first, second], failed=None, cross_validate=True, markdown=None, html=None)
    page = capsys.readouterr().out
    assert "first.csv and some.csv: 18 runs" in page
    assert "shardwright validate first.csv some.csv --cross-validate" in page
    ways = section(page, "Left out of the fit")
    assert [row[:3] for row in ways] == [[f"{name} left out", "18", "2"] for name in WAYS]
    for title, names in (
        ("Sources", ["korthikanti-tab5", "simumax-b200"]),
        ("Devices", ["a100-sxm-80gb", "b200-sxm"]),
    ):
        rows = section(page, f"{title} left out, one by one")
        assert [row[0] for row in rows] == names
    peaks = page.split("## Peak memory by source\n", 1)[1]
    assert "source left out: mean" in peaks.splitlines()[1]


def test_locked_sources_are_neither_fitted_nor_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row gets the name of a locked source: it is not even predicted."""
    path = subset(tmp_path, "simumax")
    text = path.read_text(encoding="utf-8")
    path.write_text(
        text.replace("simumax-b200-llama3-70b-l12-tp4-pp1-dp2-cp1-mbc4,", "alcf-01,"),
        encoding="utf-8",
    )
    asked: list[str] = []

    def watched(runs: Sequence[PublishedRun]) -> tuple[PredictedRun, ...]:
        asked.extend(run.id for run in runs)
        return predicted_runs(runs)

    monkeypatch.setattr("evidence.command.predicted_runs", watched)
    page = page_of(capsys, path)
    assert "9 runs, 9 with a measured step time, 100.0 % predicted. 1 run of locked" in page
    assert len(asked) == 9
    assert "alcf-01" not in page
    assert not any(run_id.startswith("alcf") for run_id in asked)


def test_releases_of_a_table_are_on_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "prospective.csv"
    table.write_text(
        "id,release,predicted_on,measured_step_time_s,measured_peak_memory_gib,step_time_s,"
        "step_time_low_s,step_time_high_s,peak_memory_gib,peak_memory_low_gib,"
        "peak_memory_high_gib\n"
        "a-1,first,2026-11-22,2.0,,2.2,1,3,,,\n",
        encoding="utf-8",
    )
    path = subset(tmp_path, "simumax")
    validate([path], failed=None, prospective=table, markdown=None, html=None)
    page = capsys.readouterr().out
    (row,) = section(page, "Predictions made before the measurements were seen")
    assert row[:4] == ["first", "2026-11-22", "1", "1"]
    assert row[4:9] == ["10.0 %", "10.0 %", "+10.0 %", "100.0 %", "3.00"]
    assert row[9:] == ["0", "-", "-"]
    assert "--prospective prospective.csv" in page


def test_what_is_no_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DocumentError, match="no such file"):
        page_of(capsys, tmp_path / "none.csv")
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("id,num_layers,step_time\na,1,2\n", encoding="utf-8")
    with pytest.raises(UnknownNameError, match="Did you mean 'step_time_s'"):
        page_of(capsys, wrong)
    done = shardwright("validate", str(wrong))
    assert (done.returncode, done.stdout) == (2, "")
    assert "step_time_s" in done.stderr


def test_a_table_without_measurements_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = subset(tmp_path, "simumax", step_time_s="", peak_memory_gib="")
    page = page_of(capsys, path)
    assert "0 with a measured step time" in page
    assert "nan" not in page
