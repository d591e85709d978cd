"""`PlannedStep`: the predicted step of a plan file, whatever kind it is, to hold a log against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from interop.configs.imported_file import is_imported, read_imported
from interop.configs.imported_run import ImportedRun
from planner.layout.layout_answer import LayoutFile, layout_title
from profiles.errors import DocumentError, InputError
from shardwright.asking.imported_row import imported_row, path_of_import, predicted_import
from shardwright.asking.opened_plan import PlanLike, open_plan
from simulator.values.plan_file import PlanFile
from simulator.values.prediction import Interval

# The parts of a prediction by what a profile can tell of them. Of a layout they are the fields of
# StepParts, of a plan those of `Prediction.components`.
COMPUTE, COMMUNICATION, IDLE = "compute", "exposed communication", "idle and host"
_GROUPS = {
    "compute_s": COMPUTE,
    "optimizer_s": COMPUTE,
    "tensor_s": COMMUNICATION,
    "expert_s": COMMUNICATION,
    "context_s": COMMUNICATION,
    "gather_s": COMMUNICATION,
    "cut_s": COMMUNICATION,
    "stall_s": COMMUNICATION,
    "reduce_s": COMMUNICATION,
    "bubble_s": IDLE,
    "host_s": IDLE,
    "overhead_s": IDLE,
    "compute": COMPUTE,
    "recompute": COMPUTE,
    "optimizer": COMPUTE,
    "tensor_parallel_communication": COMMUNICATION,
    "pipeline_communication": COMMUNICATION,
    "data_parallel_communication": COMMUNICATION,
    "launch": IDLE,
    "runtime": IDLE,
    "waiting_for_slowest_rank": IDLE,
    "bubble": IDLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A predicted step; parts in seconds add up to step_time_s.value.

    global_batch, seq_len   of the plan, None where it does not say
    assumed   what nobody said and was assumed
    """

    title: str
    step_time_s: Interval
    parts: Mapping[str, float] = field(default_factory=dict)
    global_batch: int | None = None
    seq_len: int | None = None
    num_devices: int | None = None
    peak_memory_gib: Interval | None = None
    assumed: tuple[str, ...] = ()

    def grouped(self) -> dict[str, float]:
        """Seconds of computing, of messages that do not hide, and of the rest."""
        found = dict.fromkeys((COMPUTE, COMMUNICATION, IDLE), 0.0)
        for name, seconds in self.parts.items():
            found[_GROUPS[name]] += seconds
        return found


def step_of_answer(answer: PlanFile | LayoutFile, where: str) -> PlannedStep:
    """The prediction in an answer of `plan`; raises DocumentError, naming `where`, without one."""
    if isinstance(answer, LayoutFile):
        if answer.chosen is None:
            raise DocumentError(f"{where} holds no layout: its status is {answer.status!r}")
        run, said = answer.chosen.run, answer.chosen.prediction
        return PlannedStep(
            title=f"{answer.model} on {answer.cluster}, {layout_title(run)}",
            step_time_s=said.step_time_s,
            parts=dict(said.parts),
            global_batch=run.global_batch,
            seq_len=run.seq_len,
            num_devices=run.degrees.num_devices,
            peak_memory_gib=said.peak_memory_range.scaled(2.0**-30),
            assumed=answer.assumptions,
        )
    if answer.plan is None or answer.prediction is None:
        raise DocumentError(f"{where} holds no plan: its status is {answer.status!r}")
    plan, prediction = answer.plan, answer.prediction
    return PlannedStep(
        title=f"{plan.model} on {plan.cluster}",
        step_time_s=prediction.step_time_s,
        parts={part.name: part.time_s for part in prediction.components},
        global_batch=plan.workload.global_batch,
        seq_len=plan.workload.sequence_length,
        peak_memory_gib=prediction.peak_memory_bytes.scaled(2.0**-30),
        assumed=answer.assumptions,
    )


def imported_step(run: ImportedRun, path: Path, on: str) -> PlannedStep:
    """The prediction of an imported run on the devices that `on` names.

    path  that it was read from, for messages. Raises InputError where it cannot be predicted.
    """
    made = predicted_import(imported_row(run, path, on))
    assert made.run is not None
    assert made.step_time_s is not None
    memory = made.peak_memory_bytes
    return PlannedStep(
        title=f"{path}: {layout_title(made.run)} on {made.run.degrees.num_devices} "
        f"{made.run.device}",
        step_time_s=made.step_time_s,
        parts=dict(made.parts),
        global_batch=made.run.global_batch,
        seq_len=made.run.seq_len,
        num_devices=made.run.degrees.num_devices,
        peak_memory_gib=None if memory is None else memory.scaled(2.0**-30),
        assumed=made.run.defaults,
    )


def planned_or_imported(path: Path, on: str) -> PlannedStep:
    """The prediction of a plan file, or of an imported run on the devices that `on` names.

    Raises InputError for `on` of a plan, which has its devices, DocumentError for what is neither.
    """
    if is_imported(path):
        return imported_step(read_imported(path), path, on)
    answer = open_plan(path).answer
    refuse_devices_of_plan(on, str(path))
    return step_of_answer(answer, str(path))


def refuse_devices_of_plan(on: str, where: str) -> None:
    """Raises InputError where devices are named for a plan, which is predicted on its own."""
    if on:
        raise InputError(
            f"{where} is a plan and is predicted on the devices that it is for, not on {on} (--on, "
            "in Python on=); plan again for those, or leave it out"
        )


def step_of(what: PlanLike | ImportedRun, on: str) -> PlannedStep:
    """The prediction of an answer of `plan`, of an imported run, or of the file of either.

    on  where an imported run that names no devices is; raises InputError for anything else
    """
    if isinstance(what, ImportedRun):
        return imported_step(what, path_of_import(what), on)
    if isinstance(what, (PlanFile, LayoutFile)):
        refuse_devices_of_plan(on, "the answer")
        return step_of_answer(what, "the answer")
    if isinstance(what, (str, Path)):
        return planned_or_imported(Path(what), on)
    raise InputError(
        "an answer of plan(), an imported run, or the path of the file of either is wanted, got "
        f"{type(what).__name__}"
    )
