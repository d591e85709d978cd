"""The short answer of `size`, without --explain: at most twelve lines of 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from planner.layout.layout_answer import layout_title
from planner.sizing.run_outlook import RunOutlook, SizeAnswer
from planner.sizing.size_question import TOKENS, SizeQuestion
from profiles.hardware.catalogue.catalog import get_device
from profiles.units import (
    format_count,
    format_days,
    format_energy,
    format_percent,
    format_probability,
    format_tonnes,
    format_usd,
)
from shardwright.analysis.size_better import probability_better, versus_of
from shardwright.reports.labelled import LABEL, assumed_line, one_line
from shardwright.reports.terminal import format_interval, memory_words
from shardwright.requests.compared_frameworks import is_supported
from shardwright.requests.sizing.sized import PublishedComparison, Sized
from simulator.log_interval import is_tie
from simulator.training_run.fit.evidence import evidence_words
from simulator.values.prediction import Interval

GOAL_WORDS = {
    "cost": "cheapest",
    "time": "fastest",
    "devices": "fewest devices",
    "energy": "least energy",
    TOKENS: "most tokens",
}
# Lines of other types of devices and other frameworks on the chosen devices.
_NEXT = 3
_FEW_DAYS = 2.0
"""Number of days below which times are printed in hours."""


def size_summary(
    sized: Sized, versus: Sequence[tuple[str, Sized]] = (), largest: str = ""
) -> RenderableType:
    """The answer in short; raises ValueError if nothing keeps the limits (`size_report`).

    versus   changed requests with their answers, instead of the runners-up
    largest  why this model, if the request has several
    """
    question, answer = sized.question, sized.answer
    best = answer.best
    if best is None:
        raise ValueError("nothing keeps the limits")
    run = best.run
    prediction = best.plan.prediction
    per_node = run.choice.node_devices
    plural = "" if best.spare_nodes == 1 else "s"
    spares = f" + {best.spare_nodes} spare node{plural}" if best.spare_nodes else ""
    idle = run.devices - run.layout.run.degrees.num_devices
    memory = memory_words(
        prediction.peak.value,
        best.plan.required_memory_bytes,
        get_device(run.choice.device).usable_bytes,
    )
    basis = evidence_words(run.layout.run)
    assumptions = [each for each in answer.assumptions if each != basis]
    known = [] if sized.published is None else [_published_words(sized.published)]
    model = [one_line("Model   ", largest)] if largest else []
    tokens = f"{format_count(run.tokens)} tokens in {run.steps:,.0f} steps"
    limits = _by_words(question, best)
    return Group(
        *model,
        one_line(
            "Rent    ",
            f"{run.nodes:,} x {per_node} {run.choice.each} ({run.devices:,} devices){spares}",
            _proof(answer),
            f"{idle:,} idle" if idle else "",
            bold=True,
        ),
        one_line("Plan    ", f"{run.stack}: {layout_title(run.layout.run)}"),
        one_line(
            "Step    ",
            format_interval(prediction.step_time_s),
            f"MFU {format_interval(prediction.mfu, format_percent)}",
            memory,
        ),
        one_line(
            "Time    ",
            _days_words(best.days),
            *([tokens, *limits] if answer.minimised == TOKENS else [*limits, tokens]),
        ),
        one_line("Cost    ", *_cost(question, best)),
        *_price(best),
        one_line(
            "Energy  ",
            format_interval(best.kwh, format_energy),
            f"{format_interval(best.tco2e, format_tonnes)} CO2e",
        ),
        *(line for text, other in versus for line in _versus_lines(text, sized, other)),
        *_next(answer, _NEXT - len(known) - len(model) - 2 * len(versus)),
        *(one_line("Known   ", words) for words in known),
        one_line("Basis   ", evidence_words(run.layout.run, short=True), _little(best)),
        assumed_line(assumptions),
    )


def _proof(answer: SizeAnswer) -> str:
    proven = answer.status == "optimal"
    return (
        f"{GOAL_WORDS[answer.minimised]}, "
        f"{'proven' if proven else f'within {format_percent(answer.gap or 0.0)} of the best'}"
        f"{'; a tie with the next' if _tied(answer) else ''}"
    )


def _tied(answer: SizeAnswer) -> bool:
    best = answer.best
    return best is not None and any(
        is_tie(probability_better(answer.minimised, best, other)) for other in answer.others[:1]
    )


def _cost(question: SizeQuestion, best: RunOutlook) -> list[str]:
    hours = f"{format_interval(best.device_hours, format_count)} device-hours"
    if best.usd is None or best.lost_usd is None:
        return [f"no price is known of {best.run.choice.asked} (--prices)", hours]
    said = [format_interval(best.usd, format_usd)]
    if best.probability_of_budget is not None and question.budget_usd is not None:
        said.append(
            f"within {format_usd(question.budget_usd)} with probability "
            f"{format_percent(best.probability_of_budget)}"
        )
    low, high = (format_usd(end) for end in (best.lost_usd.low, best.lost_usd.high))
    return [
        *said,
        f"{format_usd(best.lost_usd.value)} [{low} - {high}] for lost time",
    ]


def _price(best: RunOutlook) -> list[Text]:
    price = best.run.choice.usd_per_hour
    if price is None:
        return []
    words = f"{format_interval(price, format_usd)} per device-hour: {best.run.choice.price_words}"
    return [one_line("Price   ", words)]


def _next(answer: SizeAnswer, room: int) -> list[Text]:
    """The best of the next types of devices, then the next frameworks, each with its interval and
    the probability that it is better."""
    if room < 1:
        return []
    frameworks = answer.frameworks[: max(1, room - len(answer.others))]
    devices = answer.others[: room - len(frameworks)]
    lines = []
    for number, other in enumerate((*devices, *frameworks)):
        device = number < len(devices)
        name = f"{other.run.devices:,} {other.run.choice.each}"
        if not device:
            little = _little(other)
            name = f"{other.run.stack} ({little})" if little else other.run.stack
        figure = _days_words(other.days)
        if answer.minimised == "cost" and other.usd is not None:
            figure = format_interval(other.usd, format_usd)
        elif answer.minimised == "energy":
            figure = format_interval(other.kwh, format_energy)
        lines.append(
            one_line(
                "Next    " if number == 0 else " " * LABEL,
                f"{name}: {figure}{_better_words(answer, other)}",
                other.why_not,
            )
        )
    return lines


def _better_words(answer: SizeAnswer, other: RunOutlook) -> str:
    if answer.best is None:
        return ""
    probability = probability_better(answer.minimised, answer.best, other)
    if probability is None:
        return ""
    word = {"cost": "cheaper", "time": "faster", "energy": "less energy"}[answer.minimised]
    tie = ", a tie" if is_tie(probability) else ""
    return f", P({word}) {format_probability(probability)}{tie}"


def _little(outlook: RunOutlook) -> str:
    """`little evidence` for a compared framework with few fitted runs on the device, or ""."""
    run = outlook.run
    if not run.choice.preferred or is_supported(run.stack, run.choice.device):
        return ""
    return "little evidence"


def _days_words(days: Interval) -> str:
    if days.value < _FEW_DAYS:
        return format_interval(days.scaled(86400.0))
    return f"{format_days(days.value)} days [{format_days(days.low)} - {format_days(days.high)}]"


def _by_words(question: SizeQuestion, best: RunOutlook) -> list[str]:
    if question.deadline_s is None or best.probability_of_deadline is None:
        return []
    end = f"{format_days(question.deadline_s / 86400)} d"
    return [f"within {end} with probability {format_probability(best.probability_of_deadline)}"]


def _published_words(published: PublishedComparison) -> str:
    """`Llama 3 70B took 6.40 M h100-sxm-80gb hours (published); prediction 5.90 M [...]`."""
    hours = format_interval(published.predicted_device_hours, format_count)
    run = published.run
    return (
        f"{run.name} took {format_count(run.device_hours)} {run.device} hours (published); "
        f"prediction {hours}"
    )


def _versus_lines(text: str, first: Sized, second: Sized) -> list[Text]:
    """Two lines on another answer."""
    one, other = first.answer.best, second.answer.best
    if one is None or other is None:
        return [one_line("Versus  ", f"{text}: nothing keeps the limits")]
    found, run = versus_of(one, other), other.run
    usd = format_interval(other.usd, format_usd) if other.usd is not None else "no price"
    said = [f"the first is faster with probability {format_probability(found.faster)}"]
    if found.cheaper is not None:
        said.append(f"cheaper with probability {format_probability(found.cheaper)}")
    days = format_interval(other.days.scaled(86400.0))
    return [
        one_line("Versus  ", f"{text}: {run.devices:,} {run.choice.each}", days, usd),
        one_line("        ", *said),
    ]
