"""`PlannedStep`: the predicted step of any plan file, for comparison with a log."""

from __future__ import annotations

from dataclasses import dataclass

from planner.layout.layout_answer import LayoutFile, layout_title
from profiles.errors import DocumentError, InputError
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
            raise DocumentError(f"{where} has no layout: nothing fits ({answer.status})")
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


def refuse_devices_of_plan(on: str, where: str) -> None:
    """Raises InputError if devices are given for a plan, which has its own."""
    if on:
        raise InputError(
            f"{where} is a plan, which names its devices, so {on} (--on, in Python on=) cannot "
            "replace them; plan again for those, or leave it out"
        )
