"""Where the commands' words go: results to stdout, what is said about them to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from profiles.document import write_text
from shardwright.report import terminal


def show(what: RenderableType) -> None:
    """Print a result, at most 100 columns."""
    terminal.console().print(what)


def note(text: str) -> None:
    """Say something about how the result came about, on stderr."""
    terminal.console(stderr=True).print(Text(text, style="dim"))


class Bar:
    """A progress bar on a terminal, nothing elsewhere."""

    def __init__(self, title: str, *, quiet: bool) -> None:
        self._bar = Progress(
            TextColumn(title),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[label]}"),
            TimeElapsedColumn(),
            console=terminal.console(stderr=True),
            transient=True,
            disable=quiet or not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task(title, total=1, label="")

    def __enter__(self) -> Callable[..., None]:
        self._bar.start()

        def update(done: int, total: int, label: str = "") -> None:
            self._bar.update(self._task, completed=done, total=total, label=label)

        return update

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def write_or_print(path: Path, text: str) -> None:
    """To a file, or to stdout where the path is `-`."""
    if str(path) == "-":
        sys.stdout.write(text)
    else:
        write_text(path, text)
        note(f"written: {path}")
