"""Output of `size` for two answers: against another one, and since an older one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.text import Text

from planner.sizing.run_outlook import RunOutlook
from profiles.units import (
    format_count,
    format_days,
    format_energy,
    format_percent,
    format_time,
    format_usd,
)
from shardwright.analysis.size_better import versus_of
from shardwright.analysis.size_change import Change
from shardwright.reports.labelled import labelled
from shardwright.reports.one_line import one_line
from shardwright.reports.terminal import format_interval, table
from shardwright.requests.sizing.sized import Sized

if TYPE_CHECKING:
    from shardwright.requests.sizing.owned import OwnedBeside
    from shardwright.requests.sizing.owning_beside import OwningBeside


def chance(probability: float) -> str:
    """`probability 93 %`; `probability > 99 %` beyond that, `< 1 %` below."""
    if probability > 0.99:
        return "probability > 99 %"
    if probability < 0.01:
        return "probability < 1 %"
    return f"probability {format_percent(probability)}"


def versus_report(text: str, first: Sized, second: Sized) -> RenderableType:
    """A table of both, and one sentence."""
    one, other = first.answer.best, second.answer.best
    rows = table("", ">devices", ">step", ">time", ">dollars", ">energy")
    for name, best in (("asked", one), (text, other)):
        rows.add_row(name, *_figures(best))
    if one is None or other is None:
        said = "nothing keeps the limits" + ("" if one is None else f" with {text}")
        return Group(Text(""), rows, labelled("Versus  ", said))
    found = versus_of(one, other)
    said = (
        f"the first is faster than {text} with {chance(found.faster)}"
        f" ({one.days.value / other.days.value - 1:+.0%} time)"
    )
    if found.cheaper is not None and one.usd is not None and other.usd is not None:
        said += (
            f" and cheaper with {chance(found.cheaper)} "
            f"({one.usd.value / other.usd.value - 1:+.0%} dollars)"
        )
    words = [best.run.choice.price_words or "no price" for best in (one, other)]
    prices = f"prices: {words[0]}" + (f"; against {words[1]}" if words[0] != words[1] else "")
    return Group(Text(""), rows, labelled("Versus  ", said), labelled("        ", prices))


def versus_lines(text: str, first: Sized, second: Sized) -> list[Text]:
    """The same in two lines."""
    one, other = first.answer.best, second.answer.best
    if one is None or other is None:
        return [one_line("Versus  ", f"{text}: nothing keeps the limits")]
    found, run = versus_of(one, other), other.run
    usd = format_interval(other.usd, format_usd) if other.usd is not None else "no price"
    said = [f"the first is faster with {chance(found.faster)}"]
    if found.cheaper is not None:
        said.append(f"cheaper with {chance(found.cheaper)}")
    days = format_interval(other.days.scaled(86400.0))
    return [
        one_line("Versus  ", f"{text}: {run.devices:,} {run.choice.asked}", days, usd),
        one_line("        ", *said),
    ]


def _figures(best: RunOutlook | None) -> list[str]:
    if best is None:
        return ["-"] * 5
    run = best.run
    return [
        f"{run.devices:,} {run.choice.asked}",
        format_time(run.layout.step_time_s),
        format_time(86400.0 * best.days.value),
        format_interval(best.usd, format_usd) if best.usd is not None else "-",
        format_energy(best.kwh.value),
    ]


def diff_report(changes: Sequence[Change]) -> RenderableType:
    """A table of the differences."""
    if not changes:
        return labelled("Since   ", "nothing changed")
    rows = table("since then", "before", "now", ">change")
    for change in changes:
        share = f"{change.share:+.1%}" if change.share is not None else ""
        rows.add_row(change.name, change.before, change.after, share)
    return Group(Text(""), rows)


def owning_report(found: OwningBeside, price_words: str) -> RenderableType:
    """Buying the devices of the answer against renting them; price_words: of the rent."""
    rent = f" against {format_usd(found.rent_usd)} of rent" if found.rent_usd is not None else ""
    lines = [
        f"{found.devices:,} {found.device} bought for {format_usd(found.purchase_usd.value)} with "
        f"their network",
        f"an hour of one that is never idle: {format_interval(found.usd_per_hour, format_usd)}",
        f"this run: {format_interval(found.run_usd, format_usd)}{rent}, {price_words or '-'}",
    ]
    if found.use is not None and found.runs is not None:
        lines.append(
            f"cheaper than that rent from a use of {format_percent(found.use.value)} of "
            f"{found.years:g} years on, {found.runs:.2g} such runs"
        )
    elif found.rent_usd is not None:
        lines.append(f"in {found.years:g} years no use is cheaper than that rent")
    return Group(
        Text(""),
        labelled("Owning  ", *lines),
        labelled("Assumed ", "; ".join(found.words) or "nothing", style="dim"),
    )


def owned_report(beside: OwnedBeside) -> RenderableType:
    """A table of the ways to use owned devices, and one sentence."""
    rows = table("with the owned devices", ">days", ">tokens/day", ">dollars")
    for option in beside.options:
        if option.days is None:
            rows.add_row(f"{option.title}: {option.why}", "-", "-", "-")
            continue
        rows.add_row(
            option.title,
            f"{format_days(option.days)}",
            format_count(option.tokens_per_day or 0.0),
            format_usd(option.usd) if option.usd is not None else "-",
        )
    said = "; ".join(beside.assumptions)
    return Group(
        Text(""),
        rows,
        labelled("Owned   ", beside.sentence),
        labelled("Assumed ", said, style="dim"),
    )
