"""``python -m planner.yardstick NAME ...``: each public problem is one module of this folder.

A yardstick module offers ``add_arguments(parser)`` and ``run(arguments) -> int`` (the exit code);
its docstring's first line is its help. A new one is a new file here, and nothing else.
"""

import argparse
import importlib
import pkgutil
import sys
from collections.abc import Sequence

import planner.yardstick
from planner.leave import INTERRUPTED, PIPE_CLOSED, heed_termination, leave
from planner.process_age import process_age_s
from profiles.errors import ShardwrightError


def main(argv: Sequence[str] | None = None, *, age_s: float = 0.0) -> int:
    """The exit code of a yardstick: 0 done, 2 wrong input, else what the yardstick itself says.

    `age_s` is what has gone by of the yardstick's time before this call.
    """
    try:
        arguments = _parser().parse_args(argv)
        arguments.age_s = age_s
        return int(arguments.run(arguments))
    except ShardwrightError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        return PIPE_CLOSED
    except KeyboardInterrupt:
        print("error: interrupted before there was an answer", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    """A command for each module of this folder that offers one."""
    parser = argparse.ArgumentParser(
        prog="python -m planner.yardstick", description=planner.yardstick.__doc__
    )
    commands = parser.add_subparsers(dest="yardstick", required=True)
    for found in sorted(
        pkgutil.iter_modules(planner.yardstick.__path__), key=lambda found: found.name
    ):
        if found.name.startswith("_"):
            continue
        module = importlib.import_module(f"planner.yardstick.{found.name}")
        if not hasattr(module, "add_arguments"):
            continue
        first_line = (module.__doc__ or "").strip().partition("\n")[0]
        command = commands.add_parser(found.name, help=first_line, description=module.__doc__)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    heed_termination()
    leave(main(age_s=process_age_s()))
