"""`shardwright size --cases`: device-hours, days, energy and dollars of a table of whole runs."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from profiles.published.case import read_cases
from shardwright.commands.output import note, write_or_print
from simulator.goodput.reliability_inputs import DEFAULT, ReliabilityInputs
from simulator.training_run.cases.predict_case import OK, CasePrediction, predict_cases

CASE_ANSWER_COLUMNS = (
    *("id", "days", "device_hours", "device_hours_low", "device_hours_high", "kwh", "usd"),
    *("status", "defaults"),
)


def size_cases(cases: Path, output: Path, *, inputs: ReliabilityInputs = DEFAULT) -> None:
    """Reads a table of whole published runs, predicts each from what is said of it, writes the
    table; `-` is stdout. Measured columns are never read; what a case does not say is assumed, and
    stands under `defaults`."""
    found = predict_cases(read_cases(cases), inputs=inputs)
    write_or_print(output, cases_table(found))
    predicted = sum(case.status == OK for case in found)
    note(f"predicted {predicted} of {len(found)} cases; the others say why under `status`")


def cases_table(found: tuple[CasePrediction, ...]) -> str:
    """The answers as CSV, one row per case in their order."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CASE_ANSWER_COLUMNS)
    for case in found:
        hours = case.device_hours
        numbers = (
            case.days.value if case.days else None,
            *((hours.value, hours.low, hours.high) if hours else (None, None, None)),
            None,
            None,
        )
        cells = ["" if number is None else f"{number:.6g}" for number in numbers]
        writer.writerow([case.id, *cells, case.status, "; ".join(case.defaults)])
    return text.getvalue()
