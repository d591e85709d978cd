"""Progress bars of tqdm: `12%|#2 | 120/1000 [05:12<38:10,  2.60s/it, loss=2.1]`.

The clock counts whole seconds. The rate is an exponential mean with weight 0.3 for the newest
update (tqdm 4, `smoothing`), so that steps after a slow one look slow too; `unsmoothed` reverses
this.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwright_frameworks.logs.formats.logged_number import above_zero

SMOOTHING = 0.3
# While a jump (steps that were skipped when a checkpoint was loaded) weighs more than this, the
# rate's decimals are too few.
_KNOWN = 1.3
# Names of one update in progress bars.
_UPDATE = "it|iter|step|batch|ba"
_RATE = re.compile(rf"\ds/(?:{_UPDATE})\b|[\d?] ?(?:{_UPDATE})/s")
_BAR = re.compile(
    r"(?P<done>\d+)(?:/(?P<total>\d+)|(?P<open>it)) "
    r"\[(?P<clock>\d+(?::\d\d){1,2})(?:<(?P<left>[^,\]]*))?,?\s*"
    rf"(?:(?P<rate>[\d.,]+|\?)\s*(?P<unit>s/(?:{_UPDATE})|(?:{_UPDATE})/s))?(?P<rest>[^\]]*)(?:\]|$)"
)
_WORDS = re.compile(r"[A-Za-z][A-Za-z _-]*$")
_EPOCH = re.compile(r"[Ee]poch\W{0,3}(\d+)")
# Titles of progress bars for work other than training.
_OTHERS = re.compile(
    r"load|shard|download|fetch|map|token|generat|eval|valid|test|sav|pack|filter|fold|convert|"
    r"process|sanity|import|resolv|upload|quanti|calib|cast|read|split|warm|compil|skip",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Bar:
    """A progress bar in a line.

    title   the last words before it
    epoch   the number in `Epoch 3:`, None without one
    rate_s  seconds per step by its rate
    rest    text after the rate
    """

    title: str
    epoch: int | None
    done: int
    total: int | None
    clock_s: float
    rate_s: float | None
    rest: str


def has_rate(line: str) -> bool:
    """Whether the line contains a progress bar's rate of updates."""
    return "/" in line and _RATE.search(line) is not None


def training_bar(line: str) -> Bar | None:
    """The last progress bar in the line, if it is for training."""
    if "[" not in line or (":" not in line):
        return None
    bars = list(_BAR.finditer(line))
    if not bars:
        return None
    found = bars[-1]
    before = line[: found.start()].rsplit("%|", 1)[0].rstrip(" :.0123456789")
    words = _WORDS.search(before)
    title = words[0].strip() if words else ""
    epochs = _EPOCH.findall(line[: found.start()])
    if _OTHERS.search(title) or "B/s" in (found["rest"] or ""):
        return None
    rate = above_zero(found["rate"]) if found["rate"] not in (None, "?") else None
    if rate is not None and found["unit"].endswith("/s"):
        rate = 1.0 / rate
    clock_s = 0.0
    for part in found["clock"].split(":"):
        clock_s = 60.0 * clock_s + int(part)
    return Bar(
        title=title,
        epoch=int(epochs[-1]) if epochs else None,
        done=int(found["done"]),
        total=int(found["total"]) if found["total"] else None,
        clock_s=clock_s,
        rate_s=rate,
        rest=found["rest"] or "",
    )


class EpochBars:
    """Converts bars that restart with every epoch to steps of one training. A new epoch has another
    number, or its bar of the same length begins after the end of the previous one."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._last: dict[tuple[str, int], tuple[int, int]] = {}

    def steps_done(self, bar: Bar) -> int:
        """Steps since the beginning of the first epoch in the log."""
        if bar.total is None:
            return bar.done
        if bar.epoch is not None:
            if self._first is None or bar.epoch < self._first:
                self._first = bar.epoch
            return (bar.epoch - self._first) * bar.total + bar.done
        key = (bar.title, bar.total)
        done, before = self._last.get(key, (0, 0))
        if bar.done < done:
            before = before + bar.total if done == bar.total else 0
        self._last[key] = (bar.done, before)
        return before + bar.done


def unsmoothed(
    rate_s: NDArray[np.float64], covers: NDArray[np.float64], *, from_start: bool
) -> NDArray[np.float64]:
    """[bars] seconds per step of each update, from the rates of all updates of a bar.

    tqdm smooths steps and seconds separately and prints their quotient (std.py, `EMA`). Without the
    start of the bar, its first rate is assumed for the time before. nan for a missing rate, and
    after a jump.

    >>> unsmoothed(np.asarray([1.0, 1.0 + 0.3 / 0.51]), np.ones(2), from_start=True).round(6)
    array([1., 2.])
    """
    found = np.full(rate_s.size, np.nan)
    keep = 1.0 - SMOOTHING
    steps = seconds = 0.0
    started = from_start
    for i, (rate, count) in enumerate(zip(rate_s.tolist(), covers.tolist(), strict=True)):
        if np.isnan(rate):
            continue
        if not started:
            started, steps, seconds = True, count, count * rate
        steps = SMOOTHING * count + keep * steps
        now = steps * rate
        if steps <= _KNOWN * count:
            found[i] = max((now - keep * seconds) / (SMOOTHING * count), 1e-9)
        seconds = now
    return found


def rounding_s(rate_s: float) -> float:
    """Rounding error of one update's seconds: half of the second decimal of the rate (in s/it, or
    in it/s below one second), times 1.7 / 0.3.

    >>> round(rounding_s(2.0), 4), round(rounding_s(0.25), 5)
    (0.0283, 0.00177)
    """
    return 0.005 * min(1.0, rate_s**2) * (2.0 - SMOOTHING) / SMOOTHING
