"""Numbers of one run's step in words: products, sums of messages, the larger of two."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from profiles.units import format_time
from simulator.training_run.step_time import larger


def moved(name: str, v: Mapping[str, float], c: Mapping[str, float]) -> float:
    """Seconds of one kind of message: the slowest level's."""
    return max(v[f"{name}_inner"] * c["inner"], v[f"{name}_outer"] * c["outer"], _far(name, v))


def _far(name: str, v: Mapping[str, float]) -> float:
    """Sends between far parts of the machine are a line of their own."""
    return 0.0 if name == "cut" else v[f"{name}_far"]


def moved_numbers(name: str, v: Mapping[str, float], c: Mapping[str, float]) -> str:
    """The same as numbers."""
    inner, outer = v[f"{name}_inner"], v[f"{name}_outer"]
    far = _far(name, v)
    levels = [product(c["inner"], inner), product(c["outer"], outer)]
    levels += [f"slowest level beyond {format_time(far)}"] if far else []
    spent = [words for words in levels if words != "0"]
    return f"slowest of ({', '.join(spent)})" if len(spent) > 1 else (spent or ["0"])[0]


def product(coefficient: float, time_s: float) -> str:
    """`1.2 x 3.4 ms`; `0` where there is no time."""
    return f"{coefficient:.4g} x {format_time(time_s)}" if time_s else "0"


def larger_of(a: float, b: float) -> float:
    """The 6-norm of `step_time.larger`."""
    return float(larger(np.asarray(a), np.asarray(b)))
