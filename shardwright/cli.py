"""The command line: its commands in the order of the help, and how it ends.

Typer and rich only at import; everything else when a command runs.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated

import typer

from shardwright.flags import judging, machine, planning

app = typer.Typer(
    help="Plan, predict, run and verify distributed training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(asked: bool) -> None:
    if asked:
        from shardwright import __version__

        sys.stdout.write(f"shardwright {__version__}\n")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="the release, and end"),
    ] = False,
) -> None:
    """Plan, predict, run and verify distributed training."""


app.command(epilog=planning.FIT_EXAMPLES)(planning.fit)
app.command(epilog=planning.PLAN_EXAMPLES)(planning.plan)
app.command(epilog=judging.PREDICT_EXAMPLES)(judging.predict)
app.command(epilog=machine.PROFILE_EXAMPLES)(machine.profile)
app.command(epilog=machine.RUN_EXAMPLES)(machine.run)
app.command(epilog=planning.SHARD_EXAMPLES)(planning.shard)
app.command(epilog=judging.COMPARE_EXAMPLES)(judging.compare)
app.command(epilog=judging.VALIDATE_EXAMPLES)(judging.validate)
app.command(epilog=machine.CATALOG_EXAMPLES)(machine.catalog)
app.command(epilog=machine.DEMO_EXAMPLES)(machine.demo)


def main() -> None:
    """Entry point: the command, then the end of the process with its status."""
    from planner.many.leave import heed_termination, leave

    heed_termination()
    try:
        _run()
    except SystemExit as stop:
        leave(stop.code if isinstance(stop.code, int) else 0)
    leave(0)


def _run() -> None:
    """The command; turns errors into one paragraph on stderr and an exit status."""
    from planner.many.leave import INTERRUPTED, PIPE_CLOSED
    from profiles.errors import ShardwrightError

    try:
        # typer gives Ctrl-C (130) and typer.Exit back as the status that they stand for.
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
            _complain(usage())
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

    from shardwright.reports.terminal import console

    console(stderr=True).print(Text.assemble(("error: ", "bold red"), message))


if __name__ == "__main__":
    main()
