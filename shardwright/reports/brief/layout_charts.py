"""Charts of a layout's memory and step by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profiles.units import format_bytes, format_percent, format_time
from shardwright.reports.brief.brief import COLOURS, GREY, Bar, BarChart, between
from simulator.values.prediction import Interval

_GIB = 2**30


def memory_chart(
    parts: Sequence[tuple[str, float]], peak: Interval, capacity_bytes: float, device: str
) -> BarChart:
    """Memory of the fullest device as stacked parts, the interval of its peak, and its capacity."""
    bars, at = [], 0.0
    for number, (name, size) in enumerate(parts):
        colour = COLOURS[number % len(COLOURS)]
        end = at + size / _GIB
        bars.append(Bar(name=name, low=at, high=end, words=format_bytes(size), colour=colour))
        at = end
    words = f"{format_bytes(peak.value)}\n[{between(peak.low, peak.high, format_bytes)}]"
    bars.append(
        Bar(
            name="peak, 90 % interval",
            low=peak.low / _GIB,
            high=peak.high / _GIB,
            words=words,
            colour=GREY,
        )
    )
    return BarChart(
        title="GiB of the fullest device, stacked by part",
        unit="GiB",
        bars=tuple(bars),
        mark=capacity_bytes / _GIB,
        mark_words=f"usable memory of {device}, {format_bytes(capacity_bytes)}",
    )


def parts_chart(parts: Mapping[str, float]) -> BarChart | None:
    """Seconds of one step by part, longest first; None without parts."""
    total = sum(parts.values())
    if not total > 0:
        return None
    ordered = sorted(parts.items(), key=lambda one: -one[1])
    return BarChart(
        title="Seconds of one step, by part",
        unit="seconds",
        bars=tuple(
            Bar(
                name=name,
                low=0.0,
                high=seconds,
                words=f"{format_time(seconds)} ({format_percent(seconds / total)})",
            )
            for name, seconds in ordered
            if seconds > 0
        ),
    )
