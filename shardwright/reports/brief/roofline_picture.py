"""Picture of a roofline: logarithmic axes, one mark per point with its facts on hover."""

from __future__ import annotations

import math

from profiles.units import format_flop, format_percent, format_rate, format_time
from shardwright.reports.brief.scatter import log_axis, log_ticks, mark
from shardwright.reports.picture import (
    GRID,
    INK,
    LEFT,
    WIDTH,
    Axis,
    Entry,
    Label,
    Path,
    Picture,
    level,
    line,
    tick_below,
)
from shardwright.reports.roofline import Roofline, RooflinePoint

HEIGHT = 380.0
_TOP, _BOTTOM = 22.0, 44.0
MOST_OPS = 400  # distinct ops drawn, by time, to keep the page small
MOST_ROWS = 8
METHOD_COLOURS = {"measured": "#1f7a4d", "interpolated": "#4c78a8", "assumed": "#e08214"}
_SHAPES = {"op": "ring", "block": "diamond", "stage": "square"}
_LEVEL_NAMES = {
    "op": "an op, predicted",
    "block": "a block, as the plan prices it",
    "stage": "a stage, timed in the run",
}


def roofline_picture(roofline: Roofline) -> Picture | None:
    """The points below the ceilings; None without points."""
    if not roofline.points or roofline.bandwidth_bytes_per_s is None:
        return None
    points = _drawn(roofline.points)
    bandwidth = roofline.bandwidth_bytes_per_s.value
    peaks = [peak.value for _, peak in roofline.peaks]
    ridges = [peak / bandwidth for peak in peaks]
    across = log_axis([p.intensity for p in points] + ridges, LEFT, WIDTH)
    down = log_axis([p.rate_flop_per_s for p in points] + peaks, HEIGHT - _BOTTOM, _TOP)
    paths, labels = _ceilings(roofline, across, down)
    grid, ticks = _axes(across, down)
    for point in sorted(points, key=lambda p: ("op", "block", "stage").index(p.level)):
        place = across.at(point.intensity), down.at(point.rate_flop_per_s)
        paths.append(
            Path(
                data=mark(_SHAPES[point.level], *place, size=4.0),
                colour=METHOD_COLOURS.get(point.method, "#888888"),
                title=title_of(point, roofline),
                filled=True,
            )
        )
    levels = [name for name in _LEVEL_NAMES if any(p.level == name for p in points)]
    methods = [name for name in METHOD_COLOURS if any(p.method == name for p in points)]
    return Picture(
        name="roofline",
        height=HEIGHT,
        grid=tuple(grid),
        paths=tuple(paths),
        labels=(*ticks, *labels),
        key=(
            *(Entry(name=f"time {name}", colour=METHOD_COLOURS[name]) for name in methods),
            *(Entry(name=_LEVEL_NAMES[n], colour="#5d6b7a", shape=_SHAPES[n]) for n in levels),
        ),
        note=_note(roofline, len(roofline.points) - len(points)),
    )


def roof_flop_per_s(point: RooflinePoint, roofline: Roofline) -> float:
    """Limit of the device's fastest peak and its bandwidth at the point's intensity, in flop/s."""
    assert roofline.bandwidth_bytes_per_s is not None
    memory = roofline.bandwidth_bytes_per_s.value * point.intensity
    return min(memory, max((peak.value for _, peak in roofline.peaks), default=memory))


def title_of(point: RooflinePoint, roofline: Roofline) -> str:
    """The facts of a point for its tooltip, one per line."""
    share = point.rate_flop_per_s / roof_flop_per_s(point, roofline)
    return "\n".join(
        (
            f"{point.name}, {point.phase}",
            f"{format_time(point.time_s)} per call, {point.count} calls per step",
            f"{format_flop(point.rate_flop_per_s)}/s at {_intensity(point.intensity)} flop/byte: "
            f"{format_percent(share)} of the roof",
            f"time {point.method}: {point.source}",
        )
    )


def _drawn(points: tuple[RooflinePoint, ...]) -> list[RooflinePoint]:
    ops = sorted((p for p in points if p.level == "op"), key=lambda p: -p.time_s * p.count)
    return [*ops[:MOST_OPS], *(p for p in points if p.level != "op")]


