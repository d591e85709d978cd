"""`shardwright predict --runs`: one prediction per row of a table of runs."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from profiles.published.run import read_runs
from shardwright.commands.output import note, write_or_print
from shardwright.validate.predicted import OK, PREDICTED_COLUMNS
from simulator.training_run.predict_runs import RunPrediction, predict_runs

_GIB = 2**30


def predict_table(path: Path, output: Path) -> None:
    """Read the runs, predict each, write the table; `-` is stdout.

    A cell that cannot be read costs its own row a prediction, and is said there.
    """
    runs = read_runs(path, lenient=True)
    found = predict_runs(runs)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(PREDICTED_COLUMNS)
    for prediction in found:
        writer.writerow(row_of(prediction))
    write_or_print(output, text.getvalue())
    supported = sum(not prediction.why_not for prediction in found)
    note(f"predicted {supported} of {len(found)} runs; the others say why under `status`")


def row_of(prediction: RunPrediction) -> list[str]:
    """The cells of a prediction, in the order of PREDICTED_COLUMNS."""
    step, memory = prediction.step_time_s, prediction.peak_memory_bytes
    cells = [prediction.id]
    for interval, scale in ((step, 1.0), (memory, _GIB)):
        for name in ("value", "low", "high"):
            cells.append("" if interval is None else f"{getattr(interval, name) / scale:.6g}")
    cells.append("" if prediction.fits is None else str(int(prediction.fits)))
    cells.append(f"unsupported: {prediction.why_not}" if prediction.why_not else OK)
    cells.append("; ".join(prediction.run.defaults) if prediction.run is not None else "")
    return cells
