"""The HTML report of a framework's layout: one self-contained file, everything escaped."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from planner.layout.layout_answer import LayoutFile, layout_title
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_device
from profiles.units import format_bytes, format_count, format_percent, format_time, format_usd
from shardwright.reports.html import PART_COLOURS, fact, template
from shardwright.reports.price_words import price_note
from simulator.mfu import MFU_DEFINITION
from simulator.training_run.explain.explain_run import RunExplanation
from simulator.values.prediction import Interval


def layout_html(
    answer: LayoutFile, found: RunExplanation, *, provenance: Mapping[str, object] | None = None
) -> str:
    """The whole page; raises InputError where nothing fitted."""
    chosen = answer.chosen
    if chosen is None:
        raise InputError(f"no layout of {answer.model} fits on {answer.cluster}: nothing to draw")
    run, prediction = chosen.run, chosen.prediction
    step = prediction.step_time_s
    total = sum(part.time_s for part in prediction.components)
    memory = prediction.peak
    facts = [
        fact("Predicted step", format_time(step.value), _range(step, format_time) + ", 90 %"),
        fact("MFU", format_percent(prediction.mfu.value), _range(prediction.mfu, format_percent)),
        fact(
            "Peak memory",
            format_bytes(memory.value),
            f"{_range(memory, format_bytes)}; needs "
            f"{format_bytes(chosen.required_memory_bytes)} of "
            f"{format_bytes(get_device(run.device).usable_bytes)}",
        ),
        fact("Speed", f"{format_count(prediction.per_s.value)} tokens/s", "all devices"),
    ]
    usd = prediction.usd_per_million_tokens
    if usd is not None:
        facts.append(fact("Cost", format_usd(usd.value), "per million tokens"))
    goodput = chosen.reliability.goodput
    facts.append(
        fact("Productive time", format_percent(goodput.value), _range(goodput, format_percent))
    )
    return str(
        template("layout.html.j2").render(
            mfu_definition=MFU_DEFINITION,
            title=f"{answer.model} on {answer.cluster}, {answer.stack}",
            subtitle=(
                f"{layout_title(run)} · {run.global_batch} sequences of {run.seq_len} tokens per "
                f"step · {run.precision} · status {answer.status}"
            ),
            facts=facts,
            price=price_note(prediction.price_usd_per_hour) if usd is not None else "",
            parts=[
                {
                    "name": part.name.words,
                    "time": format_time(part.time_s),
                    "percent": format_percent(part.time_s / total),
                    "share": round(100 * part.time_s / total, 2),
                    "colour": PART_COLOURS[part.name],
                }
                for part in prediction.components
            ],
            layout_title=layout_title,
            lines=found.lines,
            choices=(chosen, *answer.alternatives),
            helps=answer.sensitivities,
            sources=found.sources,
            coefficients=found.coefficients,
            assumptions=(*answer.assumptions, *run.defaults),
            command=str((provenance or {}).get("command", "")),
        )
    )


def _range(value: Interval, formatted: Callable[[float], str]) -> str:
    return f"{formatted(value.low)} to {formatted(value.high)}"
