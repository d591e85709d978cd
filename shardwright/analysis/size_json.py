"""The answer of `size` as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.layout.layout_answer import layout_title
from planner.sizing.run_outlook import RunOutlook, SizeAnswer
from planner.sizing.size_question import SizeQuestion
from profiles.document import encode
from shardwright.analysis.answer_json import choice_json, interval_json
from shardwright.analysis.size_better import probability_better
from shardwright.requests.sizing.sized import PublishedComparison
from simulator.log_interval import is_tie
from simulator.training_compute import METHOD, THRESHOLDS

SIZE_SCHEMA = "shardwright/size@1"
# Always present, null without a value.
SIZE_KEYS = (
    *("status", "bound", "gap", "device", "nodes", "devices", "stack", "layout", "tokens", "steps"),
    *("global_batch", "step_time_s", "step_time_low_s", "step_time_high_s", "mfu"),
    *("days", "days_low", "days_high", "device_hours", "device_hours_low", "device_hours_high"),
    *("usd", "usd_low", "usd_high", "kwh", "kwh_low", "kwh_high"),
    *("tco2e", "tco2e_low", "tco2e_high", "price", "usd_per_device_hour"),
    *("probability_of_deadline", "probability_of_budget"),
    *("productive_time", "productive_time_low", "productive_time_high"),
    *("interruptions", "checkpoint_every_s", "spare_nodes", "lost"),
    *("flop", "flop_method", "thresholds", "binds", "plan", "alternatives", "front", "gains"),
    *("rent_usd", "spare_usd", "lost_usd", "lost_usd_low", "lost_usd_high"),
    *("storage_usd", "egress_usd", "storage_price", "published"),
    *("refused", "relaxations", "assumptions", "frameworks", "tie"),
)


def size_json(
    question: SizeQuestion, answer: SizeAnswer, published: PublishedComparison | None = None
) -> dict[str, Any]:
    """An answer as plain values, with all of SIZE_KEYS."""
    data: dict[str, Any] = dict.fromkeys(SIZE_KEYS)
    alternatives = _compared(answer, answer.others)
    data |= {
        "schema": SIZE_SCHEMA,
        "model": question.name,
        "minimised": answer.minimised,
        "status": answer.status,
        "bound": answer.bound,
        "gap": answer.gap,
        "deadline_days": question.deadline_s / 86400.0 if question.deadline_s else None,
        "budget_usd": question.budget_usd,
        "flop": answer.flop,
        "flop_method": METHOD,
        "thresholds": [
            encode(each) | {"exceeded": answer.flop > each.work_flop} for each in THRESHOLDS
        ],
        "binds": answer.binds,
        "alternatives": alternatives,
        "frameworks": _compared(answer, answer.frameworks),
        "tie": any(is_tie(other["probability_better"]) for other in alternatives),
        "front": encode(answer.front),
        "gains": encode(answer.gains),
        "refused": dict(answer.refused),
        "relaxations": encode(answer.relaxations),
        "considered": answer.considered,
        "search_time_s": answer.search_time_s,
        "assumptions": list(answer.assumptions),
        "published": None if published is None else encode(published) | {"error": published.error},
    }
    if answer.best is not None:
        data |= _outlook(answer.best)
        data["storage_price"] = question.storage.price.words if question.storage else None
    return data


def _compared(answer: SizeAnswer, others: Sequence[RunOutlook]) -> list[dict[str, Any]]:
    """Other runs, each with the probability that it is better than the chosen one."""
    best = answer.best
    return [
        _outlook(other)
        | {"probability_better": best and probability_better(answer.minimised, best, other)}
        for other in others
    ]


def _outlook(outlook: RunOutlook) -> dict[str, Any]:
    run, usd = outlook.run, outlook.usd
    price = run.choice.usd_per_hour
    return {
        "device": run.choice.device,
        "nodes": run.nodes,
        "devices": run.devices,
        "stack": run.stack,
        "layout": layout_title(run.layout.run),
        "tokens": run.tokens,
        "steps": run.steps,
        "global_batch": run.batch,
        **interval_json("step_time_s", outlook.plan.prediction.step_time_s),
        "mfu": outlook.plan.prediction.mfu.value,
        **interval_json("days", outlook.days),
        **interval_json("device_hours", outlook.device_hours),
        **interval_json("usd", usd),
        "rent_usd": outlook.rent_usd.value if outlook.rent_usd else None,
        "spare_usd": outlook.spare_usd.value if outlook.spare_usd else None,
        **interval_json("lost_usd", outlook.lost_usd),
        "storage_usd": outlook.storage_usd.value if outlook.storage_usd else None,
        "egress_usd": outlook.egress_usd.value if outlook.egress_usd else None,
        **interval_json("kwh", outlook.kwh),
        **interval_json("tco2e", outlook.tco2e),
        **interval_json("productive_time", outlook.productive_time),
        "price": run.choice.price_words or None,
        "usd_per_device_hour": price.value if price is not None else None,
        "interruptions": outlook.interruptions.value,
        "checkpoint_every_s": outlook.checkpoint_every_s,
        "spare_nodes": outlook.spare_nodes,
        "lost": dict(outlook.lost),
        "probability_of_deadline": outlook.probability_of_deadline,
        "probability_of_budget": outlook.probability_of_budget,
        "why_not_first": outlook.why_not,
        "plan": choice_json(outlook.plan),
    }
