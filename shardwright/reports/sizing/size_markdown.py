"""The answer of `size` as Markdown to hand over: figures with intervals, runners-up, trade-offs,
assumptions with their flags, and the command that gives it again."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from planner.layout.layout_answer import layout_title
from planner.sizing.size_answer import SizeAnswer
from planner.sizing.size_question import SizeQuestion
from profiles.units import format_energy, format_percent, format_time, format_usd
from shardwright.reports.terminal import format_interval
from simulator.training_compute import METHOD, THRESHOLDS
from simulator.values.prediction import Interval


def size_markdown(question: SizeQuestion, answer: SizeAnswer, command: str) -> str:
    """One page; `command` is what was typed."""
    best = answer.best
    lines = [f"# What to rent for {question.name}", ""]
    if best is None:
        lines += ["Nothing that was listed keeps the limits.", ""]
        lines += _bullets(f"{each.change} ({each.flag})" for each in answer.relaxations)
        return "\n".join([*lines, *_end(answer, command)])
    run = best.run
    lines += [
        f"**{run.nodes:,} nodes of {run.choice.node_devices} {run.choice.asked} "
        f"({run.devices:,} devices)**, {run.stack}, {layout_title(run.layout.run)}. "
        f"What binds: {answer.binds}.",
        "",
    ]
    step = best.plan.prediction.step_time_s
    rows = [
        ("step", format_interval(step), ""),
        ("time", format_interval(best.days.scaled(86400.0)), _chance(best.probability_of_deadline)),
        ("dollars", _dollars(best.usd), _chance(best.probability_of_budget)),
        ("energy", format_interval(best.kwh, format_energy), f"PUE {question.pue.value:g}"),
        ("CO2e", format_interval(best.tco2e, "{:.3g} t".format), f"grid of {question.region}"),
        ("time in steps that are kept", format_interval(best.productive_time, format_percent), ""),
        ("unexpected interruptions", f"{best.interruptions.value:.0f}", ""),
        ("checkpoint every", format_time(best.checkpoint_every_s), ""),
        ("spare nodes", str(best.spare_nodes), ""),
    ]
    lines += _table(("figure", "value [90 % interval]", "note"), rows)
    lines += ["", f"Price: {run.choice.price_words or 'none known'}.", "", "## Runners-up", ""]
    others = [
        (
            other.run.choice.asked,
            f"{other.run.devices:,}",
            format_time(86400.0 * other.days.value),
            format_usd(other.usd.value) if other.usd is not None else "-",
            format_energy(other.kwh.value),
            other.why_not or "chosen",
            other.run.choice.price_words or "-",
        )
        for other in (best, *answer.others)
    ]
    heads = ("device", "devices", "time", "dollars", "energy", "why not", "price")
    lines += _table(heads, others)
    lines += [f"- {name}: {why}" for name, why in answer.refused]
    if answer.front:
        points = [
            (
                f"{point.devices:,} {point.device}",
                format_time(point.step_time_s),
                f"{point.days:.3g}",
                format_usd(point.usd) if point.usd is not None else "-",
                format_energy(point.kwh),
                point.layout,
            )
            for point in answer.front
        ]
        lines += ["", "## Trade-offs", ""]
        lines += _table(("devices", "step", "days", "dollars", "energy", "layout"), points)
    lines += ["", "## What the next brings", ""]
    lines += _bullets(
        f"{gain.change}: {gain.days:+.2g} days"
        + (f", {gain.usd:+,.0f} dollars" if gain.usd is not None else "")
        for gain in answer.gains
    )
    return "\n".join([*lines, *_end(answer, command)])


def _end(answer: SizeAnswer, command: str) -> list[str]:
    lines = ["", "## Training compute", "", f"{answer.flop:.3g} FLOP: {METHOD}.", ""]
    lines += _bullets(
        f"{'above' if answer.flop > each.work_flop else 'below'} {each.work_flop:.0e}: {each.name} "
        f"({each.source}; {each.state}; as of {each.date})"
        for each in THRESHOLDS
    )
    lines += ["", "## Assumed", "", *_bullets(answer.assumptions)]
    return [*lines, "", "## To see it again", "", "```sh", command, "```", ""]


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(heads)} |",
        f"|{'|'.join('---' for _ in heads)}|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _bullets(said: Iterable[str]) -> list[str]:
    return [f"- {each}" for each in said]


def _dollars(usd: Interval | None) -> str:
    return format_interval(usd, format_usd) if usd is not None else "no price known"


def _chance(probability: float | None) -> str:
    return f"within the limit with {format_percent(probability)}" if probability is not None else ""
