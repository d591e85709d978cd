"""The report of `plan` for every kind of answer: layouts of frameworks, a Pareto front, a plan for
our executor, or a plan on mixed devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from profiles.units import (
    format_bytes,
    format_count,
    format_percent,
    format_probability,
    format_time,
    format_usd,
)
from shardwright.reports.brief.brief import (
    BLUE,
    GREEN,
    ORANGE,
    Bar,
    BarChart,
    Brief,
    Fact,
    Section,
    Table,
    between,
)
from shardwright.reports.brief.columns import ends_of
from shardwright.reports.brief.layout_charts import memory_chart, parts_chart
from shardwright.reports.brief.scatter import AxisWords, Point, scatter
from simulator.mfu import MFU_DEFINITION
from simulator.values.prediction import Interval

_GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Content of the report: the rows of plan_table.py and details of the best plan.

    proof      optimality of the best plan
    why        reason if nothing fits
    parts      seconds of the step
    memory     bytes of the fullest device
    helps      (change, step time with it)
    relaxations  (change, flag, step time) that make a plan feasible
    lost       share of a long run's time by cause of loss
    details    tables about the search, stages and long runs
    sources    (name, value, method, source)
    """

    model: str
    cluster: str
    rows: Sequence[Mapping[str, Any]]
    proof: str = ""
    why: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    memory: Sequence[tuple[str, float]] = ()
    peak: Interval | None = None
    capacity_bytes: float = 0.0
    device: str = ""
    helps: Sequence[tuple[str, float]] = ()
    relaxations: Sequence[tuple[str, str, float]] = ()
    lost: Mapping[str, float] = field(default_factory=dict)
    details: Sequence[Table] = ()
    sources: Sequence[tuple[str, str, str, str]] = ()
    assumptions: Sequence[str] = ()
    limit: str = ""


def plan_brief(planned: Planned, *, command: str = "", version: str = "") -> Brief:
    """The report of an answer, also if nothing fits."""
    plans = [row for row in planned.rows if row.get("step_time_s") is not None]
    best = plans[0] if plans else None
    sections = [_decision(planned) if planned.rows or planned.relaxations else None, _front(plans)]
    if best is not None:
        sections += [_money(planned, best), _inside(planned), _helps(planned, best)]
    sections += [_details(planned), _assumed(planned), _sources(planned)]
    return Brief(
        title=f"Training {planned.model} on {planned.cluster}: which plan",
        headline=_headline(planned, best),
        subtitle=". ".join(filter(None, (planned.proof, planned.limit))) or "Nothing fits",
        facts=() if best is None else _facts(best),
        sections=tuple(one for one in sections if one is not None),
        command=command,
        version=version,
    )


_LOSSES = " without failures"
"""Of the dollars and energy of a step; the details have them with failures."""


def _headline(planned: Planned, best: Mapping[str, Any] | None) -> str:
    if best is None:
        return f"No plan of {planned.model} fits on {planned.cluster}: {planned.why}."
    text = f"{best['stack']} with {best['layout']}: a step takes {_value(best, 'step_time_s')}"
    if best.get("rate") is not None:
        text += f", {format_count(best['rate'])} {best['counted_in']} per second"
    if best.get("usd_per_million") is not None:
        text += f", {_value(best, 'usd_per_million')} per million {best['counted_in']}{_LOSSES}"
    return text.replace("\n", " ") + "."


_WRITTEN = {
    "step_time_s": format_time,
    "mfu": format_percent,
    "peak_memory_bytes": format_bytes,
    "rate": format_count,
    "usd_per_million": format_usd,
    "kwh_per_million": "{:.3g} kWh".format,
    "productive_time": format_percent,
}


def _range(row: Mapping[str, Any], name: str) -> str:
    low, high = ends_of(row, name)
    return "" if low is None or high is None else between(low, high, _WRITTEN[name])


def _value(row: Mapping[str, Any], name: str) -> str:
    if row.get(name) is None:
        return "-"
    interval = _range(row, name)
    bound = "up to " if name == "step_time_s" and row.get("exact") is False else ""
    return bound + _WRITTEN[name](row[name]) + (f"\n[{interval}]" if interval else "")


