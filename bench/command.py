"""Runs the command of a public problem: ``python -m bench.NAME ...``.

Such a module has ``add_arguments(parser)`` and ``solve_command(arguments) -> int`` (the exit code);
its docstring is its help.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from bench.process_age import process_age_s
from profiles.errors import ShardwrightError
from shardwright.console.leave import INTERRUPTED, PIPE_CLOSED, heed_termination, leave


def main(
    add_arguments: Callable[[argparse.ArgumentParser], None],
    solve_command: Callable[[argparse.Namespace], int],
    help_text: str | None,
    argv: Sequence[str] | None = None,
    *,
    age_s: float = 0.0,
) -> int:
    """The exit code of a command: 0 done, 2 wrong input, else the command's own.

    age_s  seconds of the command's time limit that passed before this call
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
    """Runs a command and ends the process."""
    heed_termination()
    leave(main(add_arguments, solve_command, help_text, age_s=process_age_s()))
