"""Picture of one step: predicted and measured lanes on one time axis."""

from __future__ import annotations

from collections.abc import Iterable

from profiles.units import format_percent, format_time
from shardwright.reports.picture import (
    COLOURS,
    GRID,
    INK,
    LEFT,
    WIDTH,
    Box,
    Entry,
    Label,
    Path,
    Picture,
    even_ticks,
    line,
    tick_below,
)
from simulator.values.prediction import Event, Prediction

_SAME_END = 1e-3  # largest rounding difference of a timeline's end, as a share of the step
_LANE, _BAR, _SEND = 29.0, 19.0, 3.0
MOST_RANKS = 16  # lanes per group: more cannot be distinguished on a screen
MOST_BOXES = 4000  # boxes with a tooltip each; a page of them is about 0.8 MB
_COLUMN = 0.5  # SVG units: merged boxes begin and end on multiples of it
_NAMES = {
    "forward": "forward",
    "backward": "backward",
    "backward_input": "backward of inputs",
    "backward_weight": "backward of weights",
    "optimizer": "optimizer",
    "gradient_exchange": "gradient exchange",
    "send": "send",
}


def kind_of(event: Event) -> str:
    """The kind of an event, a key of COLOURS; "" for an unknown kind."""
    if event.stream == "send":
        return "send"
    if event.stream == "collective" or event.name in ("data_parallel", "tied"):
        return "gradient_exchange"
    if event.name == "optimizer":
        return "optimizer"
    letter = event.name.lstrip("0123456789")[:1]
    return {
        "F": "forward",
        "B": "backward",
        "I": "backward_input",
        "W": "backward_weight",
    }.get(letter, "")


def timeline_note(made: Prediction) -> str:
    """One line if the timeline does not end with the predicted step, otherwise ""."""
    gap = made.timeline_gap
    if abs(gap) < _SAME_END:
        return ""
    return (
        f"The timeline ends {format_percent(abs(gap))} {'before' if gap > 0 else 'after'} the "
        "predicted step, because that uses an estimate of the idle time of this schedule."
    )


def timeline_picture(
    predicted: tuple[Event, ...],
    measured: tuple[Event, ...],
    *,
    all_in: str = "--trace writes all of them for Perfetto",
) -> Picture:
    """One lane per rank and group, with sends at its lower edge.

    Of more than MOST_RANKS ranks an even selection is drawn. More than MOST_BOXES boxes are merged
    into one path per lane and kind, without tooltips, to keep the page small.

    all_in  text with the place of the single boxes if merged, "" for none
    """
    groups = [(name, _chosen(e)) for name, e in (("predicted", predicted), ("measured", measured))]
    drawn = [event for _, events in groups for event in events]
    end_s = max((event.end_s for event in drawn), default=0.0) or 1.0
    scale = (WIDTH - LEFT) / end_s
    merged = len(drawn) > MOST_BOXES
    boxes: list[Box] = []
    paths: list[Path] = []
    labels: list[Label] = []
    y = 4.0
    for name, events in groups:
        if not events:
            continue
        last_s = max(event.end_s for event in events)
        y += 16
        labels.append(Label(x=0, y=y - 4, text=name, strong=True))
        top = y
        for rank in sorted({event.rank for event in events}):
            labels.append(Label(x=12, y=y + 14, text=f"rank {rank}"))
            own = [event for event in events if event.rank == rank]
            if merged:
                paths += _merged(own, y, scale)
            else:
                boxes += [_box(event, y, scale, name) for event in own]
            y += _LANE
        x = round(LEFT + last_s * scale, 1)
        paths.append(Path(data=line(x, top - 3, x, y - 6), colour=INK, dashed=True, width=1))
        labels.append(
            Label(x=min(x, WIDTH), y=top - 6, text=f"ends at {format_time(last_s)}", anchor="end")
        )
        y += 6
    grid, ticks = _axis(end_s, scale, y)
    ranks = {event.rank for event in (*predicted, *measured)}
    return Picture(
        name="timeline",
        height=y + 18,
        grid=grid,
        boxes=tuple(boxes),
        paths=tuple(paths),
        labels=(*ticks, *labels),
        key=_key(drawn),
        note=_note(len(ranks), merged, all_in),
    )


def _chosen(events: tuple[Event, ...]) -> list[Event]:
    """The events of at most MOST_RANKS ranks: the first, the last and evenly spaced ones."""
    ranks = sorted({event.rank for event in events})
    if len(ranks) > MOST_RANKS:
        last = len(ranks) - 1
        ranks = [ranks[i * last // (MOST_RANKS - 1)] for i in range(MOST_RANKS)]
    kept = set(ranks)
    return [event for event in events if event.rank in kept]


def _note(num_ranks: int, merged: bool, all_in: str) -> str:
    notes = []
    if num_ranks > MOST_RANKS:
        notes.append(f"{MOST_RANKS} of {num_ranks} ranks are drawn.")
    if merged:
        more = f"; {all_in}" if all_in else ""
        notes.append(f"More than {MOST_BOXES} actions: they are drawn without names{more}.")
    return " ".join(notes)


def _key(events: Iterable[Event]) -> tuple[Entry, ...]:
    kinds = {kind_of(event) for event in events}
    return tuple(
        Entry(name=name, colour=COLOURS[kind]) for kind, name in _NAMES.items() if kind in kinds
    )


def _box(event: Event, y: float, scale: float, group: str) -> Box:
    thin = event.stream == "send"
    width = max(0.4, (event.end_s - event.start_s) * scale)
    return Box(
        x=round(LEFT + event.start_s * scale, 2),
        y=y + _BAR + 1 if thin else y,
        width=round(width, 2),
        height=_SEND if thin else _BAR,
        colour=COLOURS.get(kind_of(event), "#888888"),
        # 6.5 units per character of the 10-unit font, measured in Chromium.
        label=event.name if not thin and width > 6.5 * len(event.name) + 2 else "",
        title=f"{event.name}, {group}\n{format_time(event.start_s)} to "
        f"{format_time(event.end_s)}, takes {format_time(event.end_s - event.start_s)}",
    )


def _merged(events: list[Event], y: float, scale: float) -> list[Path]:
    """One path per kind, with boxes rounded to a raster and touching ones joined."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for event in events:
        first = round((LEFT + event.start_s * scale) / _COLUMN)
        last = max(first + 1, round((LEFT + event.end_s * scale) / _COLUMN))
        spans.setdefault(kind_of(event), []).append((first, last))
    paths = []
    for kind, rows in sorted(spans.items()):
        joined: list[list[int]] = []
        for first, last in sorted(rows):
            if joined and first <= joined[-1][1]:
                joined[-1][1] = max(joined[-1][1], last)
            else:
                joined.append([first, last])
        top, height = (y + _BAR + 1, _SEND) if kind == "send" else (y, _BAR)
        data = "".join(
            f"M{a * _COLUMN:g} {top:g}h{(b - a) * _COLUMN:g}v{height:g}H{a * _COLUMN:g}z"
            for a, b in joined
        )
        paths.append(Path(data=data, colour=COLOURS.get(kind, "#888888"), filled=True, width=0))
    return paths


def _axis(end_s: float, scale: float, y: float) -> tuple[tuple[Path, ...], tuple[Label, ...]]:
    grid, ticks = [], []
    for time_s in even_ticks(end_s, 10):
        x = round(LEFT + time_s * scale, 1)
        grid.append(Path(data=line(x, 4, x, y), colour=GRID, width=1))
        ticks.append(tick_below(x, y + 14, format_time(time_s) if time_s else "0"))
    return tuple(grid), tuple(ticks)
