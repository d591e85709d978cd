"""`shardwright validate`: compare predictions with a table of measured runs."""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from evidence.accuracy_html import accuracy_html
from evidence.accuracy_markdown import accuracy_markdown
from evidence.baseline import predict_baseline
from evidence.compared_run import compare_runs
from evidence.crossvalidate import (
    device_folds,
    framework_folds,
    model_folds,
    plain_folds,
    source_folds,
)
from evidence.ledger import LEDGER_FILE, read_ledger
from evidence.prospective import is_locked
from evidence.releases import read_releases
from evidence.study import SOURCE_LEFT_OUT, AccuracyStudy, Column
from evidence.traced_runs import traced_predictions
from profiles.document import write_text
from shardwright.commands.tables.predict_runs import PredictedRun, predicted_runs
from shardwright.console.output import Heartbeat, need_room_for, note, show, write_or_print
from shardwright.runs.run import FIGURES, PublishedRun
from shardwright.runs.run_table import Measured, read_measured, read_runs
from simulator.memory.footprint import GIB
from simulator.values.prediction import Interval

if TYPE_CHECKING:
    from evidence.cross_fit import FitTable
    from evidence.memory_fit import MemoryTable

IN_SAMPLE = "shipped"
FIVE_FOLD = "5-fold"
# Columns of the fits that leave rows out, and the folds of each.
_WAYS: tuple[tuple[str, Callable[[FitTable | MemoryTable], dict[str, str]]], ...] = (
    (FIVE_FOLD, lambda table: plain_folds(table.published)),
    # In batches, since a refit per model is slow.
    ("leave one model out", lambda table: model_folds(table.published, batches=10)),
    (SOURCE_LEFT_OUT, lambda table: source_folds(table.published)),
    ("frameworks left out", lambda table: framework_folds(table.runs)),
    ("devices left out", lambda table: device_folds(table.runs)),
)
# Those whose folds are everything of one name.
_WHOLE = (SOURCE_LEFT_OUT, "frameworks left out", "devices left out")

EXAMPLES = (
    "Examples:\n\n  shardwright validate\n\n  shardwright validate runs.csv --cross-validate "
    "--markdown accuracy.md"
)


def validate(
    tables: Annotated[
        list[Path] | None,
        typer.Argument(metavar="RUNS", help="tables of runs (default: the shipped table)"),
    ] = None,
    failed: Annotated[
        Path | None, typer.Option("--failed", help="table of layouts that ran out of memory")
    ] = None,
    cross_validate: Annotated[
        bool, typer.Option("--cross-validate", help="refit without the predicted rows")
    ] = False,
    traced: Annotated[
        bool, typer.Option("--traced", help="in addition, predict from traced modules")
    ] = False,
    prospective: Annotated[
        Path | None,
        typer.Option("--prospective", help="table of predictions of earlier releases"),
    ] = None,
    modules: Annotated[
        Path | None,
        typer.Option("--modules", help="table of measured steps of modules instead of runs"),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="write a Markdown page")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="write an HTML page")] = None,
) -> None:
    """Predict every run, compare, and print or write the page.

    cross_validate  refit the coefficients without the rows that they predict: rows, models,
                    sources, frameworks, devices
    traced          predict also from figures of modules that are built and traced

    Runs of locked sources (`prospective.py`) are removed.
    """
    need_room_for(markdown, html)
    if modules is not None:
        if tables or failed or cross_validate or traced or prospective or html:
            raise typer.BadParameter("--modules goes with --markdown alone")
        # Here, since only tables of modules need what traces a step on meta tensors.
        from evidence.validate_modules import validate_modules

        validate_modules(modules, markdown)
        return
    paths = tables or [FIGURES]
    given = [run for path in paths for run in read_runs(path, lenient=True)]
    published = tuple(run for run in given if not is_locked(run.id))
    measured = tuple(row for path in paths for row in read_measured(path))
    judged = FIVE_FOLD if cross_validate else IN_SAMPLE
    with Heartbeat("refitting and predicting" if cross_validate else "predicting"):
        shipped = predicted_runs(published)
        columns = [_column(IN_SAMPLE, published, measured, shipped)]
        if cross_validate:
            columns += _left_out(published, measured, shipped)
    study = AccuracyStudy(
        columns=tuple(columns),
        judged=judged,
        baseline=compare_runs(published, measured, predict_baseline(published)),
        failed=predicted_runs(read_runs(failed)) if failed is not None else (),
        traced=compare_runs(published, measured, traced_predictions(published)) if traced else (),
        ledger=read_ledger(LEDGER_FILE),
        releases=read_releases(prospective) if prospective is not None else (),
        locked=len(given) - len(published),
        table=_named(tables),
        command=_command(tables or [], failed, cross_validate, traced, prospective),
        date=datetime.date.today().isoformat(),
    )
    page = accuracy_markdown(study)
    if markdown is not None:
        write_or_print(markdown, page)
    if html is not None:
        write_text(html, accuracy_html(study))
        note(f"written: {html}")
    if markdown is None:
        if sys.stdout.isatty():
            show(Text(page))
        else:
            sys.stdout.write(page)


