"""The picture of a roofline: both axes logarithmic, a mark per point with its facts on hover."""

from __future__ import annotations

import math

from profiles.units import format_flop, format_percent, format_rate, format_time
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
_MARGIN = 1.6  # of the axes around the outermost points
MOST_OPS = 400  # distinct ops drawn, those with the most time first: the page stays small
MOST_ROWS = 8
METHOD_COLOURS = {"measured": "#1f7a4d", "interpolated": "#4c78a8", "assumed": "#e08214"}
_SHAPES = {"op": "ring", "block": "diamond", "stage": "square"}
_LEVEL_NAMES = {
    "op": "an op, predicted",
    "block": "a block, as the plan prices it",
    "stage": "a stage, timed in the run",
}


def roofline_picture(found: Roofline) -> Picture | None:
    """The scatter under the ceilings; None where there are no points."""
    if not found.points or found.bandwidth_bytes_per_s is None:
        return None
    points = _shown(found.points)
    bandwidth = found.bandwidth_bytes_per_s.value
    peaks = [peak.value for _, peak in found.peaks]
    ridges = [peak / bandwidth for peak in peaks]
    across = _around([p.intensity for p in points] + ridges, LEFT, WIDTH)
    down = _around([p.rate_flop_per_s for p in points] + peaks, HEIGHT - _BOTTOM, _TOP)
    paths, labels = _ceilings(found, across, down)
    grid, ticks = _axes(across, down)
    for point in sorted(points, key=lambda p: ("op", "block", "stage").index(p.level)):
        place = across.at(point.intensity), down.at(point.rate_flop_per_s)
        paths.append(
            Path(
                data=_mark(_SHAPES[point.level], *place),
                colour=METHOD_COLOURS.get(point.method, "#888888"),
                title=title_of(point, found),
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
        note=_note(found, len(found.points) - len(points)),
    )


def roof_flop_per_s(point: RooflinePoint, found: Roofline) -> float:
    """What the device's fastest peak and its bandwidth allow at the point's intensity."""
    assert found.bandwidth_bytes_per_s is not None
    memory = found.bandwidth_bytes_per_s.value * point.intensity
    return min(memory, max((peak.value for _, peak in found.peaks), default=memory))


def title_of(point: RooflinePoint, found: Roofline) -> str:
    """The facts of a point on one line each, for hovering."""
    share = point.rate_flop_per_s / roof_flop_per_s(point, found)
    return "\n".join(
        (
            f"{point.name}, {point.phase}",
            f"{format_time(point.time_s)} per call, {point.count} calls per step",
            f"{format_flop(point.rate_flop_per_s)}/s at {_intensity(point.intensity)} flop/byte: "
            f"{format_percent(share)} of the roof",
            f"time {point.method}: {point.source}",
        )
    )


def _shown(points: tuple[RooflinePoint, ...]) -> list[RooflinePoint]:
    ops = sorted((p for p in points if p.level == "op"), key=lambda p: -p.time_s * p.count)
    return [*ops[:MOST_OPS], *(p for p in points if p.level != "op")]


def _note(found: Roofline, left_out: int) -> str:
    said = (
        f"Device of rank {found.rank}: {found.device}. Bytes are what each op reads and writes by "
        "itself, so a tensor that stays in a cache can lift a point above the slope. Ops that do "
        f"no floating-point work ({format_percent(found.outside_share)} of the priced op time) "
        "have no place here."
    )
    return said + (f" The {left_out} ops with the least time are left out." if left_out else "")


def _around(values: list[float], begin: float, end: float) -> Axis:
    """A logarithmic axis with a margin around positive values."""
    low, high = min(values) / _MARGIN, max(values) * _MARGIN
    return Axis(low=low, high=high, begin=begin, end=end, log=True)


def _ticks(axis: Axis) -> list[float]:
    """1, 2 and 5 times the powers of ten inside; of many, the powers alone or every second one."""
    first, last = math.floor(math.log10(axis.low)), math.ceil(math.log10(axis.high))
    factors = (1.0, 2.0, 5.0) if last - first <= 4 else (1.0,)
    powers = range(first, last + 1, max(1, (last - first) // 8))
    found = [factor * 10.0**power for power in powers for factor in factors]
    return [tick for tick in found if axis.low <= tick <= axis.high]


def _axes(across: Axis, down: Axis) -> tuple[list[Path], list[Label]]:
    bottom = HEIGHT - _BOTTOM
    grid, labels = [], []
    for tick in _ticks(across):
        x = across.at(tick)
        grid.append(Path(data=line(x, _TOP, x, bottom), colour=GRID, width=1))
        labels.append(tick_below(x, bottom + 15, f"{tick:g}"))
    for tick in _ticks(down):
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


def _ceilings(found: Roofline, across: Axis, down: Axis) -> tuple[list[Path], list[Label]]:
    """The slope of the bandwidth and a level line per data type."""
    assert found.bandwidth_bytes_per_s is not None
    bandwidth = found.bandwidth_bytes_per_s
    paths, labels = [], []
    top = max([peak.value for _, peak in found.peaks], default=down.high)
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
    for dtype, peak in found.peaks:
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


def _mark(shape: str, x: float, y: float) -> str:
    """Path data of a mark around a position."""
    if shape == "diamond":
        return f"M{x} {y - 7}l6 7l-6 7l-6-7z"
    if shape == "square":
        return f"M{x - 5} {y - 5}h10v10h-10z"
    return f"M{x - 4} {y}a4 4 0 1 0 8 0a4 4 0 1 0-8 0z"


def op_rows(found: Roofline) -> list[dict[str, str]]:
    """The ops that take the most time of a step, as texts: a picture on paper has no hover."""
    ops = [point for point in found.points if point.level == "op"]
    ops.sort(key=lambda p: (-p.time_s * p.count, p.name, p.phase))
    return [
        {
            "name": f"{p.name}, {p.phase}",
            "calls": str(p.count),
            "time": format_time(p.time_s * p.count),
            "intensity": _intensity(p.intensity),
            "rate": f"{format_flop(p.rate_flop_per_s)}/s",
            "roof": format_percent(p.rate_flop_per_s / roof_flop_per_s(p, found)),
            "method": p.method,
        }
        for p in ops[:MOST_ROWS]
    ]


def _intensity(flop_per_byte: float) -> str:
    return f"{flop_per_byte:.0f}" if flop_per_byte >= 100 else f"{flop_per_byte:.3g}"
