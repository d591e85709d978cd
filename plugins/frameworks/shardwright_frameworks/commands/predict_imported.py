"""`shardwright predict` of an imported run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from profiles.document import encode
from profiles.hardware.catalogue.catalog import get_device
from shardwright.analysis.answer_json import parts_by_key
from shardwright.console.output import print_json, show
from shardwright.runs.predict_runs import PredictedRow
from shardwright_frameworks.imported_run import read_imported
from shardwright_frameworks.reports.imported_prediction import prediction_report
from shardwright_frameworks.requests.table_row import imported_row, predicted_import

_GIB = 2**30


def predict_imported(path: Path, *, on: str, json_output: bool) -> None:
    """Prints the prediction of an imported run on the cluster or device `on`."""
    made = predicted_import(imported_row(read_imported(path), path, on))
    if json_output:
        print_json(prediction_data(made))
        return
    show(prediction_report(made))


def prediction_data(made: PredictedRow) -> dict[str, Any]:
    """The prediction of an imported run as plain values for JSON."""
    assert made.run is not None
    assert made.prediction is not None
    memory = made.shown_memory_bytes
    return {
        "step_time_s": encode(made.prediction.step_time_s),
        "peak_memory_gib": None if memory is None else memory.value / _GIB,
        "fits": made.prediction.fits,
        "parts_s": dict(parts_by_key(made.prediction)),
        "assumed": list(made.run.defaults),
        "device": get_device(made.run.device).name,
        "devices": made.run.degrees.num_devices,
    }
