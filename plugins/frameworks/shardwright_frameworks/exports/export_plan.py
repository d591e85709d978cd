"""`export_plan`: the folder of one plan for one target and one launcher."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from profiles.document import to_json
from profiles.errors import InputError, UnknownNameError
from shardwright_frameworks.exports.cost_of_gaps import CostOfGaps, cost_of_gaps
from shardwright_frameworks.exports.launchers.job import RUN_SCRIPT, Job, job_name, run_script
from shardwright_frameworks.exports.launchers.launchers import LAUNCHERS
from shardwright_frameworks.exports.plan_check import plan_check
from shardwright_frameworks.exports.readme import readme
from shardwright_frameworks.exports.targets.executor import export_executor
from shardwright_frameworks.exports.targets.targets import TARGETS, target_name
from shardwright_frameworks.exports.values.exported import Exported, ExportedFile
from shardwright_frameworks.exports.values.planned_run import PlannedRun

UNEXPRESSED_SCHEMA = "shardwright/unexpressed@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFolder:
    """The files of a folder, and the parts of the plan that they do not express.

    start   the command that starts the job
    """

    files: tuple[ExportedFile, ...]
    exported: Exported
    costs: CostOfGaps
    start: str


def export_plan(planned: PlannedRun, target: str, *, launcher: str = "torchrun") -> ExportFolder:
    """The plan as files of `target` (targets.TARGETS), started by `launcher` (LAUNCHERS).

    Raises UnknownNameError for an unknown target or launcher, InputError for a plan that the target
    cannot run in any form.
    """
    target = target_name(target)
    found = TARGETS[target]
    if launcher not in LAUNCHERS:
        raise UnknownNameError("launcher", launcher, tuple(LAUNCHERS), where="--launcher")
    if planned.only_here and found.export is not export_executor:
        raise InputError(
            f"--to {target}: {planned.only_here}. Such a plan "
            "runs on our own executor (--to torchrun)"
        )
    exported = found.export(planned)
    costs = cost_of_gaps(planned, exported.unexpressed)
    job = Job(
        name=job_name(planned.model, target),
        num_nodes=planned.num_nodes,
        devices_per_node=planned.devices_per_node,
        device=planned.run.device,
        device_type=planned.device_type,
    )
    script = run_script(
        job,
        title=f"{planned.model} on {planned.run.degrees.num_devices} x {job.device}, from "
        f"{planned.plan}.",
        program=exported.program,
        arguments=exported.arguments,
        environment=exported.environment,
        per_node=exported.per_node,
        imports_from_start=exported.imports_from_start,
    )
    starts = LAUNCHERS[launcher]
    page = readme(
        planned,
        exported,
        costs,
        words=found.words,
        target=target,
        launcher=launcher,
        start=starts.start,
    )
    files = (
        ExportedFile(path=RUN_SCRIPT, text=script, executable=True),
        *exported.files,
        *starts.files(job),
        ExportedFile(path="README.md", text=page),
        ExportedFile(path="plan-check.json", text=to_json(plan_check(planned, target, costs))),
        ExportedFile(path="unexpressed.json", text=to_json(unexpressed_data(target, costs))),
    )
    return ExportFolder(files=files, exported=exported, costs=costs, start=starts.start)


def unexpressed_data(target: str, costs: CostOfGaps) -> Mapping[str, Any]:
    """The document `unexpressed.json`; lists are empty if nothing is missing."""
    return {
        "schema": UNEXPRESSED_SCHEMA,
        "target": target,
        "unexpressed": [
            {
                "option": priced.gap.option,
                "planned": priced.gap.planned,
                "written": priced.gap.written,
                "why": priced.gap.why,
                "step_slower": priced.slower,
                "more_memory_bytes": priced.more_bytes,
                "why_no_price": priced.why_no_price,
            }
            for priced in costs.gaps
        ],
        "together": {"step_slower": costs.slower, "more_memory_bytes": costs.more_bytes},
        "fits": costs.fits,
    }
