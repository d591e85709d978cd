"""Errors by source of predictions from traced modules, next to those from figures."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from evidence.compared_run import ComparedRun
from evidence.groups import source_of
from evidence.statistics import step_time_summary
from evidence.study import AccuracyStudy
from shardwright.reports.markdown_table import cell, percent, section, table

# Highest ratio of a source's mean errors, from traced modules over from figures.
TRACED_WITHIN = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedSource:
    """Mean and median error of a source from figures and from traced modules.

    dense, rows   dense rows, and those that both predict
    """

    name: str
    dense: int
    rows: int
    described: tuple[float, float]
    traced: tuple[float, float]

    @property
    def ratio(self) -> float:
        """Mean error of the traced over that of the figures; nan where either is 0 or missing."""
        return self.traced[0] / self.described[0] if self.described[0] else math.nan


def traced_sources(study: AccuracyStudy) -> tuple[TracedSource, ...]:
    """Every source with a measured dense row; none without a traced run."""
    found: dict[str, list[tuple[ComparedRun, ComparedRun]]] = {}
    for row, other in zip(study.columns[0].rows, study.traced, strict=False):
        if row.run.family in ("", "dense") and row.measured.step_time_s is not None:
            found.setdefault(source_of(row.run.id), []).append((row, other))
    made = []
    for name in sorted(found):
        pairs = [(a, b) for a, b in found[name] if a.supported and b.supported]
        described = step_time_summary(a for a, _ in pairs)
        traced = step_time_summary(b for _, b in pairs)
        made.append(
            TracedSource(
                name=name,
                dense=len(found[name]),
                rows=len(pairs),
                described=(described.mean_absolute, described.median_absolute),
                traced=(traced.mean_absolute, traced.median_absolute),
            )
        )
    return tuple(made)


def traced_table(study: AccuracyStudy) -> str:
    """The section, or "" without a traced run."""
    found = traced_sources(study)
    if not found:
        return ""
    head = ["source", "dense rows", "traced", "figures: mean / median"]
    head += ["traced: mean / median", "ratio of means"]
    rows = [
        [
            cell(x.name),
            str(x.dense),
            str(x.rows),
            " / ".join(percent(value) for value in x.described),
            " / ".join(percent(value) for value in x.traced),
            "-" if math.isnan(x.ratio) else f"{x.ratio:.2f}",
        ]
        for x in found
    ]
    worst = max((x.ratio for x in found if not math.isnan(x.ratio)), default=math.nan)
    reasons = Counter(
        row.predicted.status.rpartition("not traced: ")[2]
        for row, shown in zip(study.traced, study.columns[0].rows, strict=True)
        if not row.supported and shown.supported and row.run.family in ("", "dense")
    )
    notes = [
        "Every dense row's architecture is built by transformers on torch's meta device, traced "
        "like a user's module and predicted from the trace. Both columns use the coefficients of "
        f"{cell(study.columns[0].name)} and contain the rows that both predict. The highest ratio "
        f"is {worst:.2f} (target {TRACED_WITHIN} or less)."
    ]
    notes += [f"- {count} not traced: {cell(why)}" for why, count in reasons.most_common(6)]
    return section("Step time from traced modules", table(head, rows), "\n".join(notes))
