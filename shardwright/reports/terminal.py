"""What the commands print: tables of at most 100 columns, no colour when piped.

Every function gives rich renderables; the command line prints them (terminal_console.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from profiles.hardware.catalogue.catalog import CatalogRow
from profiles.hardware.catalogue.device import Device
from profiles.hardware.prices.price_table import DevicePrice
from profiles.units import (
    format_bytes,
    format_count,
    format_flop,
    format_percent,
    format_rate,
    format_time,
    format_usd,
)
from shardwright.analysis.comparison import Comparison
from shardwright.analysis.plan_sheet import MEMORY_PARTS
from shardwright.reports.branch_stages import branch_rows
from shardwright.reports.labelled import labelled
from shardwright.reports.markdown import cells, heads, verdict
from shardwright.reports.price_words import price_lines
from simulator.mfu import MFU_DEFINITION
from simulator.values.plan import Plan
from simulator.values.plan_file import PlanFile
from simulator.values.plan_title import plan_title
from simulator.values.prediction import Interval, Prediction


def table(*headings: str) -> Table:
    """A plain table; a heading that starts with `>` aligns its column to the right."""
    made = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        justify: Literal["left", "right"] = "right" if heading.startswith(">") else "left"
        made.add_column(heading.removeprefix(">"), justify=justify)
    return made


def memory_words(peak_bytes: float, required_bytes: float | None, capacity_bytes: float) -> str:
    """`peak 58.1 GiB, needs 62.3 GiB of 77.4 GiB`: allocated, and what must fit where known."""
    peak, capacity = format_bytes(peak_bytes), format_bytes(capacity_bytes)
    if required_bytes is None:
        return f"peak {peak} of {capacity}"
    return f"peak {peak}, needs {format_bytes(required_bytes)} of {capacity}"


def plan_report(answer: PlanFile) -> RenderableType:
    """The answer of `plan`: headline, chosen plan and runners-up, what limits, what it rests on."""
    if answer.plan is None or answer.prediction is None:
        return infeasible_report(answer)
    plan, prediction = answer.plan, answer.prediction
    gap = answer.gap or 0.0
    proof = "proven optimal" if answer.status == "optimal" else f"within {format_percent(gap)}"
    head = labelled(
        Text("Best plan  ", style="bold"),
        plan_title(plan),
        Text.assemble(
            (proof, "green"),
            f" in {format_time(answer.search_time_s)} ({answer.solver}; {answer.cells_considered} "
            f"cells, {answer.cells_pruned} pruned)",
        ),
    )
    step = prediction.step_time_s
    tight = prediction.fullest
    facts = [
        f"step {format_interval(step)}",
        f"MFU {format_share(prediction.mfu)}",
        memory_words(tight.peak_bytes, tight.required_bytes, tight.capacity_bytes)
        + f" (rank {tight.rank})",
    ]
    if (usd := prediction.usd_per_million) is not None:
        facts.append(f"{format_usd(usd.value)} per M {prediction.counted_in}")
    rows = table(
        ">#", "plan", ">step", ">peak", usd_heading(prediction.counted_in), "why not first"
    )
    rows.add_row(
        "1",
        plan_title(plan),
        format_time(step.value),
        format_bytes(prediction.peak.value),
        usd_or_dash(prediction.usd_per_million),
        "chosen",
    )
    for number, other in enumerate(answer.alternatives, start=2):
        cost = other.usd_per_million_tokens or other.usd_per_million_samples
        rows.add_row(
            str(number),
            plan_title(other.plan),
            format_time(other.step_time_s),
            format_bytes(other.peak_memory_bytes),
            format_usd(cost) if cost else "-",
            other.why_not_first,
        )
    return Group(
        head,
        labelled("           ", *facts),
        Text(""),
        rows,
        Text(""),
        labelled("Stages: ", stages_line(plan)),
        *branch_table(plan, prediction),
        labelled("Limit:  ", prediction.limit),
        labelled("Data:   ", sources_line(prediction)),
        *price_lines(prediction.price_usd_per_hour),
        *(labelled("Assumed: ", said, style="dim") for said in answer.assumptions),
    )


def format_interval(value: Interval, formatted: Callable[[float], str] = format_time) -> str:
    """`1.2 s [1.1 s - 1.4 s]`."""
    return f"{formatted(value.value)} [{formatted(value.low)} - {formatted(value.high)}]"


def format_share(share: Interval) -> str:
    """`41 %`, or `3.4 % - 82 %` where the interval is so wide that its middle says little."""
    least = 0.0005  # what is less would be shown as 0.0 %
    if share.low < least:
        return f"up to {format_percent(min(1.0, max(share.high, 2 * least)))}"
    if share.high > 2 * share.low:
        return f"{format_percent(share.low)} - {format_percent(min(1.0, share.high))}"
    return format_percent(share.value)


def usd_heading(counted_in: str) -> str:
    """The heading of a column (`table`) of dollars per million tokens or samples."""
    return ">$/Mtok" if counted_in == "tokens" else ">$/Msample"


def usd_or_dash(value: Interval | None) -> str:
    """Dollars, or a dash where the price is unknown."""
    return format_usd(value.value) if value is not None else "-"


def stages_line(plan: Plan) -> str:
    """How many blocks each stage holds, and what is recomputed."""
    counts = " ".join(str(stage.num_blocks) for stage in plan.stages)
    kinds: dict[str, int] = {}
    for stage in plan.stages:
        for kind in stage.recompute:
            kinds[kind.value] = kinds.get(kind.value, 0) + 1
    again = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    return f"{counts} blocks; recompute: {again} blocks"


def branch_table(plan: Plan, prediction: Prediction) -> list[RenderableType]:
    """Per stage its blocks and what it receives, where blocks branch; else nothing."""
    rows = branch_rows(plan, prediction)
    if not rows:
        return []
    made = table(">stage", "blocks", "receives")
    for row in rows:
        made.add_row(*row)
    return [made, Text("")]


def sources_line(prediction: Prediction) -> str:
    """Shares of the predicted work that are measured, interpolated and assumed."""
    shares: dict[str, float] = {}
    for tag in prediction.sources:
        shares[tag.method] = shares.get(tag.method, 0.0) + tag.share
    said = [f"{format_percent(shares[m])} {m}" for m in sorted(shares, key=lambda m: -shares[m])]
    return ", ".join(said) + " (--explain lists the sources)"


def infeasible_report(answer: PlanFile) -> RenderableType:
    """Why nothing fits, and what would."""
    why = answer.infeasibility
    if why is None:
        return Text(f"No plan: status {answer.status}")
    lines: list[RenderableType] = [
        Text.assemble(
            ("No plan fits. ", "bold red"), f"{answer.cells_considered} cells considered."
        ),
        Text(
            f"Nearest: {why.nearest}; stage {why.stage} needs {format_bytes(why.needed_bytes)}, "
            f"the device has {format_bytes(why.capacity_bytes)} "
            f"({format_bytes(why.bytes_over)} over)"
        ),
        Text(f"Binds:   {why.term} of stage {why.stage}"),
    ]
    if why.relaxations:
        lines += [Text(""), Text("What would fit (each was solved):")]
        rows = table("change", "flag", ">step")
        for relaxation in why.relaxations:
            rows.add_row(relaxation.change, relaxation.flag, format_time(relaxation.step_time_s))
        lines.append(rows)
    else:
        lines.append(Text("No single change of pins, device count or device type made it fit."))
    return Group(*lines)


def prediction_report(answer: PlanFile, *, explain: bool) -> RenderableType:
    """One plan in depth: where the step goes, stages, memory and, on request, every source."""
    assert answer.plan is not None
    assert answer.prediction is not None
    plan, prediction = answer.plan, answer.prediction
    parts: list[RenderableType] = [
        Text.assemble((plan_title(plan), "bold"), f" on {plan.cluster}"),
        *prediction_parts(prediction),
        Text(""),
        labelled("Stages: ", stages_line(plan)),
        *branch_table(plan, prediction),
        labelled("Limit:  ", prediction.limit),
    ]
    if explain:
        rows = table("rests on", ">share", "how", "source")
        for tag in prediction.sources:
            rows.add_row(tag.name, format_percent(tag.share), tag.method, tag.source)
        parts += [Text(""), rows]
        parts.append(Text(MFU_DEFINITION))
    return Group(*parts)


def prediction_parts(prediction: Prediction) -> list[RenderableType]:
    """The step, where it goes, and what fills every rank's memory at its peak."""
    step = prediction.step_time_s
    where = table("part of the step", ">time", ">share")
    for part in prediction.components:
        where.add_row(
            part.name.words,
            format_time(part.time_s),
            format_percent(part.time_s / step.value),
        )
    where.add_row("step", format_time(step.value), "100 %", style="bold")
    names = [f">{name}" for name, _ in MEMORY_PARTS]
    required = prediction.required_memory_bytes is not None
    memory = table(">rank", *names, ">peak", *((">needs",) if required else ()), ">has")
    for rank in prediction.ranks:
        sizes = [getattr(rank, field) for _, field in MEMORY_PARTS]
        sizes += [rank.peak_bytes, *((rank.limiting_bytes,) if required else ())]
        sizes.append(rank.capacity_bytes)
        memory.add_row(str(rank.rank), *map(format_bytes, sizes))
    kwh, unit = prediction.kwh_per_million, prediction.counted_in
    energy = f"   {kwh.value:.3g} kWh per M {unit}" if kwh is not None else ""
    return [
        Text(
            f"step {format_interval(step)}   MFU {format_share(prediction.mfu)}   "
            f"{format_count(prediction.per_s.value)} {unit}/s{energy}"
        ),
        Text(""),
        where,
        Text(""),
        memory,
    ]


