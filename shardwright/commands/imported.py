"""What follows from an imported run: its prediction, and the single changes that bring most."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from interop.changes.flags import flag_of, values_of
from interop.changes.ranked_changes import PricedChange, ranked_changes
from interop.configs.imported_file import is_imported, read_imported
from interop.configs.imported_run import ImportedRun
from interop.reading.table_row import row_of_import
from planner.layout.layout_answer import layout_title
from profiles.document import encode
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_cluster, get_device
from profiles.published.run import PublishedRun
from shardwright.asking.planned_step import PlannedStep, planned_step
from shardwright.console.output import print_json, show
from shardwright.reports.frameworks.imported_report import changes_report, prediction_report
from simulator.training_run.explain.predict_runs import RunPrediction, predict_runs

_GIB = 2**30


def predict_imported(path: Path, *, on: str, json_output: bool) -> None:
    """Prints the prediction of an imported run, on the cluster or device that `on` names."""
    run = read_imported(path)
    made = predicted_import(imported_row(run, path, on))
    if json_output:
        print_json(_prediction_json(made))
        return
    show(prediction_report(made))


def plan_from_import(
    path: Path, *, on: str, precisions: tuple[str, ...], json_output: bool
) -> None:
    """Prints the single changes of an imported run that are predicted to bring most.

    precisions  that may be changed to
    """
    run = read_imported(path)
    made = predicted_import(imported_row(run, path, on))
    assert made.run is not None
    changes = ranked_changes(made.run, precisions=precisions)
    if json_output:
        print_json(
            {**_prediction_json(made), "changes": [_change_json(run, each) for each in changes]}
        )
        return
    show(changes_report(run, made, changes))


def imported_row(run: ImportedRun, path: Path, on: str) -> PublishedRun:
    """The run on the devices that are named; raises InputError where none are."""
    device, devices = on, None
    if on and (on[0].isdigit() or on.endswith((".toml", ".json"))):
        cluster = get_cluster(on)
        kinds = {group.device.name for group in cluster.groups}
        if len(kinds) > 1:
            raise InputError(f"--on {on}: an imported run is on devices of one kind")
        device, devices = kinds.pop(), cluster.num_devices
    if not device and not run.device:
        raise InputError(
            f"{path}: the configuration names no device; add --on 8x8xh100-sxm-80gb, or "
            "--on h100-sxm-80gb for as many as it says"
        )
    if devices is None and run.devices is None:
        raise InputError(
            f"{path}: the configuration does not say on how many devices it runs; write them, as "
            f"in --on 8x8x{device or run.device}"
        )
    row = row_of_import(run, id=path.stem, device=device, devices=devices)
    if on and on[0].isdigit():
        row = replace(row, devices_per_node=cluster.groups[0].devices_per_node)
    return row


def predicted_import(row: PublishedRun) -> RunPrediction:
    """The prediction of a row; raises InputError where it has none."""
    made = predict_runs([row])[0]
    if made.run is None or made.step_time_s is None:
        raise InputError(made.why_not or f"{row.id} cannot be predicted")
    return made


def _prediction_json(made: RunPrediction) -> dict[str, Any]:
    assert made.run is not None
    memory = made.peak_memory_bytes
    return {
        "step_time_s": encode(made.step_time_s),
        "peak_memory_gib": None if memory is None else memory.value / _GIB,
        "fits": made.fits,
        "parts_s": dict(made.parts),
        "assumed": list(made.run.defaults),
        "device": get_device(made.run.device).name,
        "devices": made.run.num_devices,
    }


def _change_json(run: ImportedRun, priced: PricedChange) -> dict[str, Any]:
    change = priced.change
    return {
        "setting": change.setting,
        "flag": flag_of(run.framework, change),
        "old": change.old,
        "new": change.new,
        "written": " -> ".join(values_of(run.framework, change)),
        "where": run.options.get(change.setting, ""),
        "step_time_s": priced.step_time_s,
        "gain": priced.gain,
        "needed_gib": None if priced.needed_bytes is None else priced.needed_bytes / _GIB,
    }


def planned_or_imported(path: Path, on: str) -> PlannedStep:
    """The prediction of a plan file, or of an imported run on the devices that `on` names."""
    if not is_imported(path):
        return planned_step(path)
    made = predicted_import(imported_row(read_imported(path), path, on))
    assert made.run is not None
    assert made.step_time_s is not None
    memory = made.peak_memory_bytes
    return PlannedStep(
        title=f"{path}: {layout_title(made.run)} on {made.run.num_devices} {made.run.device}",
        step_time_s=made.step_time_s,
        parts=dict(made.parts),
        global_batch=made.run.global_batch,
        seq_len=made.run.seq_len,
        num_devices=made.run.num_devices,
        peak_memory_gib=None if memory is None else memory.scaled(2.0**-30),
    )
