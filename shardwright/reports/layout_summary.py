"""What `plan` prints without --explain: the layout, what it rests on and what comes next, in about
twelve lines of 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from planner.layout.layout_answer import LayoutFile, layout_title
from planner.space import EXECUTOR
from profiles.hardware.catalogue.catalog import get_device
from profiles.units import format_percent, format_time, format_usd
from shardwright.reports.labelled import labelled
from shardwright.reports.layout_report import parts_of_step, risk_words
from shardwright.reports.price_words import price_lines
from shardwright.reports.terminal import format_interval, memory_words
from simulator.log_interval import probability_less
from simulator.training_run.fit.evidence import evidence_words

# Other frameworks, and runners-up of the same one.
_FRAMEWORKS, _RUNNERS_UP = 2, 2
# Columns of a line after its label.
_WIDTH = 92


def layout_summary(answer: LayoutFile, others: Sequence[LayoutFile] = ()) -> RenderableType:
    """The answer in short.

    others  of the compared frameworks, fastest first; without them, runners-up of the framework
    Raises ValueError for an answer without a layout (`layout_report` explains those).
    """
    chosen = answer.chosen
    if chosen is None:
        raise ValueError("no layout was chosen")
    prediction = chosen.prediction
    step = [f"{format_interval(prediction.step_time_s)}"]
    step.append(f"MFU {format_percent(prediction.mfu.value)}")
    if prediction.usd_per_million_tokens is not None:
        step.append(f"{format_usd(prediction.usd_per_million_tokens.value)} per M tokens")
    if chosen.idle_devices:
        used = chosen.run.degrees.num_devices
        step.append(f"{used:,} devices, {chosen.idle_devices:,} idle")
    capacity = get_device(chosen.run.device).usable_bytes
    memory = memory_words(prediction.peak.value, chosen.required_memory_bytes, capacity)
    evidence = evidence_words(chosen.run)
    rows = framework_rows(answer, others) or _runners_up(answer)
    return Group(
        labelled(
            Text("Best    ", style="bold"),
            f"{answer.stack}: {layout_title(chosen.run)}",
            Text(_proof(answer), style="green"),
        ),
        labelled("Step    ", *step),
        labelled("Memory  ", memory, f"exceeds it with probability {risk_words(chosen)}"),
        labelled("Time    ", parts_of_step(chosen)),
        *(
            labelled("Next    " if not number else "        ", row)
            for number, row in enumerate(rows)
        ),
        labelled("Basis   ", evidence),
        *price_lines(prediction.price_usd_per_hour),
        *_assumed([each for each in answer.assumptions if each != evidence]),
        labelled(
            "More    ", "--explain: ranges, failures, energy, prices, assumptions", style="dim"
        ),
    )


def _proof(answer: LayoutFile) -> str:
    if answer.status == "optimal":
        return "proven optimal"
    return f"within {format_percent(answer.gap or 0.0)} of the best"


def framework_rows(answer: LayoutFile, others: Sequence[LayoutFile]) -> list[str]:
    """The next two frameworks, and our executor, each compared with the answer."""
    chosen = answer.chosen
    if chosen is None:
        return []
    fastest = [each for each in others if each.stack != EXECUTOR][:_FRAMEWORKS]
    own = [each for each in others if each.stack == EXECUTOR]
    rows = []
    for other in (*fastest, *own):
        if other.chosen is None:
            continue
        step = other.chosen.prediction.step_time_s
        words = f"{other.stack}{' (runs here)' if other.stack == EXECUTOR else ''} "
        if other.chosen.run.precision != chosen.run.precision:
            words += f"in {other.chosen.run.precision} "
        words += f"{format_interval(step)}"
        slower = step.value / chosen.prediction.step_time_s.value - 1.0
        if slower >= 0:
            words += f", {format_percent(slower)} slower"
            faster = probability_less(step, chosen.prediction.step_time_s)
            if faster >= 0.05:
                words += f"; faster with probability {format_percent(faster)}"
        else:
            words += ", but its runs are of too few sources"
        rows.append(words)
    return rows


def _runners_up(answer: LayoutFile) -> list[str]:
    return [
        f"{layout_title(each.run)}: {format_time(each.prediction.step_time_s.value)}, "
        f"{each.why_not_first}"
        for each in answer.alternatives[:_RUNNERS_UP]
    ]


def _assumed(assumptions: Sequence[str]) -> list[RenderableType]:
    """The first assumptions, as many as fit in two lines."""
    listed: list[str] = []
    for assumption in assumptions:
        if listed and sum(map(len, listed)) + len(assumption) > 2 * _WIDTH:
            break
        listed.append(assumption)
    if not listed:
        return []
    left = len(assumptions) - len(listed)
    more = f"; {left} more" if left else ""
    return [labelled("Assumed ", "; ".join(listed) + more, style="dim")]
