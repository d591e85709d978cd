"""Picture of the probability that a run has ended, over days."""

from __future__ import annotations

from collections.abc import Sequence

from profiles.units import format_percent
from shardwright.reports.brief.brief import BLUE, RED
from shardwright.reports.brief.scatter import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    AxisWords,
    frame,
)
from shardwright.reports.picture import (
    GRID,
    INK,
    Axis,
    Box,
    Entry,
    Label,
    Path,
    Picture,
    even_ticks,
    line,
)

_BAND = "#dfe8f3"


def completion_picture(
    probabilities: Sequence[float],
    days: Sequence[float],
    *,
    interval: tuple[float, float, float],
    deadline: float | None = None,
    probability_of_deadline: float | None = None,
) -> Picture:
    """Distribution of the duration with its median, 90 % interval and deadline.

    interval  (low, median, high) in days
    """
    low, middle, high = interval
    right = max(days[-1], high, deadline or 0.0) * 1.06
    across = Axis(high=right, begin=LEFT, end=WIDTH - RIGHT)
    up = Axis(high=1.0, begin=HEIGHT - BOTTOM, end=TOP)
    grid, labels = frame(
        AxisWords(name="days from the start", written=str),
        AxisWords(name="probability that the run has ended", written=str),
    )
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        y = up.at(share)
        grid.append(Path(data=line(LEFT, y, WIDTH - RIGHT, y), colour=GRID, width=1))
        labels.append(Label(x=LEFT - 8, y=y + 5, text=f"{share:.0%}", anchor="end"))
    for value in even_ticks(right, 6):
        labels.append(
            Label(x=across.at(value), y=HEIGHT - BOTTOM + 20, text=f"{value:.4g}", anchor="middle")
        )
    box = Box(
        x=across.at(low),
        y=TOP,
        width=round(across.at(high) - across.at(low), 1),
        height=HEIGHT - BOTTOM - TOP,
        colour=_BAND,
        title=f"90 % interval: {low:.3g} to {high:.3g} days",
    )
    spots = [(across.at(0.0), up.at(0.0))]
    spots += [
        (across.at(day), up.at(share)) for day, share in zip(days, probabilities, strict=True)
    ]
    paths = [
        Path(
            data="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in spots),
            colour=BLUE,
            width=2.5,
            title="probability that the run has ended",
        ),
        Path(
            data=line(across.at(middle), up.at(0.0), across.at(middle), up.at(0.5)),
            colour=INK,
            width=1.4,
        ),
    ]
    key = [
        Entry(name=f"median {middle:.3g} days", colour=INK, shape="line"),
        Entry(name=f"90 % interval, {low:.3g} to {high:.3g} days", colour=_BAND),
    ]
    if deadline is not None:
        x = across.at(deadline)
        paths.append(Path(data=line(x, up.at(0.0), x, TOP), colour=RED, dashed=True, width=1.8))
        text = f"deadline, {deadline:.3g} days"
        if probability_of_deadline is not None:
            text += f": probability {format_percent(probability_of_deadline)}"
        key.append(Entry(name=text, colour=RED, shape="dash"))
    return Picture(
        name="completion",
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        grid=tuple(grid),
        boxes=(box,),
        paths=tuple(paths),
        labels=tuple(labels),
        key=tuple(key),
    )
