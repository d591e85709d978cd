"""Charts of an answer of `size`, from its JSON with details."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from profiles.units import (
    format_count,
    format_energy,
    format_percent,
    format_probability,
    format_time,
    format_tonnes,
    format_usd,
)
from shardwright.reports.brief.brief import BLUE, GREEN, ORANGE, RED, Bar, BarChart, between
from shardwright.reports.brief.columns import ends_of
from shardwright.reports.brief.layout_charts import memory_chart, parts_chart
from shardwright.reports.brief.scatter import AxisWords, Point, completion_picture, scatter
from shardwright.reports.picture import Picture
from simulator.values.prediction import Interval

_FEW_DAYS = 2.0


def days(value: float) -> str:
    """`44.7 days`, or hours below two days."""
    if value < _FEW_DAYS:
        return format_time(86400.0 * value)
    return f"{value:.3g} days"


# Formatter of each number with an interval.
WRITTEN: Mapping[str, Callable[[float], str]] = {
    "days": days,
    "usd": format_usd,
    "kwh": format_energy,
    "tco2e": format_tonnes,
    "device_hours": format_count,
    "productive_time": format_percent,
    "step_time_s": format_time,
}


def value_of(data: Mapping[str, Any], name: str) -> str:
    """The number as text; a dash for a missing one."""
    return "-" if data.get(name) is None else WRITTEN[name](data[name])


def range_of(data: Mapping[str, Any], name: str) -> str:
    """`28.8 to 64.7 days`; "" without an interval."""
    low, high = ends_of(data, name)
    return "" if low is None or high is None else between(low, high, WRITTEN[name])


def with_range(data: Mapping[str, Any], name: str) -> str:
    """`44.7 days [28.8 to 64.7 days]`; the interval is on a new line."""
    interval = range_of(data, name)
    return f"{value_of(data, name)}\n[{interval}]" if interval else value_of(data, name)


def rented(data: Mapping[str, Any]) -> str:
    """`512 nodes of 8 h100-sxm-80gb (4,096 devices)`."""
    nodes, devices = data["nodes"], data["devices"]
    return f"{nodes:,} nodes of {devices // nodes} {data['device']} ({devices:,} devices)"


def headline(data: Mapping[str, Any]) -> str:
    """One sentence: devices to rent, duration, cost and probabilities."""
    return _headline(data).replace("\n", " ")


def _headline(data: Mapping[str, Any]) -> str:
    if data.get("device") is None:
        return f"None of the listed devices keeps the limits of {data['model']}."
    text = (
        f"Rent {rented(data)}: {format_count(data['tokens'])} tokens in {with_range(data, 'days')}"
    )
    if data.get("probability_of_deadline") is not None:
        text += (
            f", within {days(data['deadline_days'])} with probability "
            f"{format_probability(data['probability_of_deadline'])}"
        )
    if data.get("usd") is None:
        return text + "; no price of the device is known."
    text += f"; {with_range(data, 'usd')}"
    if data.get("probability_of_budget") is not None:
        text += (
            f", within {format_usd(data['budget_usd'])} with probability "
            f"{format_probability(data['probability_of_budget'])}"
        )
    return text + "."


_LEAST_SHARE = 0.0005


def front_picture(data: Mapping[str, Any]) -> Picture | None:
    """Pareto front of days against dollars, or against energy without prices."""
    runs = [data, *data["alternatives"], *data["front"]] if data.get("device") else []
    priced = any(run.get("usd") is not None for run in runs)
    key, written = ("usd", format_usd) if priced else ("kwh", format_energy)
    seen: set[tuple[object, ...]] = set()
    points = []
    for number, run in enumerate(runs):
        # The front uses the user's device names, and repeats the chosen run in closed form.
        name = _family(run["device"], runs)
        same = (name, run["devices"], f"{run['days']:.2g}")
        if run.get(key) is None or same in seen:
            continue
        seen.add(same)
        points.append(
            Point(
                x=run["days"],
                y=run[key],
                group=name,
                label=f"{run['devices']:,}",
                title=f"{run['devices']:,} {name}, {run['stack']}, {run['layout']}: "
                f"{days(run['days'])}, {written(run[key])}",
                chosen=number == 0,
            )
        )
    axis = "US dollars of the whole run" if priced else "energy of the whole run"
    return scatter(
        "front",
        points,
        AxisWords(name="days from the start to the end of the run", written="{:.3g}".format),
        AxisWords(name=axis, written=written),
        note="Numbers at the marks are devices; the ring marks the chosen run. The plot has the "
        "Pareto front of days, dollars, kWh and devices, and the best run of each type of device.",
    )


def _family(name: str, runs: list[Mapping[str, Any]]) -> str:
    """The longest name of the same device among the runs."""
    names = {run["device"] for run in runs}
    return max((str(one) for one in names if one.startswith(name)), key=len)


def completion(data: Mapping[str, Any]) -> Picture | None:
    """Probability that the run has ended, over days."""
    distribution = data.get("completion")
    if not distribution:
        return None
    return completion_picture(
        distribution["probability"],
        distribution["days"],
        interval=(data["days_low"], data["days"], data["days_high"]),
        deadline=data.get("deadline_days"),
        probability_of_deadline=data.get("probability_of_deadline"),
    )


def cost_parts(data: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Dollars by part of the time, and storage and egress; they add up to `usd`.

    The contingency's share of the days is 1 - 1 / contingency. The rest is distributed like the
    simulated time.
    """
    usd = data.get("rent_usd") or data["usd"]
    factor = data.get("contingency", {}).get("value", 1.0)
    plain = usd / factor
    lost = [(name, plain * share) for name, share in data["lost"].items() if share > _LEAST_SHARE]
    lost.sort(key=lambda one: -one[1])
    kept = plain - sum(part for _, part in lost)
    parts = [("productive steps", kept), *((f"lost: {name}", part) for name, part in lost)]
    if usd > plain:
        parts.append(("contingency of whole runs", usd - plain))
    others = (("storage of data and checkpoints", "storage_usd"), ("egress", "egress_usd"))
    return parts + [(name, data[key]) for name, key in others if data.get(key)]


