"""`shardwright validate`: the project's own table by default, another on request, pages written."""

from __future__ import annotations

import csv
import re
from collections import Counter
from pathlib import Path

import pytest

from profiles.errors import DocumentError, UnknownNameError
from profiles.published.run import FIGURES
from profiles.published.run_table import read_runs
from shardwright.commands.validate import validate
from shardwright.validate.groups import source_of
from tests.shardwright.test_cli import shardwright

ROOT = Path(__file__).parents[2]


def page_of(
    capsys: pytest.CaptureFixture[str], path: Path | None = None, failed: Path | None = None
) -> str:
    tables = [path] if path else None
    validate(tables, failed=failed, cross_validate=False, markdown=None, html=None)
    return capsys.readouterr().out


def section(page: str, title: str) -> list[list[str]]:
    """The cells of the rows of the first table under a heading."""
    text = page.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
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
        assert 0.0 < mean < 16.0, source
    # The dumb baseline of 45 % of the peak stands beside and wins nowhere.
    assert "No source is predicted better by a constant 45 % MFU" in done.stdout
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
    for name in ("shipped", "5-fold", "leave one model out", "leave one source out"):
        assert name in page
    assert "shardwright validate some.csv --cross-validate" in page
    assert "Step time (5-fold)" in page
    assert page.index("**Sources that the fit has not seen** (each of 1 left out whole)") < 900


def test_two_tables_are_one_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each source of either table is left out whole, and the lead counts both; classes of runs
    stand below it."""
    first = subset(tmp_path, "korthikanti")
    first = first.rename(tmp_path / "first.csv")
    second = subset(tmp_path, "simumax")
    validate([first, second], failed=None, cross_validate=True, markdown=None, html=None)
    page = capsys.readouterr().out
    assert "(each of 2 left out whole)" in page
    assert "first.csv and some.csv: 18 runs" in page
    assert "shardwright validate first.csv some.csv --cross-validate" in page
    classes = [line for line in page.splitlines() if line.startswith("| none of these | ")]
    assert [line.split(" | ")[1:3] for line in classes] == [["17", "2"]]  # one is small
    peaks = page.split("## Peak memory by source\n", 1)[1]
    assert "source left out: mean" in peaks.splitlines()[1]


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
