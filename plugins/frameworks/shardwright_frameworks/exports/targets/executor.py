"""Our executor: the plan file and torchrun."""

from __future__ import annotations

from profiles.errors import InputError
from shardwright_frameworks.exports.values.exported import Exported, ExportedFile
from shardwright_frameworks.exports.values.planned_run import PlannedRun

_PLAN = "plan.json"
_WHERE = "in the folder that run.sh is started from, or on PYTHONPATH"


def export_executor(planned: PlannedRun) -> Exported:
    """The plan with the script; raises InputError for a layout of another framework."""
    if not planned.plan_text:
        raise InputError(
            f"--to torchrun: {planned.plan} is a layout for {planned.run.stack}, and torchrun runs "
            "plans of our own executor; plan with --stack torch, or export to that framework"
        )
    own = ":" in planned.model
    device = "cpu" if planned.device_type == "cpu" else "cuda"
    return Exported(
        program=f"-m executor.train {_PLAN}",
        arguments=("--steps 20", "--output run.json", f"--device {device}"),
        files=(ExportedFile(path=_PLAN, text=planned.plan_text),),
        imports_from_start=own,
        needs=(
            "shardwright on every node, from a clone: pip install '.[hf]'",
            *([f"{planned.model.partition(':')[0]} on every node: {_WHERE}"] if own else ()),
        ),
        fill_in=(
            "on one machine `shardwright run plan.json` does the same and checks the machine first",
        ),
    )
