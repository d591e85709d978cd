"""Origin of a log line: the rank that printed it, and its time of day."""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass

# torchrun (`[rank3]:`, `[default0]:`), srun -l (`3: `), mpirun --tag-output (`[1,3]<stdout>:`), Ray
# (`(Worker pid=12, ip=10.0.0.1)`), pods (`[pod/trainer-0/main]`), hosts of pdsh (`node-7: `).
_PREFIX = re.compile(
    r"\s*(?:"
    r"\[(?:rank|default|RANK)[ ]?(\d+)\]:?"
    r"|\[\d+,(\d+)\]<std(?:out|err)>:?"
    r"|(\d{1,5}):(?=\s)"
    r"|\((\w[\w.() -]*pid=\d+(?:, ip=[\w.:]+)?)\)"
    r"|\[pod/([^\]]+)\]"
    r"|([A-Za-z][\w.-]*\d[\w.-]*):(?=\s*(?:\[|iteration|step|\d{4}-))"
    r")"
)
_NANOTRON = re.compile(r"\[[A-Z]+\|(DP=\d+\|PP=\d+\|TP=\d+(?:\|[^\]]*)?)\]")
_DATE_TIME = re.compile(r"(\d{4})[-/](\d\d)[-/](\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_US_DATE_TIME = re.compile(r"(\d\d)/(\d\d)/(\d{4}) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?")
_ABSL = re.compile(r"\b[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d+)")
_MONTH_DAY = re.compile(r"(?:^|\[)(\d\d)/(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d+))?")
_TIME = re.compile(r"^\s*\[?(\d\d):(\d\d):(\d\d)(?:[.,](\d+))?\b(?!<)")
_EPOCH_MS = re.compile(r'"time_ms": (\d{11,14})\b')
_SEARCHED = 200
_LEAP_YEAR = 2024  # for stamps without a year, so that 29 February exists


@dataclass(frozen=True, slots=True)
class Origin:
    """rank: name of the printing process, "" if there is none; text: the rest of the line."""

    rank: str
    text: str


@dataclass(frozen=True, slots=True)
class Moment:
    """A time of day in a line.

    time_s        seconds since some day
    resolution_s  of its last printed digit
    daily         without a date: seconds since midnight
    """

    time_s: float
    resolution_s: float
    daily: bool = False


def origin_of(line: str) -> Origin:
    """The rank that printed a line, and the line without it.

    >>> origin_of("3: [default0]: iteration 5/ 10 |")
    Origin(rank='3 0', text=' iteration 5/ 10 |')
    """
    names: list[str] = []
    start = 0
    while (found := _PREFIX.match(line, start)) is not None and len(names) < 4:
        names.append(next(group for group in found.groups() if group is not None))
        start = found.end()
    if "|DP=" in line[:200] and (found := _NANOTRON.search(line, start)) is not None:
        names.append(found[1])
    return Origin(" ".join(names), line[start:] if start else line)


def moment_of(line: str) -> Moment | None:
    """The first time of day in the line, None without any. Time zones are ignored, because only
    times of one log are compared.

    >>> moment_of("[2024-04-06 03:02:12] iteration 71/ 100").resolution_s
    1.0
    """
    head = line[:_SEARCHED]
    if '"time_ms": ' in head and (since_1970 := _EPOCH_MS.search(head)) is not None:
        return Moment(int(since_1970[1]) / 1e3, 1e-3)
    if (found := _DATE_TIME.search(head)) is not None:
        return _moment(found.groups()[:3], found.groups()[3:])
    if (found := _US_DATE_TIME.search(head)) is not None:
        month, day, year, *clock = found.groups()
        return _moment((year, month, day), clock)
    if (found := _ABSL.search(head)) is not None or (found := _MONTH_DAY.search(head)) is not None:
        return _moment((str(_LEAP_YEAR), *found.groups()[:2]), found.groups()[2:])
    if (found := _TIME.search(head)) is not None:
        made = _moment((str(_LEAP_YEAR), "01", "01"), found.groups())
        return made and Moment(made.time_s % 86400.0, made.resolution_s, daily=True)
    return None


def _moment(date: tuple[str, ...] | list[str], clock: tuple[str, ...] | list[str]) -> Moment | None:
    hours, minutes, seconds, fraction = (*clock, None)[:4]
    try:
        day = datetime.date(*map(int, date)).toordinal()
    except ValueError:
        return None
    part = float(f"0.{fraction}") if fraction else 0.0
    time_s = day * 86400.0 + int(hours) * 3600 + int(minutes) * 60 + int(seconds) + part
    return Moment(time_s, 10.0 ** -len(fraction) if fraction else 1.0)
