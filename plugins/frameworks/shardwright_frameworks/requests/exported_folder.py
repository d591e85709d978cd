"""`export_to`: writes a plan as a folder of files of another framework."""

from __future__ import annotations

from pathlib import Path

from planner.layout.layout_answer import LayoutFile
from planner.space import EXECUTOR
from profiles.document import write_text
from profiles.errors import InputError
from shardwright.requests.opened_plan import OpenedPlan, PlanLike, opened_plan
from shardwright_frameworks.exports.export_plan import ExportFolder, export_plan
from shardwright_frameworks.exports.targets.targets import target_name
from shardwright_frameworks.requests.planned_run import planned_run

_OURS = "plan-check.json"


def target_of(opened: OpenedPlan, to: str) -> str:
    """The requested target; without one (""), that of the plan's own framework.

    Raises UnknownNameError for a name that is no target, also of a framework without one.
    """
    answer = opened.answer
    own = answer.stack if isinstance(answer, LayoutFile) else EXECUTOR
    return target_name(to or own)


def export_to(plan: PlanLike, to: str, output: Path | None, *, launcher: str) -> ExportFolder:
    """The files of a plan for a target and a launcher; written to `output` if given.

    plan  an answer of `plan`, or the path of a plan file
    to    as of target_of

    Raises InputError for a folder with other files, and the errors of target_of and export_plan.
    """
    opened = opened_plan(plan)
    to = target_of(opened, to)
    if output is not None:
        _need_own_folder(output)
    planned = planned_run(opened, runnable=to == "torchrun")
    folder = export_plan(planned, to, launcher=launcher)
    for file in folder.files if output is not None else ():
        assert output is not None
        path = output / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, file.text)
        if file.executable:
            path.chmod(0o755)
    return folder


def _need_own_folder(output: Path) -> None:
    if output.is_file():
        raise InputError(f"-o {output} is a file; name a folder")
    if output.is_dir() and any(output.iterdir()) and not (output / _OURS).is_file():
        raise InputError(
            f"-o {output} contains files that are not an export; name a new or empty folder"
        )