def waterfall(data: Mapping[str, Any]) -> BarChart | None:
    """Rent, storage and egress, stacked by part."""
    if data.get("usd") is None:
        return None
    bars, at = [], 0.0
    for name, part in cost_parts(data):
        words = f"{format_usd(part)} ({format_percent(part / data['usd'])})"
        bars.append(Bar(name=name, low=at, high=at + part, words=words, colour=_colour(name)))
        at += part
    bars.append(Bar(name="total", low=0.0, high=data["usd"], words=with_range(data, "usd")))
    return BarChart(
        title="US dollars, stacked by part",
        unit="dollars",
        bars=tuple(bars),
        note=f"{value_of(data, 'device_hours')} device-hours at "
        f"{format_usd(data['usd_per_device_hour'])}: {data['price']}. A rent includes hosts, "
        f"network inside the cluster, power and hosting. {_storage_words(data)}",
    )


def _colour(part: str) -> str:
    if part.startswith("productive"):
        return GREEN
    if part.startswith("lost"):
        return RED
    return ORANGE if part.startswith("contingency") else BLUE


def _storage_words(data: Mapping[str, Any]) -> str:
    if data.get("storage_price") is None:
        return "Storage and egress are not included."
    return f"Storage and egress: {data['storage_price']}."


def swings(data: Mapping[str, Any], of: str) -> BarChart | None:
    """A tornado chart of `days` or `usd`, widest bar first."""
    value = data.get(of)
    if value is None or not data.get("swings"):
        return None
    written = days if of == "days" else format_usd
    bars = [
        Bar(
            name=one["name"],
            low=one[f"{of}_low"],
            high=one[f"{of}_high"],
            words=between(one[f"{of}_low"], one[f"{of}_high"], written),
            colour=BLUE,
        )
        for one in data["swings"]
        if one[f"{of}_high"] > one[f"{of}_low"]
    ]
    bars.sort(key=lambda bar: bar.low - bar.high)
    if not bars:
        return None
    return BarChart(
        title="Days, each figure in turn at the ends of its 90 % interval"
        if of == "days"
        else "US dollars, each figure in turn at the ends of its 90 % interval",
        unit="days" if of == "days" else "dollars",
        bars=tuple(bars),
        mark=value,
        mark_words=f"the answer, {written(value)}",
    )


def gains(data: Mapping[str, Any], of: str) -> BarChart | None:
    """Effect of one more node, dollar, GB/s, GiB and point of MFU."""
    gains = [gain for gain in data["gains"] if gain[of] is not None]
    if not gains:
        return None

    def words(change: float) -> str:
        if abs(change) < 1e-9:
            return "no change"
        if of == "days":
            return f"{change:+.2g} days"
        return f"{'+' if change >= 0 else '-'}{format_usd(abs(change))}"

    return BarChart(
        title=f"Effect of single changes, in {'days' if of == 'days' else 'US dollars'}",
        unit="days" if of == "days" else "dollars",
        bars=tuple(
            Bar(
                name=gain["change"],
                low=0.0,
                high=gain[of],
                words=words(gain[of]),
                colour=GREEN if gain[of] <= 0 else ORANGE,
            )
            for gain in gains
        ),
        mark=0.0,
        mark_words="the answer; each change is solved again",
    )


def memory(data: Mapping[str, Any]) -> BarChart | None:
    """Memory of the fullest device as stacked parts, and its capacity."""
    memory = data.get("memory")
    if not memory:
        return None
    peak = Interval(
        low=memory["peak_low_bytes"], value=memory["peak_bytes"], high=memory["peak_high_bytes"]
    )
    return memory_chart(memory["parts"], peak, memory["capacity_bytes"], data["device"])


def step_parts(data: Mapping[str, Any]) -> BarChart | None:
    """Seconds of a step by part."""
    return parts_chart(data.get("step_parts") or {})
