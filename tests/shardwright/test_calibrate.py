"""`profile --from`, `predict --calibration` and `predict --explain-run` as a user meets them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from profiles.document import write_text
from profiles.errors import DocumentError, MismatchError, ShardwrightError, UnknownNameError
from shardwright.cli import app
from shardwright.commands.tables.calibrate import (
    calibrate,
    explain_row,
    timed_runs,
)
from shardwright.commands.tables.predict_runs import predicted_runs
from shardwright.reports.brief.brief_terminal import brief_report
from shardwright.reports.brief.explanation import explanation_brief
from shardwright.runs.complete import complete_run
from shardwright.runs.run import FIGURES
from shardwright.runs.run_table import read_runs
from simulator.training_run.explain.explain_run import explain_run
from simulator.training_run.fit.recalibration import read_calibration


def table_with(path: Path, factor: float, *, count: int = 6) -> Path:
    """Rows of the project's own table, each said to take `factor` times what we predict."""
    with FIGURES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    known = {run.id: run for run in predicted_runs(read_runs(FIGURES, lenient=True))}
    device = next(row["device"] for row in rows if known[row["id"]].step_time_s)
    kept = [row for row in rows if known[row["id"]].step_time_s and row["device"] == device]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in kept[:count]:
        time_s = known[row["id"]].step_time_s
        assert time_s is not None
        writer.writerow({**row, "step_time_s": repr(factor * time_s)})
    write_text(path, text.getvalue())
    return path


def test_a_slower_cluster_is_learned_written_and_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, output = table_with(tmp_path / "runs.csv", 1.15), tmp_path / "my-cluster.toml"
    calibrate(source, output, force=False)
    printed = capsys.readouterr()
    for words in ("before", "after", "known to", "left out", "shipped coefficients"):
        assert words in printed.out
    assert max(map(len, printed.out.splitlines())) <= 100
    made = read_calibration(output)
    assert (made.source, made.runs) == ("runs.csv", 6)
    assert made.left_out_error < made.error_before
    assert made.error_before == pytest.approx(1 - 1 / 1.15, abs=2e-4)
    runs = read_runs(source)
    for before, after in zip(
        predicted_runs(runs), predicted_runs(runs, calibration=made), strict=True
    ):
        assert before.step_time_s is not None
        assert after.step_time_s is not None
        assert 1.0 < after.step_time_s / before.step_time_s < 1.3
        assert after.step_time_low_s is not None
        assert after.step_time_high_s is not None
        assert after.step_time_low_s < after.step_time_s < after.step_time_high_s
        assert after.peak_memory_gib == before.peak_memory_gib
    done = CliRunner().invoke(app, ["predict", "--runs", str(source), "--calibration", str(output)])
    assert done.exit_code == 0, done.output
    assert runs[0].id in done.stdout


def test_what_does_not_help_is_not_written_unless_forced(tmp_path: Path) -> None:
    source, output = table_with(tmp_path / "runs.csv", 1.0), tmp_path / "c.toml"
    with pytest.raises(MismatchError, match=r"is not written.*--force") as caught:
        calibrate(source, output, force=False)
    assert caught.value.exit_code == 2
    assert not output.exists()
    calibrate(source, output, force=True)
    assert read_calibration(output).runs == 6


def test_one_run_leaves_nothing_to_check_on(tmp_path: Path) -> None:
    source = table_with(tmp_path / "runs.csv", 1.3, count=1)
    with pytest.raises(MismatchError, match=r"1 configuration.*nothing is left to check"):
        calibrate(source, tmp_path / "c.toml", force=False)


def test_without_an_output_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = table_with(tmp_path / "runs.csv", 1.15)
    calibrate(source, None, force=False)
    assert "-o my-cluster.toml" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["runs.csv"]


@pytest.mark.parametrize("name", ["run.json", "run.txt"])
def test_a_run_of_a_plan_is_sent_to_compare(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text(json.dumps({"schema": "shardwright/measurement@1"}))
    with pytest.raises(DocumentError, match=r"shardwright compare plan\.json") as caught:
        timed_runs(path)
    assert "step_time_s" in str(caught.value)


def test_a_table_without_times_says_what_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("id,num_layers,step_time_s\na,12,\nb,24,0\n")
    with pytest.raises(DocumentError, match="none of its 2 rows has a step_time_s"):
        timed_runs(path)


def test_the_flags_need_a_table() -> None:
    done = CliRunner().invoke(app, ["predict", "--calibration", "c.toml"])
    assert done.exit_code == 2
    assert "--runs" in done.output


def test_an_explanation_fits_in_100_columns_and_cuts_nothing() -> None:
    for run in read_runs(FIGURES, lenient=True)[::9]:
        try:
            completed = complete_run(run)
        except ShardwrightError:
            continue
        console = Console(width=100, file=io.StringIO(), color_system=None)
        found = explain_run(completed)
        console.print(brief_report(explanation_brief(found)))
        assert isinstance(console.file, io.StringIO)
        text = console.file.getvalue()
        assert max(map(len, text.splitlines())) <= 100
        assert "…" not in text, run.id
        for words in ("step ", "coefficient", "rests on", "90 % interval of"):
            assert words in text


def test_an_unknown_run_names_the_nearest() -> None:
    known = read_runs(FIGURES)[0].id
    with pytest.raises(UnknownNameError, match=f"Did you mean '{known}'"):
        explain_row(FIGURES, known + "x", None)