def _column(
    name: str,
    published: Sequence[PublishedRun],
    measured: Sequence[Measured],
    predicted: Sequence[PredictedRun],
) -> Column:
    return Column(name=name, rows=compare_runs(published, measured, predicted))


def _left_out(
    published: Sequence[PublishedRun],
    measured: Sequence[Measured],
    shipped: Sequence[PredictedRun],
) -> list[Column]:
    """The columns of the fits that leave rows out."""
    from evidence.cross_fit import fit, fit_table, intervals, left_out
    from evidence.memory_fit import left_out_bytes, left_out_intervals, memory_table

    table = fit_table(published, measured)
    whole = fit(table)
    peaks = memory_table(published, measured)
    found: list[Column] = []
    for name, folds_of in _WAYS:
        folds, peak_folds = folds_of(table), folds_of(peaks)
        whole_folds = name in _WHOLE
        if whole_folds and len({*folds.values()}) < 2:
            continue  # no other row is left to fit on
        # Other rows of the same source remain unless a fold holds whole sources.
        steps = intervals(table, left_out(table, folds, start=whole, own=not whole_folds))
        by_id = {run.id: step for run, step in zip(table.runs, steps, strict=True)}
        bands = left_out_intervals(peaks, left_out_bytes(peaks, peak_folds), peak_folds)
        memory = {run.id: band for run, band in zip(peaks.runs, bands, strict=True)}
        predicted = [_with_memory(_with_time(row, by_id), memory) for row in shipped]
        rows = compare_runs(published, measured, predicted)
        found.append(Column(name=name, rows=rows, folds=folds if whole_folds else {}))
    return found


def _with_time(row: PredictedRun, steps: Mapping[str, Interval]) -> PredictedRun:
    """The row with the step time and the interval of the other folds' fit."""
    found = steps.get(row.id)
    if found is None or row.step_time_s is None:
        return row
    return replace(
        row, step_time_s=found.value, step_time_low_s=found.low, step_time_high_s=found.high
    )


def _with_memory(row: PredictedRun, peaks: Mapping[str, Interval]) -> PredictedRun:
    """The row with the peak and the interval of the other folds' fit."""
    found = peaks.get(row.id)
    if found is None or row.peak_memory_gib is None:
        return row
    return replace(
        row,
        peak_memory_gib=found.value / GIB,
        peak_memory_low_gib=found.low / GIB,
        peak_memory_high_gib=found.high / GIB,
    )


def _named(tables: Sequence[Path] | None) -> str:
    if not tables:
        return "the project's own table of published runs"
    return " and ".join(path.name for path in tables)


def _command(
    paths: Sequence[Path],
    failed: Path | None,
    cross_validate: bool,
    traced: bool,
    prospective: Path | None,
) -> str:
    words = ["shardwright validate"]
    words += [path.name for path in paths]
    words += [f"--failed {failed.name}"] if failed is not None else []
    words += ["--cross-validate"] if cross_validate else []
    words += ["--traced"] if traced else []
    words += [f"--prospective {prospective.name}"] if prospective is not None else []
    return " ".join(words)