def _note(roofline: Roofline, left_out: int) -> str:
    text = (
        f"Device of rank {roofline.rank}: {roofline.device}. Bytes count the reads and writes of "
        "each op alone, so a tensor in a cache can lift a point above the slope. Ops without "
        f"floating-point work ({format_percent(roofline.outside_share)} of the predicted op time) "
        "are not drawn."
    )
    return text + (f" The {left_out} ops with the least time are omitted." if left_out else "")


def _axes(across: Axis, down: Axis) -> tuple[list[Path], list[Label]]:
    bottom = HEIGHT - _BOTTOM
    grid, labels = [], []
    for tick in log_ticks(across):
        x = across.at(tick)
        grid.append(Path(data=line(x, _TOP, x, bottom), colour=GRID, width=1))
        labels.append(tick_below(x, bottom + 15, f"{tick:g}"))
    for tick in log_ticks(down):
        path, label = level(down.at(tick), _rate_name(tick))
        grid.append(path)
        labels.append(label)
    middle = (LEFT + WIDTH) / 2
    labels.append(
        Label(x=middle, y=HEIGHT - 8, text="arithmetic intensity, flop per byte", anchor="middle")
    )
    return grid, labels


def _rate_name(rate_flop_per_s: float) -> str:
    number, unit = format_flop(rate_flop_per_s).split(" ")
    return f"{float(number):g} {unit}/s"


def _ceilings(roofline: Roofline, across: Axis, down: Axis) -> tuple[list[Path], list[Label]]:
    """The slope of the bandwidth, and a horizontal line per data type."""
    assert roofline.bandwidth_bytes_per_s is not None
    bandwidth = roofline.bandwidth_bytes_per_s
    paths, labels = [], []
    top = max([peak.value for _, peak in roofline.peaks], default=down.high)
    start = max(across.low, down.low / bandwidth.value)
    end = min(top / bandwidth.value, across.high)
    slope = line(
        across.at(start),
        down.at(start * bandwidth.value),
        across.at(end),
        down.at(end * bandwidth.value),
    )
    paths.append(
        Path(data=slope, colour=INK, title=f"bandwidth: {bandwidth.source} ({bandwidth.date})")
    )
    middle = math.sqrt(start * end)
    labels.append(
        Label(
            x=across.at(middle) + 12,
            y=down.at(middle * bandwidth.value) + 16,
            text=f"{format_rate(bandwidth.value)} ({bandwidth.method})",
            strong=True,
        )
    )
    for dtype, peak in roofline.peaks:
        left, y = max(across.low, peak.value / bandwidth.value), down.at(peak.value)
        paths.append(
            Path(
                data=line(across.at(left), y, WIDTH, y),
                colour=INK,
                title=f"{dtype}: {peak.source} ({peak.date})",
            )
        )
        labels.append(
            Label(
                x=WIDTH,
                y=y - 6,
                text=f"{dtype} {format_flop(peak.value)}/s ({peak.method})",
                anchor="end",
                strong=True,
            )
        )
    return paths, labels


def op_rows(roofline: Roofline) -> tuple[tuple[str, ...], ...]:
    """The ops with the most time in a step: name, calls, time, flop per byte, speed, its share of
    the roof, and how the time is known."""
    ops = [point for point in roofline.points if point.level == "op"]
    ops.sort(key=lambda p: (-p.time_s * p.count, p.name, p.phase))
    return tuple(
        (
            f"{p.name}, {p.phase}",
            str(p.count),
            format_time(p.time_s * p.count),
            _intensity(p.intensity),
            f"{format_flop(p.rate_flop_per_s)}/s",
            format_percent(p.rate_flop_per_s / roof_flop_per_s(p, roofline)),
            p.method,
        )
        for p in ops[:MOST_ROWS]
    )


def _intensity(flop_per_byte: float) -> str:
    return f"{flop_per_byte:.0f}" if flop_per_byte >= 100 else f"{flop_per_byte:.3g}"
