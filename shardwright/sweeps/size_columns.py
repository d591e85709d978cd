"""`SIZE_TABLE`: the columns of a sweep's table of sized runs, and a question's row in it."""

from __future__ import annotations

import math
from typing import Any

from planner.sizing.run_outlook import SizeAnswer
from planner.sizing.size_question import SizeQuestion
from shardwright.analysis.size_json import size_json
from shardwright.reports.brief.columns import Column
from shardwright.reports.brief.size_table import SIZE_COLUMNS
from shardwright.requests.sizing.size_flags import SizeFlags

_ASKED = (
    Column(name="question", unit="", meaning="its number in the study, from 1"),
    Column(name="model", unit="", meaning="the model as it was named"),
    Column(name="on", unit="", meaning="types of devices that could be rented"),
    Column(name="stacks", unit="", meaning="requested frameworks; compared: none was named"),
    Column(name="sequence_length", unit="tokens", meaning="per sequence"),
    Column(name="precision", unit="", meaning="of the matmuls"),
    Column(name="deadline_days", unit="days", meaning="as asked; empty for none"),
    Column(name="budget_usd", unit="US dollars", meaning="as asked; empty for none"),
    Column(name="price_asked", unit="", meaning="a kind of price, or US dollars per device-hour"),
    Column(name="minimised", unit="", meaning="cost, time, devices, energy; tokens: the most"),
    Column(name="status", unit="", meaning="optimal, feasible, infeasible or failed"),
    Column(name="reason", unit="", meaning="why there is no run; empty where there is one"),
    Column(
        name="gap", unit="fraction", meaning="that the goal may be above the best there is (proof)"
    ),
    Column(name="binds", unit="", meaning="the limit that the run meets"),
    Column(name="flop", unit="FLOP", meaning="of the whole run"),
)
_REPLACED = ("row", "model", "why_not_first")
SIZE_TABLE = (*_ASKED, *(column for column in SIZE_COLUMNS if column.name not in _REPLACED))
SIZE_INTEGERS = (
    *("question", "sequence_length", "nodes", "devices", "global_batch", "spare_nodes"),
)


def size_figures(
    number: int,
    flags: SizeFlags,
    question: SizeQuestion | None,
    answer: SizeAnswer | None,
    reason: str,
) -> dict[str, Any]:
    """The row of a question as column -> value, None for missing values.

    question  None if its flags are invalid;  reason  why there is no answer
    """
    found: dict[str, Any] = {}
    if question is not None and answer is not None:
        found = size_json(question, answer)
        if answer.best is None:
            reason = _why_not(answer)
    return {
        **found,
        "question": number,
        "model": flags.options.model,
        "on": ",".join(map(str, flags.on)),
        "stacks": flags.options.stack or "compared",
        "sequence_length": flags.options.seq if question is None else question.seq_len,
        "precision": flags.options.precision if question is None else question.precision,
        "deadline_days": flags.deadline_s / 86400.0 if flags.deadline_s else None,
        "budget_usd": flags.budget_usd,
        "price_asked": flags.options.price,
        "minimised": flags.minimise if question is None else question.minimise,
        "status": "failed" if answer is None else answer.status,
        "reason": reason,
    }


def _why_not(answer: SizeAnswer) -> str:
    said = answer.binds or "; ".join(f"{name}: {why}" for name, why in answer.refused)
    fits = [each for each in answer.relaxations if math.isfinite(each.days)]
    return f"{said}; would do: {fits[0].flag}" if fits else said