def comparison_report(comparison: Comparison) -> RenderableType:
    """Predicted beside measured, row by row."""
    first, *others = heads(comparison)
    rows = table(first, *(f">{name}" for name in others))
    for row in comparison.rows:
        rows.add_row(*cells(row, comparison), style="bold" if row is comparison.step else "")
    return Group(rows, Text(""), Text(verdict(comparison)))


def catalog_report(
    found: Sequence[CatalogRow], prices: Mapping[str, DevicePrice | None]
) -> RenderableType:
    """The devices that are known; prices  by device, None where none is known."""
    rows = table("device", ">bf16 peak", ">memory", ">bandwidth", ">power", ">$/hour", "measured")
    for row in found:
        price = prices.get(row.name)
        rows.add_row(
            row.name,
            format_flop(row.peak_bf16_flop_per_s) + "/s",
            format_bytes(row.memory_bytes),
            format_rate(row.memory_bandwidth_bytes_per_s),
            f"{row.power_w:.0f} W",
            format_usd(price.usd_per_hour) if price else "-",
            row.measured,
        )
    known = [price for price in prices.values() if price is not None]
    if not known:
        return rows
    first, last = min(p.oldest_date for p in known), max(p.date for p in known)
    said = (
        f"$/hour: median over providers, each one's cheapest region; on-demand, {first} to {last}; "
        "`catalog prices` has every kind with its range, `catalog show` the offers"
    )
    return Group(rows, Text(""), Text(said))


