"""The short answer of `plan`, without --explain: at most twelve lines of 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from planner.layout.layout_answer import LayoutChoice, LayoutFile, layout_title
from planner.space import EXECUTOR
from profiles.hardware.catalogue.catalog import get_device
from profiles.units import format_count, format_percent, format_probability, format_time, format_usd
from shardwright.reports.labelled import LABEL, WIDTH, assumed_line, labelled, one_line
from shardwright.reports.terminal import format_interval, memory_words, price_words
from shardwright.requests.compared_frameworks import is_supported
from shardwright.runs.known_models import whole_run
from simulator.log_interval import is_tie, probability_less
from simulator.training_run.fit.evidence import evidence_words
from simulator.training_run.step.coefficient_kinds import processor_of
from simulator.values.prediction import Interval

# Other frameworks, and runners-up of the same one.
_FRAMEWORKS, _RUNNERS_UP = 2, 2
_LINES = 12


def layout_summary(
    answer: LayoutFile, others: Sequence[LayoutFile] = (), price_notes: Sequence[str] = ()
) -> RenderableType:
    """The answer in short.

    others       of the compared frameworks, fastest first; without them, the layout's runners-up
    price_notes  warnings about the price
    Raises ValueError for an answer without a layout (its report explains those).
    """
    chosen = answer.chosen
    if chosen is None:
        raise ValueError("no layout was chosen")
    prediction = chosen.prediction
    used = chosen.run.degrees.num_devices
    idle = f"{used:,} devices, {chosen.idle_devices:,} idle" if chosen.idle_devices else ""
    memory = memory_words(
        prediction.peak.value,
        chosen.required_memory_bytes,
        get_device(chosen.run.device).usable_bytes,
    )
    basis = evidence_words(chosen.run)
    price = prediction.price_usd_per_hour
    # Without the date and the provider, which --explain prints.
    old = [each.split(" on 20")[0] for each in price_notes if price is not None]
    assumptions = [*old, *(each for each in answer.assumptions if each != basis)]
    title = f"{answer.stack}: {layout_title(chosen.run)}"
    rows = [(row,) for row in framework_rows(answer, others)] or _runners_up(answer)
    lines: list[RenderableType] = [
        one_line(
            "Step    ",
            format_interval(prediction.step_time_s),
            f"MFU {format_interval(prediction.mfu, format_percent)}",
            idle,
        ),
        one_line("Memory  ", memory, f"exceeds it with probability {_risk(chosen)}"),
        _cost(answer, price_notes),
        *([one_line("Price   ", *price_words(price).split("; "))] if price is not None else []),
        *(
            one_line("Next    " if not number else " " * LABEL, *row)
            for number, row in enumerate(rows)
        ),
        *_published(answer),
        one_line("Basis   ", evidence_words(chosen.run, short=True)),
        assumed_line(assumptions),
    ]
    best = labelled(
        Text("Best    ", style="bold"), title, Text(_proof(answer, others), style="green")
    )
    if len(lines) + -(-len(title) // (WIDTH - LABEL)) < _LINES - 1:
        lines.insert(2, one_line("Time    ", *_parts(chosen)))
    return Group(best, *lines)


def _risk(choice: LayoutChoice) -> str:
    """`3 %`, the probability of running out of memory; `< 0.1 %` below that."""
    risk = choice.out_of_memory_probability
    return format_percent(risk) if risk >= 0.001 else "< 0.1 %"


def _parts(choice: LayoutChoice) -> list[str]:
    """The parts of the step, largest first, with their shares."""
    parts = sorted(choice.prediction.components, key=lambda part: -part.time_s)
    total = sum(part.time_s for part in parts)
    return [
        f"{part.name.words} {format_percent(part.time_s / total)}"
        for part in parts
        if part.time_s > 0.005 * total
    ]


def _proof(answer: LayoutFile, others: Sequence[LayoutFile]) -> str:
    words = f"within {format_percent(answer.gap or 0.0)} of the best"
    if answer.status == "optimal":
        words = "proven optimal"
    tied = any(is_tie(_faster(answer, other)) for other in others[:1])
    return f"{words}; a tie with the next" if tied else words


def _cost(answer: LayoutFile, price_notes: Sequence[str]) -> RenderableType:
    """Dollars and energy per million productive tokens of a long run with failures."""
    chosen = answer.chosen
    usd, kwh = (None, None) if chosen is None else (chosen.usd_delivered, chosen.kwh_delivered)
    said = [] if usd is None else [format_interval(usd, format_usd)]
    said += [] if kwh is None else [f"{format_interval(kwh, '{:.3g}'.format)} kWh"]
    words = f"{', '.join(said)} per M tokens, failures included" if said else ""
    if usd is None:
        return labelled("Cost    ", *price_notes[:1], words)
    return one_line("Cost    ", words)


def _faster(answer: LayoutFile, other: LayoutFile) -> float | None:
    """Probability that the other framework's step is faster."""
    if answer.chosen is None or other.chosen is None:
        return None
    steps = (each.chosen.prediction.step_time_s for each in (other, answer) if each.chosen)
    return probability_less(*steps)


def framework_rows(answer: LayoutFile, others: Sequence[LayoutFile]) -> list[str]:
    """The next two frameworks, and our executor, each compared with the answer."""
    chosen = answer.chosen
    if chosen is None:
        return []
    fastest = [each for each in others if each.stack != EXECUTOR][:_FRAMEWORKS]
    own = [each for each in others if each.stack == EXECUTOR]
    rows = []
    for other in (*fastest, *own):
        faster = _faster(answer, other)
        if other.chosen is None or faster is None:
            continue
        step = other.chosen.prediction.step_time_s
        name, few = other.stack, not is_supported(other.stack, chosen.run.device)
        if other.stack == EXECUTOR or few:
            name += " (runs here)" if other.stack == EXECUTOR else " (little evidence)"
        if other.chosen.run.precision != chosen.run.precision:
            name += f" in {other.chosen.run.precision}"
        tie = ", a tie" if is_tie(faster) else ""
        words = f"{name}: {format_interval(step)}, P(faster) {format_probability(faster)}{tie}"
        rows.append(words)
    return rows


def _runners_up(answer: LayoutFile) -> list[tuple[str, ...]]:
    return [
        (
            f"{format_time(each.prediction.step_time_s.value)}: {layout_title(each.run)}",
            each.why_not_first,
        )
        for each in answer.alternatives[:_RUNNERS_UP]
    ]


def _published(answer: LayoutFile) -> list[Text]:
    """The published run of the model on the same processor, in device-hours for 10^12 tokens."""
    run, chosen = whole_run(answer.model), answer.chosen
    if run is None or chosen is None or chosen.run.lora:
        return []
    if processor_of(run.device) != processor_of(chosen.run.device):
        return []
    devices = chosen.run.degrees.num_devices + chosen.idle_devices
    tokens = chosen.run.global_batch * chosen.run.seq_len
    step, kept = chosen.prediction.step_time_s, chosen.reliability.goodput
    hours = Interval(
        value=step.value / kept.value, low=step.low / kept.high, high=step.high / kept.low
    ).scaled(devices / 3600.0 / tokens * 1e12)
    return [
        one_line(
            "Known   ",
            f"{run.name}: {format_count(run.hours_per_trillion)} device-hours per T tokens "
            f"(published); this plan {format_interval(hours, format_count)}",
        )
    ]