def _facts(best: Mapping[str, Any]) -> tuple[Fact, ...]:
    per = best["counted_in"].removesuffix("s")
    names = {
        "step_time_s": "Step",
        "rate": f"{best['counted_in'].capitalize()} per second",
        "mfu": "MFU",
        "peak_memory_bytes": "Peak memory",
        "usd_per_million": f"Cost per million {per}s{_LOSSES}",
        "kwh_per_million": f"Energy per million {per}s{_LOSSES}",
        "productive_time": "Productive time",
    }
    facts = [
        Fact(name=words, value=_WRITTEN[name](best[name]), note=_range(best, name))
        for name, words in names.items()
        if best.get(name) is not None
    ]
    if best.get("out_of_memory_probability") is not None:
        risk = format_probability(best["out_of_memory_probability"])
        facts.append(Fact(name="Out of memory", value=risk, note="probability"))
    return tuple(facts)


def _decision(planned: Planned) -> Section:
    several = len({row.get("cluster") for row in planned.rows if row.get("cluster")}) > 1
    heads = ("framework", *(("cluster",) if several else ()), "plan", ">step", ">MFU", ">peak")
    heads += (">cost per million",)
    reasons = any(row.get("why_not_first") for row in planned.rows)
    heads += ("why not first",) if reasons else ()
    rows = []
    for row in planned.rows:
        first = [str(row.get("stack") or "-")]
        first += [str(row.get("cluster") or "-")] if several else []
        numbers = ("step_time_s", "mfu", "peak_memory_bytes", "usd_per_million")
        why = row.get("why_not_first") or ("chosen" if row.get("row") == "chosen" else "")
        values = tuple(_value(row, name) for name in numbers)
        cells = (*first, str(row.get("layout") or "-"), *values)
        rows.append((*cells, why) if reasons else cells)
    tables = []
    if rows:
        chosen = planned.rows[0].get("row") == "chosen"
        tables = [Table(heads=heads, rows=tuple(rows), chosen=chosen)]
    if planned.relaxations:
        tables.append(
            Table(
                heads=("with this change a plan fits", "flag", ">step"),
                rows=tuple(
                    (change, flag, format_time(step)) for change, flag, step in planned.relaxations
                ),
            )
        )
    priced = any(row.get("usd_per_million") is not None for row in planned.rows)
    costs = f"Costs are{_LOSSES}. " if priced else ""
    return Section(
        title="Decision",
        tables=tuple(tables),
        note=costs + _prices(planned.rows) if rows else "",
        short=True,
    )


def _prices(rows: Sequence[Mapping[str, Any]]) -> str:
    prices = dict.fromkeys(
        f"${row['usd_per_device_hour']:.2f} per device-hour: {row['price']}"
        if row.get("usd_per_device_hour") is not None
        else row["price"]
        for row in rows
        if row.get("price")
    )
    if not prices:
        return "No price of the devices is known (--prices)."
    return f"Price: {'; '.join(prices)}."


def _front(rows: Sequence[Mapping[str, Any]]) -> Section | None:
    """Step time against memory, or against dollars for several clusters."""
    several = len({row["cluster"] for row in rows}) > 1
    key, per = "peak_memory_bytes", float(_GIB)
    axis = AxisWords(name="GiB allocated on the fullest device", written="{:.3g}".format)
    if several and all(row.get("usd_per_million") for row in rows):
        key, per = "usd_per_million", 1.0
        axis = AxisWords(name="US dollars per million tokens", written="${:.3g}".format)
    points = [
        Point(
            x=row["step_time_s"],
            y=row[key] / per,
            group=row["stack"],
            label=f"{row['devices']:,}" if several else "",
            title=f"{row['layout']}: {_value(row, 'step_time_s')}, {_value(row, key)}",
            chosen=number == 0 and row["row"] == "chosen",
        )
        for number, row in enumerate(rows)
        if row.get(key)
    ]
    if len(points) < 2:
        return None
    across = AxisWords(name="time of one step", written=format_time)
    note = "Numbers at the marks are devices." if several else "The ring marks the chosen plan."
    picture = scatter("front", points, across, axis, note=note)
    title = "Time and memory" if key == "peak_memory_bytes" else "Time and cost"
    return None if picture is None else Section(title=title, pictures=(picture,))


