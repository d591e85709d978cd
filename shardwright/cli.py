"""The command line: its commands in the order of the help, and its exit codes.

Imports typer and rich only; shardwright/commands/NAME.py is imported when NAME runs.
"""

from __future__ import annotations

import errno
import gc
import importlib
import os
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer
import typer.core

from profiles.errors import ShardwrightError
from shardwright.plugins.plugin import Command, missing_plugin, plugin_commands

# One line per command, in the order of the help.
COMMANDS = {
    "fit": "Show the parts and memory of a model, and the devices on which its training fits.",
    "plan": (
        "Find the fastest plan of a model on a cluster, with its bound and runners-up. Lists of "
        "models, clusters or prices make a sweep into the folder -o. With --from, rank the "
        "changes of an imported run."
    ),
    "sweep": (
        "Answer thousands of `plan` and `size` requests from one file. The answers go into SQLite, "
        "Parquet and CSV; an interrupted sweep continues with the same command."
    ),
    "size": (
        "Find what to rent for a training run: devices, days, dollars and energy. Each has "
        "an interval. Leave out tokens, deadline, budget or devices to solve for them."
    ),
    "predict": (
        "Explain one plan: parts of its time and memory, with sources. Or predict each row of a "
        "table of runs (--runs) or modules (--modules)."
    ),
    "profile": (
        "Measure this machine for `--on local`. Or calibrate predictions to your cluster with "
        "its logs, runs or nccl-tests (--from)."
    ),
    "run": (
        "Run a plan with torchrun on this machine and measure it. For a sharding file, compare "
        "values, gradients and collectives with the plan."
    ),
    "compare": (
        "Compare a prediction with a measurement, part by part. Or two plans, or a plan with a "
        "training log (--log)."
    ),
    "catalog": "List devices and prices, with the source of each number.",
    "ui": (
        "Open a local web page for `plan` and `size`, with charts. Every view has an address and a "
        "command line."
    ),
    "demo": "Profile this machine, plan, run on two processes and compare.",
}


# Commands of this repository's plug-ins, with the plug-in to install.
PLUGIN_FOLDERS = {
    "check": "plugins/frameworks",
    "export": "plugins/frameworks",
    "fleet": "plugins/fleet",
    "import": "plugins/frameworks",
    "shard": "plugins/placements",
    "validate": "evidence",
    "watch": "plugins/frameworks",
}


class _Commands(typer.core.TyperGroup):
    """The commands of the core and of plug-ins. Plug-ins are loaded only for a command that the
    core does not have."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.known: dict[str, Command] = {}
        folder = "shardwright.commands"
        for name, words in COMMANDS.items():
            self._add({name: Command(help=words, module=f"{folder}.{name}", function=name)})

    def _add(self, added: Mapping[str, Command]) -> None:
        self.known |= added
        for name, each in added.items():
            self.commands[name] = typer.core.TyperCommand(name, help=each.help)

    def list_commands(self, ctx: Any) -> list[str]:
        self._add(plugin_commands())
        return super().list_commands(ctx)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS:
            self._add(plugin_commands())
        folder = PLUGIN_FOLDERS.get(args[0])
        if folder is not None and args[0] not in self.known:
            raise missing_plugin(f"the command {args[0]!r}", folder)
        name, _, rest = super().resolve_command(ctx, args)
        assert name is not None  # an unknown command has ended in an error
        command = self.known[name]
        module = importlib.import_module(command.module)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None)
        run = getattr(module, command.function)
        alone.command(name, help=command.help, epilog=module.EXAMPLES)(run)
        return name, typer.main.get_command(alone), rest


app = typer.Typer(
    cls=_Commands,
    help="Plan, predict, run and verify distributed training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help in 0.44 s of CPU; rich's took 0.69 s (2026-11-29)
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(requested: bool) -> None:
    if requested:
        from shardwright import __version__

        sys.stdout.write(f"shardwright {__version__}\n")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version, is_eager=True, help="print the version and exit"
        ),
    ] = False,
) -> None:
    """Plan, predict, run and verify distributed training."""


def main() -> None:
    """Entry point: the command, then the end of the process with its status."""
    from shardwright.console.leave import heed_termination, leave

    heed_termination()
    gc.set_threshold(100_000, 20, 20)  # after every 700 new objects: 1.3 of the 17 s of a plan
    try:
        _run()
    except SystemExit as stop:
        leave(stop.code if isinstance(stop.code, int) else 0)
    leave(0)


def _run() -> None:
    """The command; turns errors into one paragraph on stderr and an exit status."""
    from shardwright.console.leave import INTERRUPTED, PIPE_CLOSED

    try:
        # typer returns the exit status for Ctrl-C (130) and typer.Exit.
        status = app(standalone_mode=False)
        if status == INTERRUPTED:
            raise KeyboardInterrupt
        if isinstance(status, int):
            sys.exit(status)
    except ShardwrightError as error:
        _complain(str(error))
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        _complain("interrupted; nothing half-written is left")
        sys.exit(INTERRUPTED)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except BrokenPipeError:
        sys.exit(PIPE_CLOSED)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            _complain(f"the output cannot be written: {error.strerror}; make room")
            sys.exit(2)
        usage = getattr(error, "format_message", None)
        if usage is not None:
            _complain(usage().replace("Value error, ", ""))  # pydantic's, through typer
            sys.exit(2)
        if os.environ.get("SHARDWRIGHT_TRACEBACK"):
            raise
        _complain(
            f"this is a fault of Shardwright's, not yours: {type(error).__name__}: {error}. Please "
            "report it with the command and your files"
        )
        sys.exit(1)


def _complain(message: str) -> None:
    from rich.text import Text

    from shardwright.reports.terminal_console import console

    console(stderr=True).print(Text.assemble(("error: ", "bold red"), message))


if __name__ == "__main__":
    main()
