"""The full output of `size`: devices to rent, certainty, alternatives, sensitivities."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from planner.layout.layout_answer import layout_title
from planner.sizing.run_outlook import RunOutlook
from planner.sizing.size_answer import FrontPoint, Gain, SizeAnswer
from planner.sizing.size_question import TOKENS, SizeQuestion
from profiles.hardware.catalogue.catalog import get_device
from profiles.units import (
    format_count,
    format_days,
    format_energy,
    format_percent,
    format_time,
    format_usd,
)
from shardwright.analysis.size_better import is_tie, probability_better
from shardwright.reports.labelled import labelled
from shardwright.reports.sizing.size_compare import chance
from shardwright.reports.terminal import format_interval, memory_words, table
from shardwright.requests.sizing.published_comparison import PublishedComparison
from shardwright.requests.sizing.sized import Sized
from simulator import scaling_law
from simulator.training_compute import METHOD, THRESHOLDS
from simulator.values.prediction import Interval

GOAL_WORDS = {
    "cost": "cheapest",
    "time": "fastest",
    "devices": "fewest devices",
    "energy": "least energy",
    TOKENS: "most tokens",
}
_FRONT_ROWS = 6
# Shorter times are told in hours.
_FEW_DAYS = 2.0


def size_report(sized: Sized, *, explain: bool = False) -> RenderableType:
    """At most 100 columns; about 35 lines.

    explain  adds the trade-offs, what the compute is best spent on, and where thresholds stand
    """
    question, answer = sized.question, sized.answer
    best = answer.best
    if best is None:
        return _infeasible(question, answer)
    run = best.run
    proof = "proven" if answer.status == "optimal" else f"gap {format_percent(answer.gap or 0)}"
    prediction = best.plan.prediction
    return Group(
        labelled(
            Text("Rent    ", style="bold"),
            Text(
                f"{run.nodes:,} x {run.choice.node_devices} {run.choice.asked} "
                f"({run.devices:,} devices)",
                style="bold",
            ),
            f"{GOAL_WORDS[answer.minimised]}, {proof} over {_choices(question)}",
        ),
        labelled("Plan    ", f"{run.stack}: {layout_title(run.layout.run)}", *_idle(best)),
        labelled(
            "Step    ",
            format_interval(prediction.step_time_s),
            f"MFU {format_percent(prediction.mfu.value)}",
            memory_words(
                prediction.peak.value,
                best.plan.required_memory_bytes,
                get_device(run.choice.device).usable_bytes,
            ),
            f"{format_count(run.tokens)} tokens in {run.steps:,.0f} steps of "
            f"{run.batch:,} x {question.seq_len:,}",
        ),
        labelled("Time    ", days_words(best.days), *by_words(question, best)),
        labelled("Cost    ", *_cost(question, best)),
        labelled(
            "Energy  ",
            f"{format_interval(best.kwh, format_energy)}, PUE {question.pue.value:g}",
            f"{format_interval(best.tco2e, tonnes_words)} CO2e, grid of {question.region}",
        ),
        labelled("Kept    ", *_kept(best)),
        labelled("Binds   ", answer.binds),
        *_others(answer),
        *published_lines(sized),
        *(_front(answer) if explain else ()),
        *_gains(answer.gains),
        labelled("FLOP    ", _flop(question, answer)),
        *(_compute(question, answer) if explain else ()),
        labelled("Assumed ", "; ".join(answer.assumptions), style="dim"),
    )


def _choices(question: SizeQuestion) -> str:
    types, stacks = len(question.choices), len(question.stacks)
    low = min(choice.fewest * choice.node_devices for choice in question.choices)
    high = max(choice.most * choice.node_devices for choice in question.choices)
    said = f"{types} device type{'s' if types > 1 else ''}, {stacks} framework"
    said += "s" if stacks > 1 else ""
    if len(question.batches) > 1:
        said += f", {len(question.batches)} batches"
    return f"{said}, {low:,} devices" if low == high else f"{said}, {low:,} to {high:,} devices"


def _idle(best: RunOutlook) -> list[str]:
    idle = best.run.devices - best.run.layout.run.degrees.num_devices
    return [f"{idle:,} devices idle"] if idle else []


def days_words(days: Interval) -> str:
    if days.value < _FEW_DAYS:
        return format_interval(days.scaled(86400.0))
    return f"{format_days(days.value)} days [{format_days(days.low)} - {format_days(days.high)}]"


def by_words(question: SizeQuestion, best: RunOutlook) -> list[str]:
    if question.deadline_s is None or best.probability_of_deadline is None:
        return []
    end = f"{format_days(question.deadline_s / 86400)} d"
    return [f"within {end} with {chance(best.probability_of_deadline)}"]


def _cost(question: SizeQuestion, best: RunOutlook) -> list[str]:
    hours = f"{format_count(best.device_hours.value)} device-hours"
    if best.usd is None or best.run.choice.usd_per_hour is None:
        return [f"no price is known of {best.run.choice.asked} (--prices)", hours]
    said = [format_interval(best.usd, format_usd)]
    if question.budget_usd is not None and best.probability_of_budget is not None:
        said.append(
            f"within {format_usd(question.budget_usd)} with {chance(best.probability_of_budget)}"
        )
    price = best.run.choice.usd_per_hour
    between = f" [{format_usd(price.low)} - {format_usd(price.high)}]"
    said.append(
        f"{hours} at {format_usd(price.value)}{between if price.low < price.high else ''}, "
        f"{best.run.choice.price_words}"
    )
    if best.spare_usd is not None and best.lost_usd is not None:
        said.append(
            f"with {format_usd(best.spare_usd.value)} for spare nodes; "
            f"{format_interval(best.lost_usd, format_usd)} pays for lost time"
        )
    if (
        best.storage_usd is not None
        and best.egress_usd is not None
        and question.storage is not None
    ):
        said.append(
            f"with {format_usd(best.storage_usd.value)} of storage and "
            f"{format_usd(best.egress_usd.value)} of egress, {question.storage.price.words}"
        )
    return said


def tonnes_words(tonnes: float) -> str:
    if tonnes < 1:
        return f"{tonnes * 1e3:.3g} kg"
    return f"{tonnes / 1e3:.3g} kt" if tonnes >= 1e3 else f"{tonnes:.3g} t"


def _kept(best: RunOutlook) -> list[str]:
    lost = [f"{name} {format_percent(share)}" for name, share in best.lost[:3] if share >= 0.002]
    interruptions = f"{best.interruptions.value:.0f}"
    return [
        f"{format_interval(best.productive_time, format_percent)} of the time; lost: "
        f"{', '.join(lost) or 'nothing'}",
        f"{interruptions} interruption{'' if interruptions == '1' else 's'}, checkpoint every "
        f"{format_time(best.checkpoint_every_s)}, {best.spare_nodes} spare "
        f"node{'' if best.spare_nodes == 1 else 's'}",
    ]


def _others(answer: SizeAnswer) -> list[RenderableType]:
    if not answer.others and not answer.refused and not answer.frameworks:
        return []
    figures = (">days", ">dollars", ">energy", ">better")
    rows = table("device", ">count", "framework", *figures, "why not")
    best = answer.best
    shown = [best, *answer.others, *answer.frameworks] if best is not None else []
    for found in shown:
        run = found.run
        rows.add_row(
            run.choice.asked,
            f"{run.devices:,}",
            run.stack,
            days_words(found.days),
            format_interval(found.usd, format_usd) if found.usd is not None else "-",
            format_energy(found.kwh.value),
            _better(answer, found),
            found.why_not or "chosen",
        )
    for name, why in answer.refused:
        rows.add_row(name, *["-"] * 6, why)
    return [Text(""), rows, Text("")]


def _better(answer: SizeAnswer, run: RunOutlook) -> str:
    """The probability that a runner-up is better than the chosen run."""
    if answer.best is None or run is answer.best:
        return ""
    probability = probability_better(answer.minimised, answer.best, run)
    if probability is None:
        return "-"
    return f"{format_percent(probability)}{' (a tie)' if is_tie(probability) else ''}"


def published_lines(sized: Sized) -> list[RenderableType]:
    """The published run of the model, and its prediction."""
    if sized.published is None:
        return []
    return [labelled("Known   ", published_words(sized.published), sized.published.run.source)]


def published_words(published: PublishedComparison) -> str:
    """`Llama 3 70B took 6.40 M h100-sxm-80gb hours (published); prediction 5.90 M [...]`."""
    hours = format_interval(published.predicted_device_hours, format_count)
    run = published.run
    return (
        f"{run.name} took {format_count(run.device_hours)} {run.device} hours (published); "
        f"prediction {hours}"
    )


def _front(answer: SizeAnswer) -> list[RenderableType]:
    points = answer.front[:_FRONT_ROWS]
    if len(points) < 2:
        return []
    rows = table("trade-off", ">devices", ">step", ">time", ">dollars", ">energy", "layout")
    for point in points:
        rows.add_row(
            point.device,
            f"{point.devices:,}",
            format_time(point.step_time_s),
            format_time(86400.0 * point.days),
            format_usd(point.usd) if point.usd is not None else "-",
            format_energy(point.kwh),
            _short(point),
        )
    return [rows, Text("")]


def _short(point: FrontPoint) -> str:
    return point.layout.partition(",")[0]


def _gains(gains: tuple[Gain, ...]) -> list[RenderableType]:
    said = []
    for gain in gains:
        usd = f", {_signed_usd(gain.usd)}" if gain.usd is not None else ""
        sign = "+" if gain.days >= 0 else "-"
        moved = f"{sign}{format_time(86400.0 * abs(gain.days))}{usd}"
        said.append(f"{gain.change}: {moved if gain.days else 'nothing'};")
    return [labelled("Next    ", *said)] if said else []


def _signed_usd(usd: float) -> str:
    return f"{'+' if usd >= 0 else '-'}{format_usd(abs(usd))}"


def _flop(question: SizeQuestion, answer: SizeAnswer) -> str:
    sides = ", ".join(
        f"{'above' if answer.flop > one.work_flop else 'below'} {one.work_flop:.0e} ({one.short})"
        for one in THRESHOLDS
    )
    frozen = ", as if no weight were frozen" if question.lora_rank else ""
    return f"{answer.flop:.2e} (6 per active parameter and token, and attention{frozen}): {sides}"


def _compute(question: SizeQuestion, answer: SizeAnswer) -> list[RenderableType]:
    """The method, the thresholds' sources, and the scaling law where it holds."""
    lines: list[RenderableType] = [labelled("Method  ", METHOD)]
    if answer.best is not None:
        lines.insert(0, labelled("Lost    ", _lost(answer.best)))
    for each in THRESHOLDS:
        lines.append(labelled("Law     ", f"{each.name}: {each.source}; {each.state}"))
    if answer.best is None or question.model.num_experts or question.lora_rank:
        return lines
    found = scaling_law.optimum_of_compute(answer.flop)
    tokens, parameters = answer.best.run.tokens, question.model.parameters
    far = ", here extrapolated" if scaling_law.outside_range(parameters, tokens) else ""
    said = (
        f"{scaling_law.predicted_loss(parameters, tokens):.3f} nats; least for this FLOP "
        f"{found.loss:.3f} with {format_count(found.parameters)} on {format_count(found.tokens)} "
        f"tokens; this model's compute is best spent on "
        f"{format_count(scaling_law.optimal_tokens(parameters))} tokens ({scaling_law.SOURCE}; "
        f"{scaling_law.RANGE_WORDS}{far})"
    )
    return [*lines, labelled("Loss    ", said)]