def _money(planned: Planned, best: Mapping[str, Any]) -> Section | None:
    """Dollars per million productive tokens, by part of the time."""
    usd, kept = best.get("usd_per_million"), best.get("productive_time")
    total = sum(planned.parts.values())
    if usd is None or not total > 0:
        return None
    bars, at = [], 0.0
    large = {name: usd * part / total for name, part in planned.parts.items() if part > total / 500}
    parts = [(name, part, BLUE) for name, part in sorted(large.items(), key=lambda one: -one[1])]
    if usd - sum(large.values()) > 1e-6 * usd:
        parts.append(("the rest of the step", usd - sum(large.values()), BLUE))
    if kept:
        whole = usd / kept
        lost = {name: whole * share for name, share in planned.lost.items() if share > 5e-4}
        # Medians of the parts may add up to more than the median of the whole loss.
        scale = min(1.0, (whole - usd) / sum(lost.values())) if lost else 1.0
        lost = {name: part * scale for name, part in lost.items()}
        parts += [(f"lost: {name}", part, ORANGE) for name, part in lost.items()]
        rest = whole - usd - sum(lost.values())
        if rest > 1e-3 * usd:
            parts.append(("lost: other", rest, ORANGE))
    for name, part, colour in parts:
        bars.append(Bar(name=name, low=at, high=at + part, words=f"${part:.3g}", colour=colour))
        at += part
    bars.append(Bar(name="total", low=0.0, high=at, words=f"${at:.3g}", colour=GREEN))
    per = f"productive {best['counted_in']}" if kept else best["counted_in"]
    return Section(
        title="Cost by part",
        bars=(
            BarChart(
                title=f"US dollars per million {per}, stacked by part",
                unit="dollars",
                bars=tuple(bars),
            ),
        ),
        note=_prices([best]),
    )


def _inside(planned: Planned) -> Section | None:
    bars = []
    if planned.memory and planned.peak is not None:
        bars.append(
            memory_chart(planned.memory, planned.peak, planned.capacity_bytes, planned.device)
        )
    step = parts_chart(planned.parts)
    bars += [] if step is None else [step]
    return Section(title="Memory and step of the chosen plan", bars=tuple(bars)) if bars else None


def _helps(planned: Planned, best: Mapping[str, Any]) -> Section | None:
    """A tornado chart: the step's interval, and the step time with each change."""
    now = best["step_time_s"]
    bars = []
    if best.get("step_time_low_s") is not None:
        bars.append(
            Bar(
                name="the prediction's 90 % interval",
                low=best["step_time_low_s"],
                high=best["step_time_high_s"],
                words=_range(best, "step_time_s"),
            )
        )
    for change, step in sorted(planned.helps, key=lambda one: -abs(one[1] - now)):
        words = f"{format_time(step)} ({step / now - 1:+.1%})"
        colour = GREEN if step <= now else ORANGE
        bars.append(Bar(name=change, low=now, high=step, words=words, colour=colour))
    if not bars:
        return None
    chart = BarChart(
        title="Seconds of one step",
        unit="seconds",
        bars=tuple(bars),
        mark=now,
        mark_words=f"the answer, {format_time(now)}; each change is solved again",
    )
    return Section(title="What would change the answer", bars=(chart,))


def _details(planned: Planned) -> Section | None:
    tables = tuple(table for table in planned.details if table.rows)
    return (
        Section(title="Search, stages and long runs", tables=tables, short=True) if tables else None
    )


def _assumed(planned: Planned) -> Section | None:
    if not planned.assumptions:
        return None
    rows = tuple((one,) for one in planned.assumptions)
    table = Table(heads=("assumed, with the flag that changes it",), rows=rows)
    return Section(title="Assumptions that can be challenged", tables=(table,), short=True)


def _sources(planned: Planned) -> Section | None:
    if not planned.sources:
        return None
    table = Table(heads=("input", "value", "method", "source"), rows=tuple(planned.sources))
    return Section(title="Sources", tables=(table,), note=f"{MFU_DEFINITION}.")
