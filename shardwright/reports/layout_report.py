"""What `plan --stack` prints: the layout, its runners-up, what limits it, and what would help."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from planner.layout.layout_answer import LayoutChoice, LayoutFile, layout_title
from planner.layout.layout_choice import power_mfu, slower_by
from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.cluster import Cluster
from profiles.units import format_bytes, format_percent, format_time, format_usd
from shardwright.reports.labelled import labelled
from shardwright.reports.price_words import price_lines
from shardwright.reports.terminal import format_interval, memory_words, table, usd_or_dash
from simulator.energy import power_words
from simulator.goodput.reliability import Reliability
from simulator.values.prediction import Interval


def layout_report(answer: LayoutFile) -> RenderableType:
    """At most 100 columns; about 25 lines."""
    if answer.chosen is None:
        return _infeasible(answer)
    chosen = answer.chosen
    prediction = chosen.prediction
    proof = (
        "proven optimal" if answer.status == "optimal" else f"gap {format_percent(answer.gap or 0)}"
    )
    capacity = get_device(chosen.run.device).usable_bytes
    rows = table(">#", "layout", ">step", ">peak", ">out of memory", ">$/Mtok", "why not first")
    for number, choice in enumerate((chosen, *answer.alternatives), start=1):
        rows.add_row(
            str(number),
            layout_title(choice.run),
            format_time(choice.prediction.step_time_s.value),
            format_bytes(choice.prediction.peak.value),
            risk_words(choice),
            usd_or_dash(choice.prediction.usd_per_million_tokens),
            choice.why_not_first or "chosen",
        )
    facts = [
        f"step {format_interval(prediction.step_time_s)}",
        f"MFU {format_percent(prediction.mfu.value)}",
        memory_words(prediction.peak.value, chosen.required_memory_bytes, capacity),
    ]
    if chosen.idle_devices:
        facts.append(f"{chosen.run.degrees.num_devices:,} devices, {chosen.idle_devices:,} idle")
    if prediction.usd_per_million_tokens is not None:
        facts.append(f"{format_usd(prediction.usd_per_million_tokens.value)} per M tokens")
    return Group(
        labelled(
            Text("Best layout  ", style="bold"),
            layout_title(chosen.run),
            Text(proof, style="green"),
        ),
        labelled("             ", *facts),
        labelled(
            "             ",
            f"{answer.considered:,} layouts considered in "
            f"{format_time(answer.search_time_s)}: {answer.too_big:,} lack memory, "
            f"{answer.pruned:,} pruned by their bound, {answer.refined:,} refined",
        ),
        Text(""),
        rows,
        Text(""),
        *_batches(answer),
        labelled("Step:   ", parts_of_step(chosen)),
        *_ranges(chosen),
        *price_lines(prediction.price_usd_per_hour),
        labelled("Energy: ", _power(chosen)),
        *_helps(answer),
        *(labelled("Assumed: ", said, style="dim") for said in answer.assumptions),
    )


def frameworks_report(answers: Sequence[LayoutFile], refused: Mapping[str, str]) -> RenderableType:
    """The best layout of each framework, fastest first; `refused`: why others have none."""
    rows = table("framework", "layout", ">step", ">MFU", ">peak", ">$/Mtok", "why not first")
    best = answers[0].chosen if answers else None
    for answer in answers:
        choice = answer.chosen
        if choice is None or best is None:
            continue
        rows.add_row(
            answer.stack,
            layout_title(choice.run),
            format_time(choice.prediction.step_time_s.value),
            format_percent(choice.prediction.mfu.value),
            format_bytes(choice.prediction.peak.value),
            usd_or_dash(choice.prediction.usd_per_million_tokens),
            "fastest" if choice is best else largest_difference(choice, best),
        )
    return Group(
        Text("The best layout of each framework"),
        Text(""),
        rows,
        Text(""),
        *(price_lines(best.prediction.price_usd_per_hour) if best else ()),
        *(labelled(f"{name}: ", why, style="dim") for name, why in refused.items()),
    )


def largest_difference(choice: LayoutChoice, best: LayoutChoice) -> str:
    """`12 % slower: compute +0.4 s`: the part of the step in which two layouts differ most."""
    return slower_by(
        choice.prediction.components,
        best.prediction.components,
        choice.prediction.step_time_s.value / best.prediction.step_time_s.value - 1,
    )


def risk_words(choice: LayoutChoice) -> str:
    """`3 %`, the probability of running out of memory; `< 0.1 %` below that."""
    risk = choice.out_of_memory_probability
    return format_percent(risk) if risk >= 0.001 else "< 0.1 %"


def _batches(answer: LayoutFile) -> list[RenderableType]:
    if not answer.nearby_batches or answer.chosen is None:
        return []
    now = answer.chosen.prediction.per_s.value
    said = [
        f"{each.global_batch}: {each.tokens_per_s / now - 1:+.0%} tokens/s, step "
        f"{format_time(each.step_time_s)}, {each.layout}"
        for each in answer.nearby_batches
    ]
    return [labelled("Batch:  ", "nearby batches that more devices divide: " + "; ".join(said))]


def front_report(against: str, choices: Sequence[tuple[Cluster, LayoutChoice]]) -> RenderableType:
    """The front of step time and memory, or dollars per token, fastest first."""
    rows = table(">devices", "layout", ">step", ">needs", ">$/Mtok", ">kWh/Mtok")
    shown = _spaced(choices)
    for part, choice in shown:
        prediction, kwh = choice.prediction, choice.prediction.kwh_per_million
        rows.add_row(
            str(part.num_devices),
            layout_title(choice.run),
            format_interval(prediction.step_time_s),
            format_bytes(choice.required_memory_bytes),
            usd_or_dash(prediction.usd_per_million_tokens),
            f"{kwh.value:.3g}" if kwh else "-",
        )
    what = "memory that must fit" if against == "memory" else "dollars per million tokens"
    left_out = len(choices) - len(shown)
    head = f"Layouts that no other beats in both step time and {what}"
    head += f" ({left_out} within 5 % of a neighbour are not shown):" if left_out else ":"
    price = shown[0][1].prediction.price_usd_per_hour
    return Group(Text(head), Text(""), rows, *price_lines(price))


def _spaced(
    choices: Sequence[tuple[Cluster, LayoutChoice]],
) -> list[tuple[Cluster, LayoutChoice]]:
    """Of a front, those that need at least 5 % less memory than the one before, and the last; all
    of a front over clusters."""
    if len({part.num_devices for part, _ in choices}) > 1:
        return list(choices)
    found = [choices[0]]
    for choice in choices[1:]:
        before = found[-1][1].required_memory_bytes
        if choice[1].required_memory_bytes <= 0.95 * before or choice is choices[-1]:
            found.append(choice)
    return found


def _helps(answer: LayoutFile) -> list[RenderableType]:
    if not answer.sensitivities or answer.chosen is None:
        return []
    now = answer.chosen.prediction.step_time_s.value
    rows = table("what would help", ">step", ">change", "layout")
    for found in answer.sensitivities:
        rows.add_row(
            found.change,
            format_time(found.step_time_s),
            f"{found.step_time_s / now - 1:+.1%}",
            found.layout,
        )
    return [Text(""), rows, Text("")]


def _infeasible(answer: LayoutFile) -> RenderableType:
    why = answer.infeasibility
    if why is None:
        return Text(f"No layout of {answer.model} fits on {answer.cluster}.")
    said = f"rank {why.rank} {why.host}"
    if not why.host:
        over = format_bytes(why.needed_bytes - why.capacity_bytes)
        said = (
            f"rank {why.rank} needs {format_bytes(why.needed_bytes)} of "
            f"{format_bytes(why.capacity_bytes)}, {over} too much; most of it is {why.term}"
        )
    lines: list[RenderableType] = [
        Text.assemble(
            ("No layout fits  ", "bold red"),
            f"{answer.model} on {answer.cluster}: {answer.considered:,} layouts considered",
        ),
        Text(f"Nearest: {why.nearest}: {said}"),
    ]
    for found in why.relaxations:
        lines.append(
            Text(
                f"Would fit: {found.change} ({found.flag}): {found.layout}, step "
                f"{format_time(found.step_time_s)}"
            )
        )
    if not why.relaxations:
        lines.append(Text("No change that was tried makes it fit."))
    return Group(*lines)


def _ranges(choice: LayoutChoice) -> list[RenderableType]:
    """Intervals beside the step's, and the productive time of a long run with failures."""
    found = choice.prediction
    lasting = choice.reliability
    first = [
        f"MFU {format_interval(found.mfu, format_percent)}",
        f"peak {format_interval(found.peak, format_bytes)}",
    ]
    if found.kwh_per_million is not None:
        first.append(_range("kWh per M tokens", found.kwh_per_million, "{:.3g}".format))
    if found.usd_per_million_tokens is not None:
        first.append(_range("per M tokens", found.usd_per_million_tokens, format_usd))
    lost = (
        f"one per {format_interval(lasting.between_failures_s)}, checkpoint every "
        f"{format_time(lasting.checkpoint_every_s)}; productive time "
        f"{format_interval(lasting.goodput, format_percent)}{_most_lost(lasting)}; "
        f"{lasting.spare_nodes} spare node{'' if lasting.spare_nodes == 1 else 's'}"
    )
    counted = choice.usd_delivered
    if counted is not None:
        lost += f"; {_range('per M tokens that count', counted, format_usd)}"
    return [labelled("Range:  ", "; ".join(first)), labelled("Failures: ", lost)]


