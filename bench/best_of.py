"""`best_of`: the lowest CPU seconds of a few runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
REPEATS = 5


def best_of(run: Callable[[], T], repeats: int = REPEATS) -> tuple[float, T]:
    """(least CPU seconds over a few runs, what the last run returned)."""
    times, results = [], []
    for _ in range(repeats):
        start = time.process_time()
        results.append(run())
        times.append(time.process_time() - start)
    return min(times), results[-1]
