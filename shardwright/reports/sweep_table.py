"""The table of a sweep: one line per question, sorted, as text, CSV and JSON.

Nothing in it depends on who solved the questions, in which order or when.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from rich.console import Group, RenderableType
from rich.text import Text

from planner.batch.sweep import Answer, Row, has_plan
from planner.layout.layout_answer import LayoutFile, layout_title
from profiles.csv_text import csv_text
from profiles.document import encode, to_json
from profiles.errors import UnknownNameError
from profiles.sourced import Sourced
from profiles.units import format_percent, format_time, format_usd
from shardwright.reports.labelled import labelled
from shardwright.reports.price_words import price_words
from shardwright.reports.terminal import table, usd_heading
from simulator.values.plan_title import Titled, plan_title

SWEEP_SCHEMA = "shardwright/sweep@1"
# What `--sort` takes: the column, and whether the largest comes first.
SORTS = {
    "step": ("step_time_s", False),
    "cost": ("usd_per_million_tokens", False),
    "mfu": ("mfu", True),
    "tokens": ("tokens_per_s", True),
    "memory": ("peak_memory_bytes", False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A question and its answer in figures; what there is none of is None.

    file    the plan file's name in the sweep's folder
    reason  why there is no plan, or empty
    price   as asked for;  price_*  what a device-hour was taken to cost, and whose price that is
    """

    model: str
    cluster: str
    global_batch: int
    sequence_length: int
    precision: str
    optimizer: str
    price: str
    pins: str
    status: str
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    gap: float | None = None
    mfu: float | None = None
    tokens_per_s: float | None = None
    samples_per_s: float | None = None
    peak_memory_bytes: float | None = None
    usd_per_million_tokens: float | None = None
    usd_per_million_samples: float | None = None
    price_usd_per_hour: float | None = None
    price_source: str = ""
    price_date: str = ""
    pp: int | None = None
    dp: int | None = None
    tp: int | None = None
    vpp: int | None = None
    schedule: str | None = None
    micro_batch: int | None = None
    zero_stage: int | None = None
    file: str = ""
    reason: str = ""


def line_of(row: Row) -> Line:
    """The figures of a row."""
    question, answer = row.question, row.answer
    work = question.workload
    found = {} if answer is None else _figures(answer) | {"file": f"{row.key}.json"}
    precision = work.precision
    if question.layouts is not None:
        asked = question.layouts
        chosen = answer.chosen if isinstance(answer, LayoutFile) else None
        precision = chosen.run.precision if chosen else asked.precision
    return Line(
        model=question.model,
        cluster=question.cluster,
        global_batch=work.global_batch,
        sequence_length=work.sequence_length,
        precision=precision,
        optimizer=work.optimizer,
        price=question.price,
        pins=" ".join(question.pins()),
        status=answer.status if answer is not None else "failed",
        reason=row.reason,
        **found,  # type: ignore[arg-type] # fields of one name and type
    )


def degree_figures(of: Titled) -> dict[str, object]:
    """The columns of a plan's or run's degrees, micro-batch, ZeRO stage and schedule."""
    degrees = of.degrees
    return {
        "pp": degrees.pp,
        "dp": degrees.dp,
        "tp": degrees.tp,
        "vpp": degrees.vpp,
        "schedule": of.schedule,
        "micro_batch": of.micro_batch,
        "zero_stage": of.zero_stage,
    }


def _figures(answer: Answer) -> dict[str, object]:
    """The columns of an answer's plan and prediction."""
    of: Titled | None
    if isinstance(answer, LayoutFile):
        chosen = answer.chosen
        of, made = (chosen.run, chosen.prediction) if chosen else (None, None)
    else:
        of, made = answer.plan, answer.prediction
    found: dict[str, object] = {"gap": answer.gap}
    if of is not None:
        found |= degree_figures(of)
    if made is None:
        return found
    step, price = made.step_time_s, made.price_usd_per_hour
    usd, per_sample = made.usd_per_million_tokens, made.usd_per_million_samples
    found |= {
        "step_time_s": step.value,
        "step_time_low_s": step.low,
        "step_time_high_s": step.high,
        "mfu": made.mfu.value,
        f"{made.counted_in}_per_s": made.per_s.value,
        "peak_memory_bytes": made.peak.value,
        "usd_per_million_tokens": usd.value if usd else None,
        "usd_per_million_samples": per_sample.value if per_sample else None,
    }
    if price is not None:
        found |= {
            "price_usd_per_hour": price.value,
            "price_source": price.source,
            "price_date": price.date,
        }
    return found