def _power(choice: LayoutChoice) -> str:
    """What the energy of the range rests on, and its carbon."""
    run = choice.run
    mfu = power_mfu(run, choice.prediction.mfu.value, run.degrees.num_devices + choice.idle_devices)
    said = power_words(run.device, mfu)
    kwh, kg = choice.kwh_delivered, choice.kg_co2e_delivered
    if kwh is not None and kg is not None:
        said += f"; {_range('kWh per M tokens that count', kwh, '{:.3g}'.format)}"
        said += f", {_range('kg CO2e', kg, '{:.3g}'.format)} from the grid of {choice.region}"
    return said


def _most_lost(lasting: Reliability) -> str:
    """What most of a long run's time is lost to."""
    worst = sorted(lasting.lost.items(), key=lambda part: -part[1])[:2]
    said = ", ".join(f"{name} {format_percent(share)}" for name, share in worst if share > 1e-3)
    return f" (lost: {said})" if said else ""


def _range(name: str, value: Interval, formatted: Callable[[float], str]) -> str:
    low, middle, high = (formatted(x) for x in (value.low, value.value, value.high))
    return f"{middle} {name} [{low} - {high}]"


def parts_of_step(choice: LayoutChoice) -> str:
    """The parts of the step, largest first, with their shares."""
    parts = choice.prediction.components
    total = sum(part.time_s for part in parts)
    said = [
        f"{part.name.words} {format_percent(part.time_s / total)}"
        for part in sorted(parts, key=lambda part: -part.time_s)
        if part.time_s > 0.005 * total
    ]
    return ", ".join(said)
