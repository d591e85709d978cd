"""`PlannedStep`: the predicted step of any plan file, for comparison with a log."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from planner.layout.layout_answer import LayoutFile, layout_title
from profiles.errors import DocumentError, InputError
from shardwright.requests.imported_file import is_imported, read_imported
from shardwright.requests.imported_row import imported_row, path_of_import, predicted_import
from shardwright.requests.imported_run import ImportedRun
from shardwright.requests.opened_plan import PlanLike, open_plan
from simulator.values.plan_file import PlanFile
from simulator.values.prediction import Interval, Part, PartGroup, Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A predicted step.

    global_batch, seq_len  of the plan, None if it has none
    assumed                assumptions, as text
    """

    title: str
    prediction: Prediction
    global_batch: int | None = None
    seq_len: int | None = None
    num_devices: int | None = None
    peak_memory_gib: Interval | None = None
    assumed: tuple[str, ...] = ()

    @property
    def step_time_s(self) -> Interval:
        return self.prediction.step_time_s

    @property
    def parts(self) -> dict[Part, float]:
        """Seconds by part; they add up to step_time_s.value."""
        return self.prediction.seconds

    def grouped(self) -> dict[PartGroup, float]:
        """Seconds of compute, of exposed messages, and of the rest."""
        found = dict.fromkeys(PartGroup, 0.0)
        for part, seconds in self.parts.items():
            found[part.group] += seconds
        return found


def step_of_answer(answer: PlanFile | LayoutFile, where: str) -> PlannedStep:
    """The prediction in an answer of `plan`; raises DocumentError, naming `where`, without one."""
    if isinstance(answer, LayoutFile):
        if answer.chosen is None:
            raise DocumentError(f"{where} holds no layout: its status is {answer.status!r}")
        run, made = answer.chosen.run, answer.chosen.prediction
        return PlannedStep(
            title=f"{answer.model} on {answer.cluster}, {layout_title(run)}",
            prediction=made,
            global_batch=run.global_batch,
            seq_len=run.seq_len,
            num_devices=run.degrees.num_devices,
            peak_memory_gib=made.peak.scaled(2.0**-30),
            assumed=answer.assumptions,
        )
    if answer.plan is None or answer.prediction is None:
        raise DocumentError(f"{where} has no plan: nothing fits ({answer.status})")
    plan, prediction = answer.plan, answer.prediction
    return PlannedStep(
        title=f"{plan.model} on {plan.cluster}",
        prediction=prediction,
        global_batch=plan.workload.global_batch,
        seq_len=plan.workload.sequence_length,
        peak_memory_gib=prediction.peak.scaled(2.0**-30),
        assumed=answer.assumptions,
    )


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

    Raises InputError for `on` with a plan, which has its devices, DocumentError for other files.
    """
    if is_imported(path):
        return imported_step(read_imported(path), path, on)
    answer = open_plan(path).answer
    refuse_devices_of_plan(on, str(path))
    return step_of_answer(answer, str(path))


def refuse_devices_of_plan(on: str, where: str) -> None:
    """Raises InputError if devices are given for a plan, which has its own."""
    if on:
        raise InputError(
            f"{where} is a plan and is predicted on the devices that it is for, not on {on} (--on, "
            "in Python on=); plan again for those, or leave it out"
        )


def step_of(what: PlanLike | ImportedRun, on: str) -> PlannedStep:
    """The prediction of an answer of `plan`, of an imported run, or of the file of either.

    on  devices of an imported run that names none; raises InputError for anything else
    """
    if isinstance(what, ImportedRun):
        return imported_step(what, path_of_import(what), on)
    if isinstance(what, (PlanFile, LayoutFile)):
        refuse_devices_of_plan(on, "the answer")
        return step_of_answer(what, "the answer")
    if isinstance(what, (str, Path)):
        return planned_or_imported(Path(what), on)
    raise InputError(
        "expected an answer of plan(), an imported run, or the path of a file of either, got "
        f"{type(what).__name__}"
    )
