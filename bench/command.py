"""What the commands of public problems share: ``python -m bench.NAME ...``.

Such a module has ``add_arguments(parser)`` and ``solve_command(arguments) -> int`` (the exit code);
its docstring is its help.
"""

import argparse
import contextlib
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

from bench.process_age import process_age_s
from profiles.errors import ShardwrightError
from shardwright.console.leave import INTERRUPTED, PIPE_CLOSED, heed_termination, leave

SOLVER_THREAD = "strategy graph solver"
"""The name of the threads of a solve (`strategy_graph/solve.py`)."""


def main(
    add_arguments: Callable[[argparse.ArgumentParser], None],
    solve_command: Callable[[argparse.Namespace], int],
    help_text: str | None,
    argv: Sequence[str] | None = None,
    *,
    age_s: float = 0.0,
) -> int:
    """The exit code of a command: 0 done, 2 wrong input, else the command's own.

    age_s  seconds of the command's time limit that had passed before this call
    """
    try:
        parser = argparse.ArgumentParser(description=help_text)
        add_arguments(parser)
        arguments = parser.parse_args(argv)
        arguments.age_s = age_s
        return solve_command(arguments)
    except ShardwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return PIPE_CLOSED
    except KeyboardInterrupt:
        print("error: interrupted before there was an answer", file=sys.stderr)
        return INTERRUPTED


def start(
    add_arguments: Callable[[argparse.ArgumentParser], None],
    solve_command: Callable[[argparse.Namespace], int],
    help_text: str | None,
) -> NoReturn:
    """Runs a command and ends the process, at once where a solver still runs.

    A solve whose time is up does not wait for HiGHS, which looks at the clock now and then only.
    If the interpreter took itself down, that thread would be cut off inside C++, which ends the
    process with `terminate called without an active exception` and status 134.
    """
    heed_termination()
    status = main(add_arguments, solve_command, help_text, age_s=process_age_s())
    if any(thread.name == SOLVER_THREAD for thread in threading.enumerate()):
        try:
            leave(status)
        except SystemExit as ending:
            with contextlib.suppress(OSError):
                sys.stderr.flush()
            os._exit(int(ending.code or 0))
    leave(status)
