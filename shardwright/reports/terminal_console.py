"""The console of all output: at most 100 columns, plain when piped."""

from __future__ import annotations

import os
import sys

from rich.console import Console

WIDTH = 100


class _Console(Console):
    """A rich console that raises on a closed pipe instead of ending with status 1, because
    shardwright/console/leave.py decides how the process ends."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console(*, stderr: bool = False) -> Console:
    """A console of at most 100 columns; no codes at all when piped or under NO_COLOR. Text is
    printed as it is: `[x]` in a name of a user's file is no style.

    Rich itself keeps bold under NO_COLOR (https://no-color.org); whoever sets it wants plain text.
    """
    plain = bool(os.environ.get("NO_COLOR"))
    stream = sys.stderr if stderr else sys.stdout
    width = min(WIDTH, Console(stderr=stderr).width) if stream.isatty() else WIDTH
    return _Console(
        stderr=stderr,
        width=width,
        highlight=False,
        markup=False,
        emoji=False,
        color_system=None if plain else "auto",
    )
