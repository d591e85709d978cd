"""`readme`: the README of an exported folder, one screen long."""

from __future__ import annotations

from profiles.units import format_bytes, format_time
from shardwright_frameworks.exports.cost_of_gaps import CostOfGaps, PricedGap
from shardwright_frameworks.exports.plan_check import STEPS, WARM_UP
from shardwright_frameworks.exports.tested_versions import version_words
from shardwright_frameworks.exports.values.exported import Exported
from shardwright_frameworks.exports.values.planned_run import PlannedRun


def readme(
    planned: PlannedRun,
    exported: Exported,
    costs: CostOfGaps,
    *,
    words: str,
    target: str,
    launcher: str,
    start: str,
) -> str:
    """The README as Markdown: contents, start, values to fill in, expected figures, and the parts
    of the plan that the files do not express."""
    run, degrees = planned.run, planned.run.degrees
    mesh = (
        f"tp {degrees.tp}, pp {degrees.pp}, vpp {degrees.vpp}, cp {degrees.cp}, ep {degrees.ep}, "
        f"dp {degrees.dp}"
    )
    lines = [
        f"# {planned.model} for {words}",
        "",
        f"From {planned.plan}, planned for {run.stack}: {mesh} on "
        f"{planned.run.degrees.num_devices} x {run.device} ({planned.num_nodes} nodes).",
        "",
        "## Start",
        "",
        f"    {start}",
        "",
        *(f"- needs {need}" for need in exported.needs),
        *(f"- yours: {part}" for part in exported.fill_in),
        "",
        f"## What the first {STEPS} steps must show (plan-check.json)",
        "",
        *_expected(planned, costs),
        "",
        "## What it cannot say",
        "",
        *_gaps(costs, words),
        "",
        "## Versions",
        "",
        f"{target}: {version_words(target)}",
    ]
    if launcher != "torchrun":
        lines.append(f"{launcher}: {version_words(launcher)}")
    lines += [
        "",
        f"Still as planned? `shardwright check {planned.plan} --against .` fails where it is not.",
        "",
    ]
    return "\n".join(lines)


def _expected(planned: PlannedRun, costs: CostOfGaps) -> list[str]:
    factor = 1.0 + (costs.slower or 0.0)
    step = planned.prediction.step_time_s.scaled(factor)
    rate = planned.prediction.per_s.scaled(1.0 / factor)
    peak = planned.prediction.peak.value + (costs.more_bytes or 0.0)
    return [
        f"- step {format_time(step.value)} [{format_time(step.low)} to {format_time(step.high)}], "
        f"the first {WARM_UP} steps left out",
        f"- {rate.value:,.0f} {planned.counted_in}/s [{rate.low:,.0f} to {rate.high:,.0f}]",
        f"- fullest device {format_bytes(peak)}"
        + ("" if costs.fits is not False else ": MORE THAN IT HAS, see below"),
    ]


def _gaps(costs: CostOfGaps, words: str) -> list[str]:
    if not costs.gaps:
        return [f"Nothing: {words} has words for all of the plan."]
    lines = [f"- {_line(gap)}" for gap in costs.gaps]
    if len(costs.gaps) > 1 and costs.slower is not None:
        lines.append(f"- together: step {costs.slower:+.1%}{_bytes(costs.more_bytes)}")
    return lines


def _line(priced: PricedGap) -> str:
    gap = priced.gap
    if priced.slower is None:
        cost = f"not priced: {priced.why_no_price}"
    else:
        cost = f"step {priced.slower:+.1%}{_bytes(priced.more_bytes)}"
    return f"{gap.option}: {gap.planned} -> {gap.written} ({gap.why}); {cost}"


def _bytes(more: float | None) -> str:
    if more is None:
        return ""
    sign = "+" if more >= 0 else "-"
    return f", memory {sign}{format_bytes(abs(more))}"
