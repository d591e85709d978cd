"""The report of `size`, from its JSON and the details of size_details.py."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from profiles.units import format_count, format_percent, format_probability, format_time, format_usd
from shardwright.reports.brief import size_charts as charts
from shardwright.reports.brief.brief import BarChart, Brief, Fact, Section, Table, between
from shardwright.reports.brief.size_charts import days, headline, range_of, value_of, with_range
from shardwright.reports.sizing.size_summary import GOAL_WORDS

_FRONT_ROWS = 6
_FLAG = re.compile(r"--[a-z][\w-]*")


def size_brief(data: Mapping[str, Any], *, command: str = "", version: str = "") -> Brief:
    """The report of an answer, also if nothing keeps the limits."""
    solved = data.get("device") is not None
    sections = [
        _decision(data),
        *([_outlook(data), _money(data), _memory(data), _sensitivity(data)] if solved else []),
        *compared_sections(data),
        _compute(data),
        *_assumed(data),
    ]
    return Brief(
        title=f"Training {data['model']}: what to rent",
        headline=headline(data),
        subtitle=_subtitle(data),
        facts=_facts(data) if solved else (),
        sections=tuple(one for one in sections if one is not None),
        command=command,
        version=version,
    )


def _subtitle(data: Mapping[str, Any]) -> str:
    limits = []
    if data.get("deadline_days") is not None:
        limits.append(f"within {days(data['deadline_days'])}")
    if data.get("budget_usd") is not None:
        limits.append(f"for at most {format_usd(data['budget_usd'])}")
    goal = f"Goal: {GOAL_WORDS.get(data['minimised'], data['minimised'])}"
    goal += f" {' and '.join(limits)}" if limits else ""
    considered = f"{format_count(data['considered'])} layouts considered"
    if data.get("device") is None:
        binds = f" {data['binds']}." if data.get("binds") else ""
        return f"{goal}. {considered}.{binds}"
    proof = (
        "proven best of the listed devices"
        if data["status"] == "optimal"
        else f"the search ended early: within {format_percent(data['gap'] or 0.0)} of the best"
    )
    binds = f" Binding limit: {data['binds']}." if data.get("binds") else ""
    return f"{goal}; {proof}, {considered}. Ranges are 90 % intervals.{binds}"


def _facts(data: Mapping[str, Any]) -> tuple[Fact, ...]:
    def ranged(name: str, key: str) -> Fact:
        return Fact(name=name, value=value_of(data, key), note=range_of(data, key))

    facts = [
        ranged("Time", "days"),
        ranged("Cost", "usd"),
        ranged("Energy", "kwh"),
        ranged("CO2e", "tco2e"),
        ranged("Device-hours", "device_hours"),
    ]
    limits = (
        ("In time", "probability_of_deadline", "deadline_days", days),
        ("In budget", "probability_of_budget", "budget_usd", format_usd),
    )
    for name, key, limit, written in limits:
        if data.get(key) is not None:
            note = f"probability, {written(data[limit])}"
            facts.append(Fact(name=name, value=format_probability(data[key]), note=note))
    kept, step = ranged("Productive time", "productive_time"), ranged("Step", "step_time_s")
    mfu = Fact(name="MFU", value=format_percent(data["mfu"]), note="of the devices' peak")
    return (*facts, kept, step, mfu)


def _decision(data: Mapping[str, Any]) -> Section:
    limits = {">in time": "probability_of_deadline", ">in budget": "probability_of_budget"}
    limits = {head: key for head, key in limits.items() if data.get(key) is not None}
    better = any(run.get("probability_better") is not None for run in _others(data))
    shares = limits | ({">better": "probability_better"} if better else {})
    heads = (
        *("device", ">nodes", ">devices", "framework", ">time", ">cost", ">energy"),
        *(*shares, "why not first"),
    )
    rows: list[tuple[str, ...]] = []
    chosen = data.get("device") is not None
    for run in [data, *_others(data)] if chosen else []:
        rows.append(
            (
                run["device"],
                f"{run['nodes']:,}",
                f"{run['devices']:,}",
                run["stack"],
                with_range(run, "days"),
                with_range(run, "usd"),
                with_range(run, "kwh"),
                *(format_probability(run.get(key)) for key in shares.values()),
                run.get("why_not_first") or "chosen",
            )
        )
    rows += [(name, *("-",) * (len(heads) - 2), why) for name, why in data["refused"].items()]
    tables = [Table(heads=heads, rows=tuple(rows), chosen=chosen)] if rows else []
    if data["relaxations"]:
        tables.append(
            Table(
                heads=(
                    *("with this change there is an answer", "flag", ">devices", "device"),
                    *(">days", ">cost"),
                ),
                rows=tuple(
                    (
                        one["change"],
                        one["flag"],
                        f"{one['devices']:,}",
                        one["device"],
                        f"{one['days']:.3g}",
                        "-" if one["usd"] is None else format_usd(one["usd"]),
                    )
                    for one in data["relaxations"]
                ),
            )
        )
    note = ""
    if chosen:
        idle = data["plan"]["devices_idle"] if data.get("plan") else 0
        note = (
            f"Chosen layout: {data['layout']}{f', {idle:,} devices idle' if idle else ''}; "
            f"{data['global_batch']:,} sequences per step, {data['steps']:,.0f} steps. "
            f"Prices: {_prices(data)}."
            + (" Better: the probability of being better than the first." if better else "")
        )
    return Section(title="Decision", tables=tuple(tables), note=note)


def _others(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The best runs of other types of devices, then of other frameworks."""
    return [*data["alternatives"], *(data.get("frameworks") or ())]


