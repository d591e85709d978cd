"""`shardwright export`: writes a plan as files of another framework."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from shardwright.console.flags import Json
from shardwright.console.output import note, print_json, show
from shardwright_frameworks.exports.launchers.launchers import LAUNCHERS
from shardwright_frameworks.exports.targets.targets import TARGETS

EXAMPLES = (
    "Examples:\n\n  shardwright export plan.json --to megatron -o run\n\n  shardwright export "
    "plan.json --to torchtitan --launcher slurm -o run"
)


def export(
    plan_file: Annotated[Path, typer.Argument(metavar="PLAN", help="plan file")],
    output: Annotated[Path, typer.Option("-o", help="folder to write")],
    to: Annotated[
        str, typer.Option("--to", help="framework, otherwise the plan's: " + ", ".join(TARGETS))
    ] = "",
    launcher: Annotated[
        str, typer.Option("--launcher", help="launcher: " + ", ".join(LAUNCHERS))
    ] = "torchrun",
    json_output: Json = False,
) -> None:
    """`shardwright export`."""
    # Here, since --help needs none of them.
    from shardwright.requests.opened_plan import open_plan
    from shardwright_frameworks.exports.export_plan import unexpressed_data
    from shardwright_frameworks.reports.export_report import export_words
    from shardwright_frameworks.requests.exported_folder import export_to, target_of

    to = target_of(open_plan(plan_file), to)
    folder = export_to(plan_file, to, output, launcher=launcher)
    if json_output:
        files = [file.path for file in folder.files]
        print_json({**unexpressed_data(to, folder.costs), "files": files, "start": folder.start})
        return
    show(Text(f"{output}: {plan_file} for {TARGETS[to].words}, {len(folder.files)} files"))
    show(Text(export_words(folder)))
    note(f"Next: {folder.start}")
