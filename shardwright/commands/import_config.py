"""`shardwright import`: the configuration of another framework as a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from interop.configs.imported_file import write_imported
from interop.configs.imported_run import imported_json
from interop.reading.read_config import read_config
from shardwright.commands.flags import Json
from shardwright.commands.output import need_room_for, note, print_json, show
from shardwright.reports.imported_report import imported_report

EXAMPLES = (
    "Examples:\n\n  shardwright import pretrain_gpt.sh -o imported.json\n\n  shardwright import "
    "run_folder/ --json\n\n  shardwright plan --from imported.json --on 8x8xh100-sxm-80gb"
)


def import_config(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG", help="a script, YAML, JSON, TOML, or a folder")
    ],
    output: Annotated[Path | None, typer.Option("-o", help="write imported.json here")] = None,
    json_output: Json = False,
) -> None:
    """`shardwright import`."""
    need_room_for(output)
    run = read_config(config)
    if output is not None:
        write_imported(output, run)
        note(f"written: {output}")
    if json_output:
        print_json(imported_json(run))
    elif output is None or str(output) != "-":
        show(imported_report(run))
