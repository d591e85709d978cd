"""The accuracy page's lead: sources, and classes of runs, that the fit has not seen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, median

from shardwright.reports.markdown_table import cell, percent, table
from shardwright.validate.compared import ComparedRun
from shardwright.validate.groups import source_of
from shardwright.validate.run_class import CLASSES, PLAIN, classes_of
from shardwright.validate.statistics import ErrorSummary, memory_summary, step_time_summary
from shardwright.validate.study import (
    SOURCE_LEFT_OUT,
    AccuracyStudy,
    lost_to_baseline,
    unseen_sources,
)

# Grades of published rows: all stated, or one thing assumed.
_WELL_STATED = ("A", "B")


def unseen_lead(study: AccuracyStudy) -> str:
    """What a source can expect that the fit has never met; "" without cross-validation."""
    found = unseen_sources(study)
    if not found:
        return ""
    rows = _left_out(study)
    medians = sorted((step.median_absolute, name) for name, step in found.items())
    means = [step.mean_absolute for step in found.values()]
    shares = [step.interval_coverage for step in found.values()]
    worst, where = medians[-1]
    lines = [
        f"**Sources that the fit has not seen** (each of {len(found)} left out whole): the median "
        f"error of a source is {percent(median(m for m, _ in medians))} in the middle and "
        f"{percent(worst)} at worst ({cell(where)}); mean errors average {percent(fmean(means))} "
        f"over sources{_of_rows(rows)}; the 90 % intervals hold {percent(fmean(shares))} of a "
        f"source's rows on average, {_fewest(found)}. {_memory(rows)}{_lost(study)}",
        _classes(study, rows),
    ]
    return "\n\n".join(line for line in lines if line) + "\n\n"


def memory_left_out(study: AccuracyStudy, source: str) -> ErrorSummary:
    """The errors of a source's peaks where what is fitted of memory was fitted on others."""
    return memory_summary(row for row in _left_out(study) if source_of(row.run.id) == source)


def _left_out(study: AccuracyStudy) -> tuple[ComparedRun, ...]:
    return next((c.rows for c in study.columns if c.name == SOURCE_LEFT_OUT), ())


def _of_rows(rows: Sequence[ComparedRun]) -> str:
    stated = step_time_summary(row for row in rows if row.measured.quality[:1] in _WELL_STATED)
    if not stated.count:
        return ""
    return (
        f" and {percent(stated.mean_absolute)} over the {stated.count} rows whose source states all"
        " but one thing or everything"
    )


def _fewest(found: dict[str, ErrorSummary]) -> str:
    share, name = min((step.interval_coverage, name) for name, step in found.items())
    return f"{percent(share)} at least ({cell(name)})"


def _memory(rows: Sequence[ComparedRun]) -> str:
    groups: dict[str, list[ComparedRun]] = {}
    for row in rows:
        if row.memory_error is not None:
            groups.setdefault(source_of(row.run.id), []).append(row)
    if not groups:
        return ""
    whole = memory_summary(row for found in groups.values() for row in found)
    means = [memory_summary(found).mean_absolute for found in groups.values()]
    return (
        f"Peak memory: mean error {percent(whole.mean_absolute)} over {whole.count} rows, "
        f"{percent(fmean(means))} on average over {len(means)} sources. "
    )


def lost_words(lost: Iterable[tuple[str, float, float]]) -> str:
    """The sources that a constant predicts better, with both errors."""
    return ", ".join(f"{cell(name)} ({percent(a)} against {percent(b)})" for name, a, b in lost)


def _lost(study: AccuracyStudy) -> str:
    lost = lost_to_baseline(study, of=SOURCE_LEFT_OUT)
    if not lost:
        return "No source left out is predicted better by a constant 45 % of peak."
    return f"Left out, a constant 45 % of peak is more accurate on: {lost_words(lost)}."


def _classes(study: AccuracyStudy, rows: Sequence[ComparedRun]) -> str:
    """Errors of rows of left-out sources by class, beside those of the judged column."""
    judged = {row.run.id: row for row in study.rows}
    members: dict[str, list[ComparedRun]] = {name: [] for name in (*dict(CLASSES), PLAIN)}
    for row in rows:
        if row.step_time_error is not None:
            for name in classes_of(row.run):
                members[name].append(row)
    head = [
        *("left out whole", "rows", "sources", "median", "mean", "bias", "intervals hold"),
        f"{cell(study.judged)}: median",
    ]
    lines = []
    for name, found in members.items():
        if not found:
            continue
        step = step_time_summary(found)
        lines.append(
            [
                cell(name),
                str(step.count),
                str(len({source_of(row.run.id) for row in found})),
                percent(step.median_absolute),
                percent(step.mean_absolute),
                percent(step.bias, signed=True),
                percent(step.interval_coverage),
                percent(_median(judged[row.run.id] for row in found)),
            ]
        )
    return table(head, lines) if lines else ""


def _median(rows: Iterable[ComparedRun]) -> float:
    step = step_time_summary(rows)
    return step.median_absolute if step.count else math.nan
