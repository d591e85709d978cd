"""Predicts the step of an imported run or of a plan, given as a value or a file."""

from __future__ import annotations

from pathlib import Path

from planner.layout.layout_answer import LayoutFile, layout_title
from profiles.errors import InputError
from shardwright.requests.imported_file import is_imported
from shardwright.requests.opened_plan import PlanLike, open_plan
from shardwright.requests.planned_step import PlannedStep, refuse_devices_of_plan, step_of_answer
from shardwright_frameworks.imported_run import ImportedRun, read_imported
from shardwright_frameworks.requests.table_row import (
    imported_row,
    path_of_import,
    predicted_import,
)
from simulator.values.plan_file import PlanFile


def imported_step(run: ImportedRun, path: Path, on: str) -> PlannedStep:
    """The prediction of an imported run on the devices `on`.

    path  of its file, for messages. Raises InputError if it cannot be predicted.
    """
    made = predicted_import(imported_row(run, path, on))
    assert made.run is not None
    assert made.prediction is not None
    memory = made.shown_memory_bytes
    return PlannedStep(
        title=f"{path}: {layout_title(made.run)} on {made.run.degrees.num_devices} "
        f"{made.run.device}",
        prediction=made.prediction,
        global_batch=made.run.global_batch,
        seq_len=made.run.seq_len,
        num_devices=made.run.degrees.num_devices,
        peak_memory_gib=None if memory is None else memory.scaled(2.0**-30),
        assumed=made.run.defaults,
    )


def planned_or_imported(path: Path, on: str) -> PlannedStep:
    """The prediction of a plan file, or of an imported run on the devices `on`.

    Raises InputError for `on` with a plan, which names its devices, DocumentError for other files.
    """
    if is_imported(path):
        return imported_step(read_imported(path), path, on)
    answer = open_plan(path).answer
    refuse_devices_of_plan(on, str(path))
    return step_of_answer(answer, str(path))


def step_of(chosen: PlanLike | ImportedRun, on: str) -> PlannedStep:
    """The prediction of an answer of `plan`, of an imported run, or of the file of either.

    on  devices of an imported run that names none; raises InputError for other values
    """
    if isinstance(chosen, ImportedRun):
        return imported_step(chosen, path_of_import(chosen), on)
    if isinstance(chosen, (PlanFile, LayoutFile)):
        refuse_devices_of_plan(on, "the answer")
        return step_of_answer(chosen, "the answer")
    if isinstance(chosen, (str, Path)):
        return planned_or_imported(Path(chosen), on)
    raise InputError(
        "expected an answer of plan(), an imported run, or the path of a file of either, got "
        f"{type(chosen).__name__}"
    )
