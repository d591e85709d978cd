"""Makes docs/case-studies.md: whole published runs, each beside its source.

python -m tools.case_studies CASES.csv
"""

from __future__ import annotations

import csv
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from evidence.case_answer import CaseAnswer, answer_cases
from evidence.predict_case import OK
from evidence.published_case import PublishedCase, read_cases
from profiles.document import write_text
from shardwright.reports.markdown_table import cell, percent, table
from simulator.goodput.reliability_inputs import learned

PAGE = Path(__file__).parents[1] / "docs" / "case-studies.md"


def main() -> None:
    """Predicts every case and writes the page."""
    (path,) = sys.argv[1:]
    cases = read_cases(path)
    answers = answer_cases(cases, clock=time.monotonic)
    with open(path, encoding="utf-8", newline="") as stream:
        measured = {row["id"]: row for row in csv.DictReader(stream)}
    write_text(PAGE, page(cases, answers, measured))


def page(
    cases: Sequence[PublishedCase],
    answers: Sequence[CaseAnswer],
    measured: Mapping[str, Mapping[str, str]],
) -> str:
    """The page, in Markdown."""
    compared = [
        (case, answer, float(measured[case.run.id]["accel_hours"]))
        for case, answer in zip(cases, answers, strict=True)
        if answer.prediction.device_hours is not None and measured[case.run.id]["accel_hours"]
    ]
    errors = [_error(answer, hours) for _, answer, hours in compared]
    inside = sum(_holds(answer, hours) for _, answer, hours in compared)
    found = learned().contingency
    parts = [
        "# Whole published runs",
        "",
        "Device-hours, days and energy of published training runs, predicted by `shardwright size",
        "--cases CASES.csv -o OUT.csv`. The predictions use the published architecture, tokens,",
        "devices and layout, never the measured values. Made by",
        "`python -m tools.case_studies CASES.csv`; do not edit.",
        "",
        f"**Mean absolute error of the device-hours {percent(statistics.mean(map(abs, errors)))}**,"
        f" worst {percent(max(map(abs, errors)))}; {inside} of {len(errors)} are inside their 90 % "
        f"interval. This is not a blind test: the contingency was fitted to {found.count} of these "
        f"runs (each predicted from the others: {percent(found.error)}), and the defaults for "
        "missing values were chosen with these runs in view.",
        "",
        _hours_table(compared),
        "",
        "Steady: the source counts only the hours of steps. Whole: with all lost time, and a "
        f"contingency of {found.middle:.2f}; {found.of('tpu-v4'):.2f} for TPUs before 2022, whose "
        "frameworks are older than the fitted ones.",
        "",
        "## Energy",
        "",
        "Most published energies are device-hours x data sheet power, not measurements (column "
        "basis).",
        "",
        _energy_table(compared, measured),
        "",
        "## Not predicted",
        "",
        *(
            f"- {cell(case.run.model)} (`{case.run.id}`): {cell(answer.prediction.status)}"
            for case, answer in zip(cases, answers, strict=True)
            if answer.prediction.status != OK
        ),
        "",
        "## Inputs and assumptions",
        "",
        *(_study(case, answer, measured[case.run.id]) for case, answer, _ in compared),
    ]
    return "\n".join(parts).rstrip() + "\n"


def _hours_table(compared: Sequence[tuple[PublishedCase, CaseAnswer, float]]) -> str:
    head = ("run", "devices", "hours count", "published", "predicted", "90 %", "error", "inside")
    rows = []
    for case, answer, hours in compared:
        made, found = answer.prediction, answer.prediction.device_hours
        assert found is not None
        assert made.run is not None
        rows.append(
            (
                cell(case.run.model),
                f"{made.num_devices} {made.run.device}",
                "whole" if case.counts_downtime else "steady",
                _hours(hours),
                _hours(found.value),
                f"{_hours(found.low)} - {_hours(found.high)}",
                percent(_error(answer, hours), signed=True),
                "yes" if _holds(answer, hours) else "no",
            )
        )
    return table(head, rows, words=3)


def _energy_table(
    compared: Sequence[tuple[PublishedCase, CaseAnswer, float]],
    measured: Mapping[str, Mapping[str, str]],
) -> str:
    head = ("run", "basis of the source", "published MWh", "predicted MWh", "error")
    rows = []
    for case, answer, _ in compared:
        printed = measured[case.run.id]["energy_mwh"]
        if printed and answer.kwh is not None:
            ours = answer.kwh.value / 1e3
            rows.append(
                (
                    cell(case.run.model),
                    cell(measured[case.run.id]["energy_basis"]),
                    f"{float(printed):,.0f}",
                    f"{ours:,.0f}",
                    percent(ours / float(printed) - 1, signed=True),
                )
            )
    return table(head, rows, words=2)


def _study(case: PublishedCase, answer: CaseAnswer, row: Mapping[str, str]) -> str:
    made = answer.prediction
    assert made.run is not None
    assert made.step_time_s is not None
    step, whole = made.step_time_s, made.whole
    lines = [
        f"### {cell(case.run.model)}",
        "",
        f"Source: {cell(row['source_url'])}" + (f" ({cell(row['where'])})" if row["where"] else ""),
        "",
        f"- {made.steps:,.0f} steps of {made.run.global_batch} x {made.run.seq_len} tokens, "
        f"{step.value:.3g} s each [{step.low:.3g} - {step.high:.3g}], on {made.num_devices} "
        f"{made.run.device}",
    ]
    if whole is not None:
        productive = whole.productive_time
        lost = sorted(whole.parts.items(), key=lambda part: -part[1])
        said = ", ".join(f"{name} {percent(share)}" for name, share in lost if share > 1e-3)
        lines.append(
            f"- productive time {percent(productive.value)} [{percent(productive.low)} - "
            f"{percent(productive.high)}]; lost to {said}; contingency "
            f"{whole.contingency.value:.2f}"
        )
    lines += [f"- {cell(each)}" for each in (*made.defaults, *answer.assumed)]
    return "\n".join([*lines, ""])


def _hours(hours: float) -> str:
    return f"{hours / 1e6:.3g} M" if hours >= 1e6 else f"{hours / 1e3:.3g} k"


def _error(answer: CaseAnswer, hours: float) -> float:
    found = answer.prediction.device_hours
    assert found is not None
    return found.value / hours - 1


def _holds(answer: CaseAnswer, hours: float) -> bool:
    found = answer.prediction.device_hours
    return found is not None and found.low <= hours <= found.high


if __name__ == "__main__":
    main()
