"""The Gantt chart of a fleet: clusters as groups of lanes, runs as bars, deadlines as lines."""

from __future__ import annotations

from profiles.units import format_usd
from shardwright.reports.picture import (
    GRID,
    INK,
    RANK_COLOURS,
    WIDTH,
    Axis,
    Box,
    Entry,
    Label,
    Path,
    Picture,
    even_ticks,
    line,
    tick_below,
)
from shardwright_fleet.answer import FleetAnswer, PlannedPhase, PlannedRun
from shardwright_fleet.words import date_of

_LEFT = 150.0
_LANE, _BAR = 26.0, 18.0
_LATE = "#d9534f"
_WIDE = 90.0  # a bar of this width holds a label


def fleet_picture(answer: FleetAnswer) -> Picture:
    """One lane per run and cluster."""
    whole = max(answer.end_h, *(run.deadline_h or 0.0 for run in answer.runs)) / 24.0
    axis = Axis(high=whole, begin=_LEFT, end=WIDTH - 8)
    boxes: list[Box] = []
    labels: list[Label] = []
    paths: list[Path] = []
    y = 4.0
    for cluster in answer.clusters:
        y += 18
        said = f"{cluster.cluster} ({cluster.on}), {cluster.used:.0%} in use"
        labels.append(Label(x=0, y=y - 4, text=said, strong=True))
        for number, run in enumerate(answer.runs):
            phases = [phase for phase in run.phases if phase.cluster == cluster.cluster]
            if not phases:
                continue
            labels.append(Label(x=12, y=y + 14, text=_short(run.job)))
            colour = RANK_COLOURS[number % len(RANK_COLOURS)]
            for phase in phases:
                boxes.append(_box(answer, run, phase, axis, y, colour))
            if run.deadline_h is not None:
                x = axis.at(run.deadline_h / 24.0)
                paths.append(
                    Path(
                        data=line(x, y, x, y + _BAR + 4),
                        colour=_LATE if run.late_h else INK,
                        title=f"{run.job} is due {date_of(answer, run.deadline_h)}",
                        width=2.5,
                    )
                )
            y += _LANE
        y += 6
    ticks = even_ticks(whole)
    grid = [Path(data=line(axis.at(t), 4, axis.at(t), y), colour=GRID, width=1) for t in ticks]
    words = [tick_below(axis.at(t), y + 14, f"{t:g} d") for t in ticks]
    return Picture(
        name="schedule",
        height=y + 20,
        left=_LEFT,
        grid=tuple(grid),
        boxes=tuple(boxes),
        paths=tuple(paths),
        labels=(*labels, *words),
        key=(
            Entry(name="due", colour=INK, shape="line"),
            Entry(name="due, and the run is late", colour=_LATE, shape="line"),
        ),
        note=f"Days after {date_of(answer, 0.0)}; nodes are kept until the end of a bar.",
    )


def _box(
    answer: FleetAnswer,
    run: PlannedRun,
    phase: PlannedPhase,
    axis: Axis,
    y: float,
    colour: str,
) -> Box:
    x, end = axis.at(phase.begin_h / 24.0), axis.at(phase.end_h / 24.0)
    width = max(1.0, round(end - x, 1))
    name = f"{run.job} {phase.phase}".strip()
    rent = f", {format_usd(phase.usd)}" if phase.usd else ""
    return Box(
        x=x,
        y=y,
        width=width,
        height=_BAR,
        colour=colour,
        label=f"{phase.nodes} nodes" if width > _WIDE else "",
        title=f"{name}: {phase.nodes} nodes of {phase.cluster}, {date_of(answer, phase.begin_h)} "
        f"to {date_of(answer, phase.end_h)}{rent}; {phase.price.step.stack}: "
        f"{phase.price.step.layout}",
    )


def _short(text: str) -> str:
    return text if len(text) <= 20 else text[:19] + "…"