def _lost(best: RunOutlook) -> str:
    """Every cause of lost time with its share."""
    shares = ", ".join(f"{name} {share:.2%}" for name, share in best.lost)
    return f"{shares}; {format_interval(best.interruptions, '{:.0f}'.format)} interruptions"


def _infeasible(question: SizeQuestion, answer: SizeAnswer) -> RenderableType:
    asked = []
    if question.deadline_s is not None:
        asked.append(f"within {format_days(question.deadline_s / 86400)} days")
    if question.budget_usd is not None:
        asked.append(f"for {format_usd(question.budget_usd)}")
    lines: list[RenderableType] = [
        Text.assemble(
            ("Nothing fits  ", "bold red"),
            f"{question.name} {' and '.join(asked)} over {_choices(question)}",
        )
    ]
    if answer.binds:
        lines.append(labelled("Memory: ", answer.binds))
    for name, why in answer.refused:
        lines.append(labelled(f"{name}: ", why))
    for found in answer.relaxations:
        usd = f", {format_usd(found.usd)}" if found.usd is not None else ""
        lines.append(
            labelled(
                "Would fit: ",
                f"{found.change} ({found.flag}): {found.devices:,} {found.device}, "
                f"{format_days(found.days)} days{usd}",
            )
        )
    lines.append(labelled("Assumed ", "; ".join(answer.assumptions), style="dim"))
    return Group(*lines)
