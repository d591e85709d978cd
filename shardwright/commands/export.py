"""`shardwright export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from interop.exports.export_plan import ExportFolder, export_plan, unexpressed_data
from interop.exports.launchers.launchers import LAUNCHERS
from interop.exports.targets.targets import TARGETS
from interop.exports.targets.targets import target as target_of
from profiles.document import write_text
from profiles.errors import InputError
from shardwright.asking.opened_plan import open_plan
from shardwright.asking.planned_run import planned_run
from shardwright.console.flags import Json
from shardwright.console.output import note, print_json, show

EXAMPLES = (
    "Examples:\n\n  shardwright export plan.json --to megatron -o run\n\n  shardwright export "
    "plan.json --to torchtitan --launcher slurm -o run"
)
_OURS = "plan-check.json"


def export(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="a plan file")],
    to: Annotated[str, typer.Option("--to", help=", ".join(TARGETS))],
    output: Annotated[Path, typer.Option("-o", help="folder; missing ones are made")],
    launcher: Annotated[str, typer.Option("--launcher", help=", ".join(LAUNCHERS))] = "torchrun",
    json_output: Json = False,
) -> None:
    """`shardwright export`."""
    target_of(to)
    _need_own_folder(output)
    planned = planned_run(open_plan(plan_file), runnable=to == "torchrun")
    folder = export_plan(planned, to, launcher=launcher)
    for file in folder.files:
        path = output / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, file.text)
        if file.executable:
            path.chmod(0o755)
    if json_output:
        files = [file.path for file in folder.files]
        print_json({**unexpressed_data(to, folder.costs), "files": files, "start": folder.start})
        return
    show(Text(f"{output}: {planned.model} for {TARGETS[to].words}, {len(folder.files)} files"))
    show(Text(_summary(folder)))
    note(f"Next: {folder.start}")


def _summary(folder: ExportFolder) -> str:
    gaps = folder.costs.gaps
    if not gaps:
        return "all of the plan is expressed"
    lines = [f"not expressed ({len(gaps)}), see README.md:"]
    for priced in gaps:
        cost = "not priced" if priced.slower is None else f"step {priced.slower:+.1%}"
        lines.append(f"  {priced.gap.option}: {priced.gap.planned} -> {priced.gap.written}; {cost}")
    if folder.costs.fits is False:
        lines.append("  as it is written the run needs more memory than the device has")
    return "\n".join(lines)


def _need_own_folder(output: Path) -> None:
    """Raises InputError for a folder with files of somebody else."""
    if output.is_file():
        raise InputError(f"-o {output} is a file; name a folder")
    if output.is_dir() and any(output.iterdir()) and not (output / _OURS).is_file():
        raise InputError(
            f"-o {output} holds files that are no export of ours; name a new or an empty folder"
        )