def sorted_rows(rows: Iterable[Row], by: str) -> tuple[Row, ...]:
    """The rows by a column of SORTS, those without a plan last; ties by the question's words.

    Raises UnknownNameError for another column.
    """
    if by not in SORTS:
        raise UnknownNameError("column", by, SORTS, where="--sort")
    column, largest_first = SORTS[by]

    def order(row: Row) -> tuple[float, str, str, str]:
        value = getattr(line_of(row), column)
        place = math.inf if value is None else -value if largest_first else value
        words = row.question
        return (place, words.model, words.cluster, f"{row.key} {words!r}")

    return tuple(sorted(rows, key=order))


def sweep_csv(rows: Sequence[Row]) -> str:
    """The rows as CSV, empty where there is no value."""
    names = [field.name for field in fields(Line)]
    lines = (encode(line_of(row)) for row in rows)
    return csv_text(names, ([line.get(name) for name in names] for line in lines))


def sweep_json(rows: Sequence[Row], by: str) -> str:
    """The rows as JSON; every key is there, null where there is no value."""
    names = [field.name for field in fields(Line)]
    lines = [dict.fromkeys(names) | encode(line_of(row)) for row in rows]
    return to_json({"schema": SWEEP_SCHEMA, "sorted_by": by, "rows": lines})


def _title(answer: Answer | None) -> str:
    if isinstance(answer, LayoutFile):
        return layout_title(answer.chosen.run) if answer.chosen is not None else ""
    return plan_title(answer.plan) if answer is not None and answer.plan is not None else ""


def _cost(usd: float | None, counted_in: str) -> str:
    if usd is None:
        return "-"
    return f"{format_usd(usd)} {counted_in}".strip()


def sweep_report(rows: Sequence[Row]) -> RenderableType:
    """The rows that have a plan as a table, then the others with their reasons."""
    counted = {row.question.workload.counted_in for row in rows} or {"tokens"}
    priced = len({row.question.price for row in rows}) > 1
    sized = len({row.question.workload for row in rows}) > 1
    shown = table(
        "model",
        "on",
        *([">batch x seq"] if sized else []),
        "plan",
        ">step",
        ">MFU",
        *([">price"] if priced else []),
        ">$/M" if len(counted) > 1 else usd_heading(*counted),
    )
    for row in rows:
        work, line = row.question.workload, line_of(row)
        if not has_plan(row.answer):
            continue
        usd = line.usd_per_million_tokens or line.usd_per_million_samples
        shown.add_row(
            row.question.model,
            row.question.cluster,
            *([f"{work.global_batch} x {work.sequence_length}"] if sized else []),
            _title(row.answer),
            format_time(line.step_time_s or 0.0),
            format_percent(line.mfu or 0.0),
            *([row.question.price] if priced else []),
            _cost(usd, work.counted_in if len(counted) > 1 else ""),
        )
    alike: dict[str, list[str]] = {}
    for row in rows:
        if not has_plan(row.answer):
            where = alike.setdefault(f"{row.question.model}: {row.reason}", [])
            if row.question.cluster not in where:
                where.append(row.question.cluster)
    words = [
        Text(f"No plan on {', '.join(where)} of {reason}")
        for reason, where in sorted(alike.items())
    ]
    return Group(
        *([shown, Text(""), *_price_lines(rows)] if shown.rows else []),
        *([Text("")] if words else []),
        *words,
    )


def _price_lines(rows: Sequence[Row]) -> list[RenderableType]:
    """What the dollars of the rows rest on, each price once, with the clusters that it is of."""
    found: dict[Sourced, dict[str, None]] = {}
    for row in rows:
        price = _price(row.answer)
        if price is not None:
            found.setdefault(price, {})[row.question.cluster] = None
    return [
        labelled("Price:  ", f"on {', '.join(where)}: {price_words(price)}")
        for price, where in found.items()
    ]


def _price(answer: Answer | None) -> Sourced | None:
    if isinstance(answer, LayoutFile):
        return answer.chosen.prediction.price_usd_per_hour if answer.chosen else None
    return answer.prediction.price_usd_per_hour if answer and answer.prediction else None