def _trade_offs(data: Mapping[str, Any]) -> Table | None:
    """The first points of the Pareto front of days, dollars, kWh and devices."""
    points = data["front"][:_FRONT_ROWS]
    if len(points) < 2:
        return None
    rows = tuple(
        (
            one["device"],
            f"{one['devices']:,}",
            value_of(one, "days"),
            value_of(one, "usd"),
            value_of(one, "kwh"),
            one["layout"].partition(",")[0],
        )
        for one in points
    )
    return Table(heads=("device", ">devices", ">time", ">cost", ">energy", "layout"), rows=rows)


def _published(data: Mapping[str, Any]) -> str:
    """The published run of the model, and its prediction."""
    known = data.get("published")
    if not known:
        return ""
    run, hours = known["run"], known["predicted_device_hours"]
    ends = between(hours["low"], hours["high"], format_count)
    return (
        f" Published: {run['name']} took {format_count(run['device_hours'])} {run['device']} hours "
        f"({run['source']}); the prediction for it is {format_count(hours['value'])} [{ends}]."
    )


def _prices(data: Mapping[str, Any]) -> str:
    """Dollars per device-hour of every device in the table, with provider, kind and dates."""
    prices = {}
    for run in [data, *_others(data)]:
        if run.get("usd_per_device_hour") is None:
            prices[run["device"]] = f"{run['device']} none known"
        else:
            usd = format_usd(run["usd_per_device_hour"])
            prices[run["device"]] = f"{run['device']} {usd} per device-hour ({run['price']})"
    return "; ".join(prices.values())


def _outlook(data: Mapping[str, Any]) -> Section:
    pictures = (charts.front_picture(data), charts.completion(data))
    lost = sorted(data["lost"].items(), key=lambda one: -one[1])
    trade_offs = _trade_offs(data)
    causes = ", ".join(f"{name} {format_percent(share)}" for name, share in lost if share >= 5e-4)
    return Section(
        title="Cost against time, and duration",
        pictures=tuple(one for one in pictures if one is not None),
        tables=() if trade_offs is None else (trade_offs,),
        note=f"Productive share of the time: {with_range(data, 'productive_time')}. Lost to: "
        f"{causes or 'nothing'}. {data['interruptions']:.0f} unexpected interruptions, a "
        f"checkpoint every {format_time(data['checkpoint_every_s'])}, {data['spare_nodes']} spare "
        f"nodes in addition to the rented ones.{_published(data)}",
    )


def _money(data: Mapping[str, Any]) -> Section | None:
    chart = charts.waterfall(data)
    spare = ""
    if data.get("spare_usd"):
        spare = f"Spare nodes are {format_usd(data['spare_usd'])} of the rent. "
    note = (
        f"{spare}Energy {with_range(data, 'kwh')}, CO2e {with_range(data, 'tco2e')}"
        f"{_where(data)}; a rent includes the energy, an owner pays it separately."
    )
    return Section(title="Cost by part", bars=_present(chart), note=note)


def _where(data: Mapping[str, Any]) -> str:
    if data.get("pue") is None:
        return ""
    return f" (PUE {data['pue']:g}, grid of {data['region']})"


def _memory(data: Mapping[str, Any]) -> Section | None:
    bars = _present(charts.memory(data), charts.step_parts(data))
    return Section(title="Memory and step of the chosen layout", bars=bars) if bars else None


def _sensitivity(data: Mapping[str, Any]) -> Section | None:
    bars = _present(
        charts.swings(data, "days"),
        charts.swings(data, "usd"),
        charts.gains(data, "days"),
        charts.gains(data, "usd"),
    )
    return Section(title="What would change the answer", bars=bars) if bars else None


def _present(*bars: BarChart | None) -> tuple[BarChart, ...]:
    return tuple(chart for chart in bars if chart is not None)


