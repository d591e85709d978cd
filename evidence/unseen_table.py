"""First sections of the accuracy page: errors on runs that the fit has not seen."""

from __future__ import annotations

import math
from collections.abc import Iterable

from evidence.compared_run import ComparedRun
from evidence.ledger import MOST_OPENINGS, LedgerEntry
from evidence.prospective import (
    FEWEST_ROWS,
    GROUPS,
    LATER_SOURCES,
    SCORE_TARGETS,
    ErrorScores,
    locked_sources,
    memory_scores,
    step_scores,
)
from evidence.study import SOURCE_LEFT_OUT, AccuracyStudy, Column, lost_to_baseline
from shardwright.reports.markdown_table import cell, percent, section, table

SCORES_HEAD = ("rows", "sources", "median", "mean", "bias", "intervals hold", "width")
SCORES_NOTE = (
    "In the next sections every source has the same weight. `median` is the median over sources of "
    "the source's median absolute error, `mean` the mean over sources of its mean absolute error, "
    "`bias` the median over sources of its median signed error. `intervals hold` is the share of "
    "rows inside their 90 % interval. `width` is the median of upper bound / lower bound."
)
_OTHERS = "all others"


def unseen_sections(study: AccuracyStudy) -> list[str]:
    """Locked sources, predictions of earlier releases, then what was left out of the fit."""
    sections = [_locked(study), _releases(study)]
    columns = [column for column in study.columns if column.folds]
    if columns:
        sections.append(_left_out(study, columns))
    return sections


def lost_words(lost: Iterable[tuple[str, float, float]]) -> str:
    """The sources that the baseline predicts better, with both errors."""
    return ", ".join(f"{cell(name)} ({percent(a)} against {percent(b)})" for name, a, b in lost)


def _locked(study: AccuracyStudy) -> str:
    note = (
        f"{len(locked_sources())} of {len(LATER_SOURCES)} later sources are locked: "
        f"{', '.join(locked_sources())}. They were chosen by the hash of their names. No "
        "coefficient is fitted on them. On this page they count only here and in the totals of "
        "earlier releases. `python -m tools.open_locked` compares the shipped coefficients with "
        "them and appends a line to docs/locked_ledger.csv. Each issue may open them at most "
        f"{MOST_OPENINGS} times."
    )
    if not study.ledger:
        return section("Locked sources", note, "They have not been opened yet.")
    latest = study.ledger[-1]
    scores = latest.scores
    targets = [
        [target.name, target.reached(scores), target.bounds, target.verdict(scores)]
        for target in SCORE_TARGETS
    ]
    held = ", ".join(f"{cell(name)} {percent(part)}" for name, part in scores.step.source_coverage)
    return section(
        "Locked sources",
        note,
        f"Latest opening ({cell(latest.date)}, commit {cell(latest.commit)}): {scores.rows} rows, "
        f"{scores.unsupported} without a prediction.",
        table(["score", "reached", "target", "result"], targets),
        f"Interval coverage of sources with at least {FEWEST_ROWS} rows: {held or '-'}.",
        f"All openings ({len(study.ledger)}):",
        _openings(study.ledger),
    )


def _openings(ledger: Iterable[LedgerEntry]) -> str:
    head = ["date", "commit", *SCORES_HEAD]
    head += [f"{title.partition(' (')[0]}: median" for _, title, _ in GROUPS]
    lines = []
    for entry in ledger:
        groups = [getattr(entry.scores, name) for name, _, _ in GROUPS]
        medians = [percent(scores.median) for scores in (*groups, entry.scores.memory)]
        lines.append([cell(entry.date), cell(entry.commit), *_cells(entry.scores.step), *medians])
    return table([*head, "memory: median"], lines, words=2)


def _releases(study: AccuracyStudy) -> str:
    if not study.releases:
        return ""
    lines = []
    for release in study.releases:
        step, memory = step_scores(release.rows), memory_scores(release.rows)
        peaks = [str(memory.rows), percent(memory.median), percent(memory.coverage)]
        lines.append([cell(release.name), cell(release.predicted_on), *_cells(step), *peaks])
    head = ["release", "predicted", *SCORES_HEAD, "peaks", "median", "intervals hold"]
    return section(
        "Predictions made before the measurements were seen",
        "Each release predicted these runs before its authors had seen the measurements. The last "
        "three columns are for peak memory.",
        table(head, lines, words=2),
    )


def _left_out(study: AccuracyStudy, columns: Iterable[Column]) -> str:
    """Scores of each way of leaving out, then of each fold; by group for whole sources."""
    summary, parts = [], []
    for column in columns:
        scores = step_scores(column.rows)
        summary.append([cell(column.name), *_cells(scores), percent(scores.worst_coverage)])
        if column.name == SOURCE_LEFT_OUT:
            parts += ["### Sources left out, by kind of run", _by_group(study, column)]
            parts.append(_lost(study))
        parts += [f"### {cell(column.name).capitalize()}, one by one", _by_fold(study, column)]
    head = ["left out of the fit", *SCORES_HEAD, "lowest source"]
    return section(
        "Left out of the fit",
        "Each source, framework or device is predicted with coefficients that were fitted without "
        "its rows. The intervals come from the same fit. `lowest source` is the lowest interval "
        f"coverage of a source with at least {FEWEST_ROWS} rows.",
        table(head, summary),
        *parts,
    )


def _by_group(study: AccuracyStudy, column: Column) -> str:
    members = [(title, member) for _, title, member in GROUPS]
    members.append((_OTHERS, lambda row: not any(member(row) for _, _, member in GROUPS)))
    groups = {title: [row for row in column.rows if member(row)] for title, member in members}
    return _table_of(study, "kind of run", groups)


def _by_fold(study: AccuracyStudy, column: Column) -> str:
    groups: dict[str, list[ComparedRun]] = {}
    for row in column.rows:
        if row.run.id in column.folds:
            groups.setdefault(column.folds[row.run.id], []).append(row)
    return _table_of(study, "left out", dict(sorted(groups.items())))


def _table_of(study: AccuracyStudy, title: str, groups: dict[str, list[ComparedRun]]) -> str:
    """Scores of groups of rows, next to the median of the judged column."""
    judged = {row.run.id: row for row in study.rows}
    lines = []
    for name, rows in groups.items():
        scores = step_scores(rows)
        if scores.rows:
            seen = step_scores(judged[row.run.id] for row in rows)
            lines.append([cell(name), *_cells(scores), percent(seen.median)])
    return table([title, *SCORES_HEAD, f"{cell(study.judged)}: median"], lines)


def _lost(study: AccuracyStudy) -> str:
    lost = lost_to_baseline(study, of=SOURCE_LEFT_OUT)
    if not lost:
        return "With any source left out, its errors are below those of a constant 45 % of peak."
    return (
        "With the source left out, a constant 45 % of peak is better on these sources (our error "
        f"against that of the constant): {lost_words(lost)}."
    )


def _cells(scores: ErrorScores) -> list[str]:
    return [
        str(scores.rows),
        str(scores.sources),
        percent(scores.median),
        percent(scores.mean),
        percent(scores.bias, signed=True),
        percent(scores.coverage),
        "-" if math.isnan(scores.width) else f"{scores.width:.2f}",
    ]
