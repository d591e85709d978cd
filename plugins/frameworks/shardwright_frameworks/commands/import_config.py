"""`shardwright import`: the configuration of another framework as a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from profiles.errors import InputError
from shardwright.console.flags import Json
from shardwright.console.output import need_room_for, note, print_json, show
from shardwright_frameworks.imported_run import write_imported

if TYPE_CHECKING:
    from shardwright_frameworks.traces.opened_log import OpenedLog

EXAMPLES = (
    "Examples:\n\n  shardwright import pretrain_gpt.sh -o imported.json\n\n  shardwright import "
    "--command 'torchrun --nproc_per_node 8 pretrain_gpt.py ...'\n\n  shardwright plan --from "
    "imported.json --on 8x8xh100-sxm-80gb"
)
UNRESOLVED = (
    "{count} options have no value in the files (under `unresolved`). Give the command that is "
    "started, with all values: shardwright import --command 'torchrun ...'"
)


def import_config(
    config: Annotated[
        Path | None,
        typer.Argument(metavar="CONFIG", help="script, YAML, JSON, TOML, or a folder"),
    ] = None,
    logs: Annotated[
        list[Path] | None,
        typer.Option("--logs", help="logs or profiles of the run; CONFIG is then optional"),
    ] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--command",
            help="command line, with variables expanded, instead of a script; CONFIG: its folder",
        ),
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", help="file to write")] = None,
    json_output: Json = False,
) -> None:
    """`shardwright import`."""
    # Here, since --help needs none of them.
    from shardwright_frameworks.imported_run import imported_json, need_possible
    from shardwright_frameworks.reading.read_config import COMMAND, read_command, read_config
    from shardwright_frameworks.reports.imported_report import imported_report
    from shardwright_frameworks.traces.opened_log import open_log, opened_log_data

    need_room_for(output)
    if command is not None:
        if config is not None and not config.is_dir():
            raise InputError(
                f"{config}: with --command, CONFIG must be the folder of the files it names"
            )
        run = read_command(command, config or ".")
    elif config is not None:
        run = read_config(config)
        if run.unresolved:
            note(UNRESOLVED.format(count=len(run.unresolved)))
    else:
        if not logs:
            raise InputError("name a configuration, a command (--command) or logs (--logs)")
        read_logs(logs, json_output)
        return
    if output is not None:
        write_imported(output, run)
        note(f"written: {output}")
    if json_output:
        opened = {} if not logs else {"logs": [opened_log_data(open_log(log), log) for log in logs]}
        print_json({**imported_json(run), **opened})
    elif output is None or str(output) != "-":
        show(imported_report(run))
        read_logs(logs or (), False)
    need_possible(run, str(config or COMMAND))


def read_logs(paths: Sequence[Path], as_json: bool) -> tuple[OpenedLog, ...]:
    """Reads, prints and returns logs, profiles, nccl-tests and memory snapshots.

    In JSON, one file is an object, several are `{"logs": [...]}`. Raises DocumentError for any
    other file.
    """
    from shardwright_frameworks.reports.log_report import opened_log_report
    from shardwright_frameworks.traces.opened_log import open_log, opened_log_data

    found = tuple(open_log(path) for path in paths)
    if as_json:
        data = [opened_log_data(each, path) for each, path in zip(found, paths, strict=True)]
        print_json(data[0] if len(data) == 1 else {"logs": data})
        return found
    for each in found:
        show(opened_log_report(each))
    return found
