"""Terminal report of a predicted step, by part."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from profiles.units import format_percent, format_time
from shardwright.reports.terminal import format_interval, table
from shardwright.requests.planned_step import PlannedStep


def step_report(step: PlannedStep) -> RenderableType:
    """Title, step time by part, memory, and assumptions."""
    rows = table("part of the step", ">time", ">share")
    for part, seconds in step.parts.items():
        share = format_percent(seconds / step.step_time_s.value)
        rows.add_row(part.words, format_time(seconds), share)
    facts = f"step {format_interval(step.step_time_s)}"
    if step.peak_memory_gib is not None:
        facts += f"   peak {step.peak_memory_gib.value:.3g} GiB"
    parts: list[RenderableType] = [Text(step.title, "bold"), Text(facts), rows]
    if step.assumed:
        parts.append(Text(f"Assumed: {'; '.join(step.assumed)}", style="dim"))
    return Group(*parts)
