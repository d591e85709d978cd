"""The current work of a long build or trace, for a display of progress in another thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_running: list[Callable[[], str]] = []


@contextmanager
def doing(words: Callable[[], str]) -> Iterator[None]:
    """Within the context, `activity` returns these words."""
    _running.append(words)
    try:
        yield
    finally:
        _running.remove(words)


def activity() -> str:
    """The innermost current work in words, for example `building opt.json`; "" without one."""
    running = _running[-1:]
    return running[0]() if running else ""
