"""`shardwright size --cases`: device-hours, days, energy and dollars of a table of whole runs."""

from __future__ import annotations

import time
from pathlib import Path

from evidence.case_answer import answer_cases, cases_table
from evidence.predict_case import OK
from evidence.published_case import read_cases
from shardwright.console.output import note, write_or_print
from simulator.goodput.reliability_inputs import DEFAULT, ReliabilityInputs


def size_cases(cases: Path, output: Path, *, inputs: ReliabilityInputs = DEFAULT) -> None:
    """Reads a table of whole published runs, predicts each from what is said of it, writes the
    table; `-` is stdout. Measured columns are never read; what a case does not say is assumed, and
    stands under `defaults`."""
    found = answer_cases(read_cases(cases), clock=time.monotonic, inputs=inputs)
    write_or_print(output, cases_table(found))
    predicted = sum(answer.prediction.status == OK for answer in found)
    note(f"predicted {predicted} of {len(found)} cases; the others say why under `status`")
