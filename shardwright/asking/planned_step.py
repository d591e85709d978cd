"""`PlannedStep`: the predicted step of a plan file, whatever kind it is, to hold a log against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from planner.layout.layout_answer import LayoutFile, layout_title
from profiles.errors import DocumentError
from shardwright.asking.opened_plan import open_plan
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
    "bubble": IDLE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """A predicted step; parts in seconds add up to step_time_s.value.

    global_batch, seq_len   of the plan, None where it does not say
    """

    title: str
    step_time_s: Interval
    parts: Mapping[str, float] = field(default_factory=dict)
    global_batch: int | None = None
    seq_len: int | None = None
    num_devices: int | None = None
    peak_memory_gib: Interval | None = None

    def grouped(self) -> dict[str, float]:
        """Seconds of computing, of messages that do not hide, and of the rest."""
        found = dict.fromkeys((COMPUTE, COMMUNICATION, IDLE), 0.0)
        for name, seconds in self.parts.items():
            found[_GROUPS[name]] += seconds
        return found


def planned_step(path: str | Path) -> PlannedStep:
    """The prediction in a plan file, of our executor's or of a framework's layout.

    Raises DocumentError for a file that holds none.
    """
    answer = open_plan(path).answer
    if isinstance(answer, LayoutFile):
        if answer.chosen is None:
            raise DocumentError(f"{path} holds no layout: its status is {answer.status!r}")
        run, said = answer.chosen.run, answer.chosen.prediction
        return PlannedStep(
            title=f"{answer.model} on {answer.cluster}, {layout_title(run)}",
            step_time_s=said.step_time_s,
            parts=dict(said.parts),
            global_batch=run.global_batch,
            seq_len=run.seq_len,
            num_devices=run.num_devices,
            peak_memory_gib=said.peak_memory_range.scaled(2.0**-30),
        )
    if answer.plan is None or answer.prediction is None:
        raise DocumentError(f"{path} holds no plan: its status is {answer.status!r}")
    plan, prediction = answer.plan, answer.prediction
    return PlannedStep(
        title=f"{plan.model} on {plan.cluster}",
        step_time_s=prediction.step_time_s,
        parts={part.name: part.time_s for part in prediction.components},
        global_batch=plan.workload.global_batch,
        seq_len=plan.workload.sequence_length,
        peak_memory_gib=prediction.peak_memory_bytes.scaled(2.0**-30),
    )
