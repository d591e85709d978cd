"""Picture of memory over a step: predicted curve per rank, measured peaks, device capacity."""

from __future__ import annotations

import math

from profiles.units import format_bytes, format_time
from shardwright.reports.picture import (
    INK,
    LEFT,
    RANK_COLOURS,
    WIDTH,
    Axis,
    Entry,
    Label,
    Path,
    Picture,
    apart,
    even_ticks,
    level,
    line,
    tick_below,
)
from simulator.values.measurement import Measurement
from simulator.values.prediction import MemorySample, Prediction, RankMemory

HEIGHT = 260.0
_TOP, _BOTTOM = 30.0, 24.0
MOST_RANKS = 7  # the number of colors
_COLUMNS = 600  # points of a curve: more would not be visible
# Ratio of capacity to peak from which the capacity is a text, as its line would flatten the curves.
_TEXT_RATIO = 3.0


def memory_picture(prediction: Prediction, measured: Measurement | None) -> Picture:
    """Predicted bytes over the step per rank, with measured peaks as dashed lines.

    The device's capacity is a line, or a text above the picture if it is at least _TEXT_RATIO
    times the highest peak. At most MOST_RANKS ranks are drawn, the fullest ones.
    """
    ranks = _fullest(prediction)
    peaks = {s.rank: s.peak_memory_bytes for s in measured.ranks} if measured else {}
    highest = max([r.peak_bytes for r in ranks] + [peaks.get(r.rank, 0.0) for r in ranks])
    capacities = sorted({rank.capacity_bytes for rank in ranks})
    drawn = [c for c in capacities if c < _TEXT_RATIO * highest]
    top = max([highest, *drawn]) * 1.08
    end_s = max((s.time_s for r in ranks for s in r.timeline), default=0.0)
    end_s = max(end_s, prediction.step_time_s.value)
    across = Axis(high=end_s, begin=LEFT, end=WIDTH)
    down = Axis(high=top, begin=HEIGHT - _BOTTOM, end=_TOP)
    grid, labels = _axes(across, down)
    paths: list[Path] = []
    named: list[tuple[float, str]] = []
    entries: list[Entry] = []
    for number, rank in enumerate(ranks):
        colour = RANK_COLOURS[number % len(RANK_COLOURS)]
        text = f"rank {rank.rank}: peak {format_bytes(rank.peak_bytes)} predicted"
        paths.append(Path(data=_steps(rank.timeline, across, down), colour=colour, title=text))
        if peaks.get(rank.rank):
            y = down.at(peaks[rank.rank])
            peak = f"rank {rank.rank} measured peak {format_bytes(peaks[rank.rank])}"
            paths.append(Path(data=line(LEFT, y, WIDTH, y), colour=colour, dashed=True))
            named.append((y, peak))
            text += f", {format_bytes(peaks[rank.rank])} measured"
        entries.append(Entry(name=text, colour=colour, shape="line"))
    if any(peaks.get(rank.rank) for rank in ranks):
        entries.append(Entry(name="measured peak", colour=INK, shape="dash"))
    for capacity in capacities:
        text = f"the device has {format_bytes(capacity)} for training"
        if capacity in drawn:
            y = down.at(capacity)
            paths.append(Path(data=line(LEFT, y, WIDTH, y), colour=INK, width=2))
            named.append((y, text))
        else:
            times = f"{text}, {capacity / highest:.0f} times the highest peak: above this picture"
            labels.append(Label(x=WIDTH, y=12, text=times, anchor="end", strong=True))
    places = apart([y - 5 for y, _ in named], 13, _TOP, HEIGHT - _BOTTOM)
    labels += [
        Label(x=WIDTH, y=round(y, 1), text=text, anchor="end")
        for y, (_, text) in zip(places, named, strict=True)
    ]
    left_out = len(prediction.ranks) - len(ranks)
    return Picture(
        name="memory",
        height=HEIGHT,
        grid=grid,
        paths=tuple(paths),
        labels=tuple(labels),
        key=tuple(entries),
        note=f"The {len(ranks)} fullest of {len(prediction.ranks)} ranks." if left_out else "",
    )


def _fullest(prediction: Prediction) -> list[RankMemory]:
    order = sorted(prediction.ranks, key=lambda r: (-r.use, r.rank))
    return sorted(order[:MOST_RANKS], key=lambda r: r.rank)


def _steps(timeline: tuple[MemorySample, ...], across: Axis, down: Axis) -> str:
    """Path data of the curve as steps, with the maximum of the samples in each column."""
    width = (WIDTH - LEFT) / _COLUMNS
    columns: dict[int, tuple[float, float]] = {}
    for sample in timeline:
        x, y = across.at(sample.time_s), down.at(sample.memory_bytes)
        column = int((x - LEFT) / width) if len(timeline) > _COLUMNS else len(columns)
        known = columns.get(column)
        columns[column] = (x, y) if known is None else (known[0], min(known[1], y))
    points = list(columns.values())
    if not points:
        return ""
    drawn = f"M{points[0][0]:g} {points[0][1]:g}"
    drawn += "".join(f"H{x:g}V{y:g}" for x, y in points[1:])
    return drawn + f"H{WIDTH:g}"


def _axes(across: Axis, down: Axis) -> tuple[tuple[Path, ...], list[Label]]:
    unit = 1024.0 ** max(0, int(math.log(down.high, 1024))) if down.high > 1 else 1.0
    levels = [
        level(down.at(count * unit), format_bytes(count * unit))
        for count in even_ticks(down.high / unit, 5)
    ]
    times = [
        tick_below(across.at(time_s), HEIGHT - 8, format_time(time_s) if time_s else "0")
        for time_s in even_ticks(across.high, 10)
    ]
    return tuple(grid for grid, _ in levels), [*(label for _, label in levels), *times]
