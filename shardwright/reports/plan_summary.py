"""The short answer of `plan` for a plan block by block: at most twelve lines."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from profiles.units import format_count, format_percent, format_time, format_usd
from shardwright.reports.branch_stages import stages_line
from shardwright.reports.labelled import WIDTH, labelled, one_line, some_of
from shardwright.reports.terminal import format_interval, format_share, memory_words, price_words
from simulator.values.plan_file import PlanFile
from simulator.values.plan_title import plan_title
from simulator.values.prediction import Prediction

_LABEL = 8
_RUNNERS_UP = 3
_LEAST_GAP = 1e-3  # a smaller one is printed as this


def plan_summary(answer: PlanFile, price_notes: Sequence[str] = ()) -> RenderableType:
    """The answer in short.

    price_notes  warnings about the price
    Raises ValueError for an answer without a plan (its report explains those).
    """
    plan, prediction = answer.plan, answer.prediction
    if plan is None or prediction is None:
        raise ValueError("no plan was found")
    full = max(prediction.ranks, key=lambda rank: rank.use)
    memory = memory_words(full.peak_bytes, full.required_bytes, full.capacity_bytes)
    rate, counted = prediction.per_s, prediction.counted_in
    lines: list[RenderableType] = [
        labelled(
            Text("Best    ", style="bold"),
            plan_title(plan),
            Text(_proof(answer), style="green"),
        ),
        one_line(
            "Step    ",
            format_interval(prediction.step_time_s),
            f"MFU {format_share(prediction.mfu)}",
            f"{format_count(rate.value)} {counted} per second",
        ),
        one_line("Memory  ", memory, f"on rank {full.rank}"),
        one_line("Limit   ", prediction.limit),
        one_line("Stages  ", stages_line(plan)),
        _cost(prediction, price_notes),
    ]
    if prediction.price_usd_per_hour is not None:
        lines.append(one_line("Price   ", *price_words(prediction.price_usd_per_hour).split("; ")))
    for number, other in enumerate(answer.alternatives[:_RUNNERS_UP]):
        label = " " * _LABEL if number else "Next    "
        step = format_time(other.step_time_s)
        lines.append(one_line(label, f"{step}: {plan_title(other.plan)}", other.why_not_first))
    old = [each.split(" on 20")[0] for each in price_notes if prediction.price_usd_per_hour]
    if assumed := [*old, *answer.assumptions]:
        lines.append(one_line("Assumed ", some_of(assumed, WIDTH - _LABEL), style="dim"))
    return Group(*lines)


def _proof(answer: PlanFile) -> str:
    if answer.status == "optimal":
        return "proven optimal"
    gap = max(answer.gap or 0.0, _LEAST_GAP)
    return f"at most {format_percent(gap)} above the best there is"


def _cost(prediction: Prediction, price_notes: Sequence[str]) -> RenderableType:
    usd, kwh, counted = (
        prediction.usd_per_million,
        prediction.kwh_per_million,
        prediction.counted_in,
    )
    energy = "" if kwh is None else f"{format_interval(kwh, '{:.3g}'.format)} kWh per M {counted}"
    if usd is None:
        return labelled("Cost    ", *price_notes[:1], energy)
    return one_line("Cost    ", f"{format_interval(usd, format_usd)} per M {counted}", energy)
