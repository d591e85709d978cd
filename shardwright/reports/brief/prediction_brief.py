"""The report of a predicted step alone: its parts, and the memory of every rank."""

from __future__ import annotations

from collections.abc import Sequence

from profiles.units import format_bytes, format_count, format_percent, format_time
from shardwright.analysis.plan_sheet import MEMORY_PARTS
from shardwright.reports.brief.brief import Brief, Section, Table
from shardwright.reports.terminal import format_interval, format_share
from simulator.values.prediction import Interval, Prediction


def prediction_brief(
    prediction: Prediction,
    peak: Interval | None,
    *,
    title: str = "Prediction",
    assumptions: Sequence[str] = (),
) -> Brief:
    """Step time by part, memory by rank, and assumptions; peak  in bytes, None if not known."""
    kwh, unit = prediction.kwh_per_million, prediction.counted_in
    figures = [
        f"step {format_interval(prediction.step_time_s)}",
        f"MFU {format_share(prediction.mfu)}",
        f"{format_count(prediction.per_s.value)} {unit}/s",
        *([f"peak {format_interval(peak, format_bytes)}"] if peak is not None else []),
        *([f"{kwh.value:.3g} kWh per M {unit}"] if kwh is not None else []),
    ]
    ranks = (rank_table(prediction),) if prediction.ranks else ()
    section = Section(
        title="Step and memory",
        tables=(_part_table(prediction), *ranks),
        note=f"Assumed: {'; '.join(assumptions)}" if assumptions else "",
    )
    return Brief(
        title=title, headline=title, subtitle=", ".join(figures), facts=(), sections=(section,)
    )


def _part_table(prediction: Prediction) -> Table:
    step_s = prediction.step_time_s.value
    rows = [
        (part.words, format_time(seconds), format_percent(seconds / step_s))
        for part, seconds in prediction.seconds.items()
    ]
    total = ("step", format_time(step_s), "100 %")
    return Table(heads=("part of the step", ">time", ">share"), rows=(*rows, total))


def rank_table(prediction: Prediction) -> Table:
    """Memory of every rank at its peak, by part, and its capacity."""
    required = prediction.required_memory_bytes is not None
    rows = []
    for rank in prediction.ranks:
        sizes = [getattr(rank, field) for _, field in MEMORY_PARTS]
        sizes += [rank.peak_bytes, *((rank.limiting_bytes,) if required else ())]
        rows.append((str(rank.rank), *map(format_bytes, (*sizes, rank.capacity_bytes))))
    names = (f">{name}" for name, _ in MEMORY_PARTS)
    heads = (">rank", *names, ">peak", *((">needs",) if required else ()), ">has")
    return Table(heads=heads, rows=tuple(rows))
