"""`PLAN_TABLE`: the columns of a sweep's table of plans, and a question's row in it."""

from __future__ import annotations

import shlex
from typing import Any

from planner.batch.sweep import Question, Row
from planner.layout.layout_answer import LayoutFile
from planner.space import EXECUTOR
from shardwright.reports.brief.columns import Column
from shardwright.reports.brief.plan_table import PLAN_COLUMNS, layout_row, plan_rows
from simulator.values.plan_title import Titled

# Columns of `plan --csv` that are replaced by a sweep's own.
_REPLACED = ("row", "model", "cluster", "stack", "price", "why_not_first")
_ASKED = (
    Column(name="question", unit="", meaning="its number in the study, from 1"),
    Column(name="model", unit="", meaning="the model as it was named"),
    Column(name="cluster", unit="", meaning="the devices as they were named"),
    Column(name="stack", unit="", meaning="framework; torch is our own executor"),
    Column(name="global_batch", unit="samples", meaning="per step"),
    Column(name="sequence_length", unit="tokens", meaning="per sample"),
    Column(name="precision", unit="", meaning="of the matmuls: of the plan, else as asked"),
    Column(name="optimizer", unit="", meaning="as asked"),
    Column(name="price_asked", unit="", meaning="a kind of price, or US dollars per device-hour"),
    Column(name="pins", unit="", meaning="what is not free, as flags of plan"),
    Column(name="status", unit="", meaning="optimal, feasible, infeasible or failed"),
    Column(name="reason", unit="", meaning="why there is no plan; empty where there is one"),
    Column(
        name="gap", unit="fraction", meaning="that the step may be above the best there is (proof)"
    ),
)
_CHOSEN = (
    Column(name="tp", unit="", meaning="tensor-parallel degree"),
    Column(name="cp", unit="", meaning="context-parallel degree"),
    Column(name="ep", unit="", meaning="expert-parallel degree"),
    Column(name="pp", unit="", meaning="pipeline stages"),
    Column(name="dp", unit="", meaning="data-parallel replicas"),
    Column(name="vpp", unit="", meaning="stages per rank"),
    Column(name="micro_batch", unit="samples", meaning="of one replica at once"),
    Column(name="zero_stage", unit="", meaning="ZeRO stage"),
    Column(name="dp_replicate", unit="", meaning="groups of replicas with all states (HSDP)"),
    Column(name="schedule", unit="", meaning="of the pipeline"),
    Column(name="recompute", unit="", meaning="what is computed again in the backward"),
    Column(name="price", unit="", meaning="whose price, of which kind, of which dates"),
    Column(name="price_date", unit="", meaning="of the newest offer behind it"),
    Column(name="command", unit="", meaning="what writes the plan file of this row"),
)
PLAN_TABLE = (*_ASKED, *(c for c in PLAN_COLUMNS if c.name not in _REPLACED), *_CHOSEN)
PLAN_INTEGERS = (
    "question",
    "global_batch",
    "sequence_length",
    "devices",
    "devices_idle",
    *("tp", "cp", "ep", "pp", "dp", "dp_replicate", "vpp", "micro_batch", "zero_stage"),
)
# `--sort`: the column, and whether the largest comes first.
PLAN_SORTS = {
    "step": ("step_time_s", False),
    "cost": ("usd_per_million", False),
    "mfu": ("mfu", True),
    "tokens": ("rate", True),
    "memory": ("peak_memory_bytes", False),
}


def plan_figures(number: int, row: Row, flags: tuple[str, ...] = ()) -> dict[str, Any]:
    """The row of a question as column -> value; missing values are absent or None.

    flags  of the sweep that the row's command needs too: --prices FILE, --local FILE
    """
    question, answer = row.question, row.answer
    work, layouts = question.workload, question.layouts
    found: dict[str, Any] = {}
    chosen: Titled | None = None
    precision = work.precision if layouts is None else layouts.precision
    price = None
    if isinstance(answer, LayoutFile) and answer.chosen is not None:
        run = chosen = answer.chosen.run
        found = layout_row("", "", "", "", answer.chosen)
        found |= {"cp": run.degrees.cp, "ep": run.degrees.ep, "recompute": run.recompute}
        precision, price = run.precision, answer.chosen.prediction.price_usd_per_hour
    elif answer is not None and not isinstance(answer, LayoutFile) and answer.plan is not None:
        chosen, found = answer.plan, plan_rows(answer)[0]
        price = answer.prediction.price_usd_per_hour if answer.prediction else None
    if chosen is not None:
        found |= _degrees(chosen)
    return {
        **found,
        "question": number,
        "model": question.model,
        "cluster": question.cluster,
        "stack": EXECUTOR if layouts is None else layouts.stack,
        "global_batch": work.global_batch,
        "sequence_length": work.sequence_length,
        "precision": precision,
        "optimizer": work.optimizer,
        "price_asked": question.price,
        "pins": " ".join(question.pins()),
        "status": "failed" if answer is None else answer.status,
        "reason": row.reason,
        "gap": None if answer is None else answer.gap,
        "price": None if price is None else price.source,
        "price_date": None if price is None else price.date,
        "command": plan_command(question, flags),
    }


def _degrees(of: Titled) -> dict[str, object]:
    """The columns of a plan's or run's degrees, micro-batch, ZeRO stage and schedule."""
    degrees = of.degrees
    return {
        "pp": degrees.pp,
        "dp": degrees.dp,
        "dp_replicate": degrees.dp_replicate,
        "tp": degrees.tp,
        "vpp": degrees.vpp,
        "schedule": of.schedule,
        "micro_batch": of.micro_batch,
        "zero_stage": of.zero_stage,
    }


def plan_command(question: Question, more: tuple[str, ...] = ()) -> str:
    """The command line that writes the plan file of this question; `more` are further flags."""
    work, layouts = question.workload, question.layouts
    flags: dict[str, object] = {"--on": question.cluster, "--global-batch": work.global_batch}
    if work.counted_in == "tokens":
        flags["--seq"] = work.sequence_length
    if layouts is None:
        flags |= {"--precision": work.precision, "--optimizer": work.optimizer}
    elif not layouts.options.precisions:
        flags["--precision"] = layouts.precision
    if question.solver != "auto":
        flags["--solver"] = question.solver
    if question.seed:
        flags["--seed"] = question.seed
    flags["--price"] = question.price
    words = [str(word) for pair in flags.items() for word in pair]
    pins = [word for pin in question.pins() for word in pin.split(" ", 1)]
    asked = [question.model, *words, *pins, *more]
    return shlex.join(["shardwright", "plan", *asked, "-o", "plan.json"])
