"""`imported_row`: an imported run as a row to predict, on the named devices."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_cluster
from shardwright.requests.imported_run import ImportedRun, need_possible
from shardwright.requests.table_row import row_of_import
from shardwright.runs.predict_runs import PredictedRow, predict_runs
from shardwright.runs.run import PublishedRun


def imported_row(run: ImportedRun, path: Path, on: str) -> PublishedRun:
    """The run on the cluster or device `on`; "" for the devices in its files.

    path  of its file, for messages and the row's id

    Raises InputError if the device or the number of devices is missing.
    """
    device, devices = on, None
    if not on or not (on[0].isdigit() or on.endswith((".toml", ".json"))):
        need_possible(run, str(path))
    else:
        cluster = get_cluster(on)
        kinds = {group.device.name for group in cluster.groups}
        if len(kinds) > 1:
            raise InputError(f"{on}: an imported run needs devices of one type")
        device, devices = kinds.pop(), cluster.num_devices
    if not device and not run.device:
        raise InputError(
            f"{path}: the configuration names no device; name the devices (--on, in Python on=): "
            "8x8xh100-sxm-80gb, or h100-sxm-80gb to keep its number of devices"
        )
    if devices is None and run.devices is None:
        raise InputError(
            f"{path}: the configuration does not name its number of devices; give them (--on, in "
            f"Python on=) as in 8x8x{device or run.device}"
        )
    row = row_of_import(run, id=path.stem, device=device, devices=devices)
    if on and on[0].isdigit():
        row = replace(row, devices_per_node=cluster.groups[0].devices_per_node)
    return row


def path_of_import(run: ImportedRun) -> Path:
    """The first file of an imported run, as its name."""
    return Path(run.files[0] if run.files else "imported run")


def predicted_import(row: PublishedRun) -> PredictedRow:
    """The prediction of a row; raises InputError if it has none."""
    made = predict_runs([row])[0]
    if made.prediction is None:
        raise InputError(made.why_not or f"{row.id} cannot be predicted")
    return made