def compared_sections(data: Mapping[str, Any]) -> list[Section]:
    """Comparisons with other answers: --versus, --owned, --owning, --diff."""
    sections = []
    if data.get("versus"):
        heads = (
            *("against", "device", ">devices", ">time", ">cost", ">energy"),
            *(">ours is faster", ">ours is cheaper", "price"),
        )
        sections.append(
            Section(
                title="Against other choices",
                tables=(Table(heads=heads, rows=tuple(map(_versus, data["versus"]))),),
                note="Ours is the answer of this report; both columns are probabilities.",
            )
        )
    if data.get("owned"):
        options = tuple(
            (
                one["title"],
                "-" if one["days"] is None else days(one["days"]),
                "-" if one["tokens_per_day"] is None else format_count(one["tokens_per_day"]),
                "-" if one["usd"] is None else format_usd(one["usd"]),
                one["why"] or "",
            )
            for one in data["owned"]["options"]
        )
        columns = ("with owned devices", ">time", ">tokens a day", ">rent", "")
        sections.append(
            Section(
                title="With owned devices",
                tables=(Table(heads=columns, rows=options),),
                note=" ".join((data["owned"]["sentence"], *data["owned"]["assumptions"])),
            )
        )
    if data.get("owning"):
        sections.append(_owning(data))
    if data.get("diff") is not None:
        changes = tuple(
            (
                one["name"],
                one["before"],
                one["after"],
                "" if one.get("share") is None else f"{100 * one['share']:+.1f} %",
            )
            for one in data["diff"]
        )
        sections.append(
            Section(
                title="What changed",
                tables=(Table(heads=("figure", ">before", ">now", ">change"), rows=changes),)
                if changes
                else (),
                note="" if changes else "Nothing changed.",
            )
        )
    return sections


def _owning(data: Mapping[str, Any]) -> Section:
    """Buying the devices compared with renting them."""
    one = data["owning"]
    rows = [
        ("purchase, with the network", format_usd(one["purchase_usd"]["value"])),
        ("device-hour at 100 % use", format_usd(one["usd_per_hour"]["value"])),
        ("this run at that rate", format_usd(one["run_usd"]["value"])),
    ]
    if one.get("rent_usd") is not None:
        rows.append(("this run rented", format_usd(one["rent_usd"])))
    if one.get("runs") is not None:
        from_use = format_percent(one["use"]["value"])
        rows.append((f"owning is cheaper from a use of {from_use} on", f"{one['runs']:.2g} runs"))
    words = list(one["words"])
    if one.get("runs") is None and one.get("rent_usd") is not None:
        words.append(f"in {one['years']:g} years no use is cheaper than that rent")
    return Section(
        title="Bought instead of rented",
        tables=(Table(heads=("", ">"), rows=tuple(rows)),),
        note=f"Written off over {one['years']:g} years; rent: {data['price']}. " + "; ".join(words),
    )


def _versus(one: Mapping[str, Any]) -> tuple[str, ...]:
    other = one["answer"]
    return (
        one["versus"],
        str(other.get("device") or "none"),
        "-" if other.get("devices") is None else f"{other['devices']:,}",
        with_range(other, "days"),
        with_range(other, "usd"),
        with_range(other, "kwh"),
        format_probability(one.get("probability_first_is_faster")),
        format_probability(one.get("probability_first_is_cheaper")),
        str(other.get("price") or "none known"),
    )


def _compute(data: Mapping[str, Any]) -> Section | None:
    if not data.get("flop"):
        return None
    law = data.get("scaling_law")
    rows = tuple(
        (
            one["name"],
            f"{one['work_flop']:.0e}",
            "above" if one["exceeded"] else "below",
            f"{one['state']} (looked up {one['date']})",
            one["source"],
        )
        for one in data["thresholds"]
    )
    return Section(
        title=f"Compute: {data['flop']:.2e} FLOP",
        tables=(Table(heads=("threshold", ">FLOP", "this run", "state", "source"), rows=rows),),
        note=f"Method: {data['flop_method']}." + (f" Scaling law: {law}." if law else ""),
    )


def _assumed(data: Mapping[str, Any]) -> list[Section]:
    """Assumptions with the flags that change them, then every input with its source."""
    tables = []
    if data["assumptions"]:
        assumed = tuple((one, ", ".join(_flags(one))) for one in data["assumptions"])
        tables.append(Table(heads=("assumed", "changed by"), rows=assumed))
    if data.get("sources"):
        rows = tuple(
            (one["name"], one["value"], one["source"], one["change"]) for one in data["sources"]
        )
        tables.append(Table(heads=("input", "value", "source", "changed by"), rows=rows))
    title = "Assumptions that can be challenged, and their sources"
    return [Section(title=title, tables=tuple(tables))] if tables else []


def _flags(text: str) -> Sequence[str]:
    return list(dict.fromkeys(_FLAG.findall(text)))
