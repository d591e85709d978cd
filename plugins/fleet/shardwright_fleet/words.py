"""Dates and sums of a fleet as text."""

from __future__ import annotations

import datetime

from profiles.units import format_percent, format_usd
from shardwright_fleet.answer import Advice, FleetAnswer, Level

# With a larger gap more time may well bring more.
_SURE = 0.05


def date_of(answer: FleetAnswer, hours: float) -> str:
    """The date `hours` after the start: `2026-12-14 07:00`."""
    begin = datetime.datetime.fromisoformat(answer.start)
    return (begin + datetime.timedelta(hours=hours)).isoformat(sep=" ", timespec="minutes")


def level_words(level: Level) -> str:
    """`cost $1.20 M, none below $1.18 M (gap 1.7 %)`."""
    if level.name == "cost":
        value, bound = format_usd(level.value), format_usd(level.bound)
    else:
        value, bound = f"{level.value:.1f} d", f"{level.bound:.1f} d"
    if level.gap <= 1e-4:
        return f"{level.name} {value}, proven"
    return f"{level.name} {value}, none below {bound} (gap {format_percent(level.gap)})"


def advice_words(one: Advice) -> str:
    """`2.3 days of lateness less, $12.0 k less, all done 1.2 days earlier`."""
    said = []
    if abs(one.late_days) >= 0.05:
        said.append(f"{abs(one.late_days):.1f} days of lateness {_side(one.late_days)}")
    if abs(one.usd) >= 1:
        said.append(f"{format_usd(abs(one.usd))} {_side(one.usd)}")
    if abs(one.end_days) >= 0.05:
        when = "earlier" if one.end_days < 0 else "later"
        said.append(f"all done {abs(one.end_days):.1f} days {when}")
    if not said:
        return "nothing better was found" + (" in the time" if one.gap > _SURE else "")
    return ", ".join(said)


def _side(change: float) -> str:
    return "less" if change < 0 else "more"