def device_report(device: Device) -> RenderableType:
    """Every number of a device with its source and date."""
    rows = table("", ">value", "how", "date", "source")
    numbers = [
        ("memory", format_bytes(device.memory_bytes.value), device.memory_bytes),
        ("reserved", format_bytes(device.reserved_bytes.value), device.reserved_bytes),
        (
            "bandwidth",
            format_rate(device.memory_bandwidth_bytes_per_s.value),
            device.memory_bandwidth_bytes_per_s,
        ),
        ("power", f"{device.power_w.value:.0f} W", device.power_w),
        ("launch", format_time(device.launch_s.value), device.launch_s),
    ]
    for dtype, peak in sorted(device.peak_flop_per_s.items()):
        numbers.append((dtype, format_flop(peak.value) + "/s", peak))
    for name, value, sourced in numbers:
        rows.add_row(name, value, sourced.method, sourced.date, sourced.source)
    measured = device.measurements
    said = (
        f"Measured: {len(measured.matmul)} matmul, {len(measured.attention)} attention, "
        f"{len(measured.memory)} memory points. {measured.source} ({measured.date})"
        if measured
        else "Kernels: surfaces of the device or of its relative (profiles/data/kernels)"
    )
    return Group(
        Text.assemble((device.name, "bold"), f" ({device.vendor}; {', '.join(device.aliases)})"),
        rows,
        Text(said),
        Text(device.notes),
    )
