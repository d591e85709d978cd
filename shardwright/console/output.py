"""Output of commands: results on stdout, progress and notes on stderr."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from profiles.document import need_writable, to_json, write_text
from profiles.model.activity import activity
from profiles.units import format_time
from shardwright.reports.labelled import labelled
from shardwright.reports.terminal_console import console


def show(result: RenderableType) -> None:
    """Print a result, at most 100 columns."""
    console().print(result)


def print_price_notes(notes: Sequence[str]) -> None:
    """Print price warnings (requests/price_request.py) under a report."""
    for words in notes:
        show(labelled("Price:  ", words, style="dim"))


def note(text: str) -> None:
    """Print a remark on stderr."""
    console(stderr=True).print(Text(text, style="dim"))


class Bar:
    """A progress bar on a terminal; otherwise an occasional line."""

    def __init__(self, title: str, *, quiet: bool) -> None:
        self._title = title
        self._lines = None if quiet or sys.stderr.isatty() else EveryNowAndThen()
        self._bar = Progress(
            TextColumn(title),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[label]}"),
            TimeElapsedColumn(),
            console=console(stderr=True),
            transient=True,
            disable=quiet or not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task(title, total=1, label="")

    def __enter__(self) -> Callable[..., None]:
        self._bar.start()

        def update(done: int, total: int, label: str = "") -> None:
            self._bar.update(self._task, completed=done, total=total, label=label)
            if self._lines is not None:
                self._lines.update(lambda: f"{self._title}: {done} of {total} {label}".rstrip())

        return update

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


class EveryNowAndThen:
    """Progress without a terminal: one line on stderr every 15 seconds."""

    INTERVAL_S = 15.0

    def __init__(self) -> None:
        self._begin = self._last = time.monotonic()

    def update(self, words: Callable[[], str]) -> None:
        """Print the words if the next line is due."""
        now = time.monotonic()
        if now - self._last >= self.INTERVAL_S:
            self._last = now
            note(f"{words()} ({now - self._begin:.0f} s)")


_LIVE_AFTER_S = 5.0


class Heartbeat:
    """Progress of a build or trace: a live line on a terminal after 5 seconds, otherwise a line
    every 15 seconds."""

    def __init__(self, title: str, *, quiet: bool = False) -> None:
        self._title, self._quiet = title, quiet
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> Heartbeat:
        if not self._quiet:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Print no further line."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _beat(self) -> None:
        begin, live = time.monotonic(), sys.stderr.isatty()
        wait_s = _LIVE_AFTER_S if live else EveryNowAndThen.INTERVAL_S
        while not self._ended.wait(wait_s):
            words = ": ".join(filter(None, (self._title, activity())))
            words = f"{words} ({time.monotonic() - begin:.0f} s)"
            if live:
                wait_s = 1.0
                _overwrite(words)
            else:
                note(words)
        if live:
            _overwrite("")


def _overwrite(words: str) -> None:
    """Replace the current line of the terminal's stderr."""
    sys.stderr.write(f"\r\x1b[K{words[: console(stderr=True).width - 1]}")
    sys.stderr.flush()


class SearchProgress:
    """Bound, best and gap of a search: live on a terminal, otherwise an occasional line."""

    def __init__(self, *, quiet: bool) -> None:
        self._live = not quiet and sys.stderr.isatty()
        self._lines = None if quiet or self._live else EveryNowAndThen()

    def __enter__(self) -> Callable[[float, float, float, float], None]:
        def progress(bound: float, best: float, gap: float, seconds: float) -> None:
            found = format_time(best) if best < float("inf") else "none yet"
            text = f"bound {format_time(bound)}  best {found}  gap {gap:.1%}"
            if self._live:
                _overwrite(f"{text}  {seconds:.1f} s")
            elif self._lines is not None:
                self._lines.update(lambda: text)

        return progress

    def __exit__(self, *_: object) -> None:
        if self._live:
            _overwrite("")


def write_or_print(path: Path, text: str) -> None:
    """Write a text to a file, or to stdout for the path `-`."""
    if str(path) == "-":
        sys.stdout.write(text)
    else:
        write_text(path, text)
        note(f"written: {path}")


def print_json(data: Any) -> None:
    """Plain values as JSON on stdout."""
    sys.stdout.write(to_json(data))


def need_room_for(*files: Path | None) -> None:
    """Raises DocumentError if an output file cannot be written, before the command does its work;
    `-` is stdout, None means no file."""
    for file in files:
        if file is not None and str(file) != "-":
            need_writable(file)
