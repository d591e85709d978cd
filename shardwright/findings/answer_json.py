"""The answer of `plan` as JSON: the same keys whatever was planned, beside each answer's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.layout.layout_answer import LAYOUT_SCHEMA, LayoutChoice, LayoutFile
from profiles.document import encode
from simulator.values.plan import PLAN_SCHEMA
from simulator.values.plan_file import PlanFile

# Always present in `plan --json`, null where there is no value.
ANSWER_KEYS = (
    "status",
    "bound",
    "gap",
    "step_time_s",
    "step_time_low_s",
    "step_time_high_s",
    "mfu",
    "peak_memory_bytes",
    "required_memory_bytes",
    "out_of_memory_probability",
    "usd_per_million_tokens",
    "usd_per_million_samples",
    "price_usd_per_hour",
    "search_time_s",
    "considered",
    "plan",
    "alternatives",
    "assumptions",
)

FRONT_SCHEMA = "shardwright/layout-front@1"
FRAMEWORKS_SCHEMA = "shardwright/layouts-by-framework@1"


def answer_json(answer: PlanFile | LayoutFile) -> dict[str, Any]:
    """An answer as plain values, with every promised key."""
    data = dict.fromkeys(ANSWER_KEYS) | encode(answer)
    if isinstance(answer, LayoutFile):
        if answer.chosen is not None:
            data |= choice_json(answer.chosen) | delivered_json(answer.chosen)
        data["alternatives"] = [encode(other) | choice_json(other) for other in answer.alternatives]
        return {"schema": LAYOUT_SCHEMA, **data}
    if answer.prediction is not None:
        data["price_usd_per_hour"] = encode(answer.prediction.price_usd_per_hour)
        data["required_memory_bytes"] = answer.prediction.required_memory_bytes
    data["considered"] = answer.cells_considered
    data["alternatives"] = encode(answer).get("alternatives", [])
    if answer.comparison is not None:
        compared = data.pop("comparison")
        data |= compared | {
            "considered": answer.comparison.keys,
            "alternatives": compared["compared"],
        }
        if answer.plan is None or answer.plan.pipelines is None:
            data["ordinary"] = encode(replace(answer, comparison=None))
    return {"schema": PLAN_SCHEMA, **data}


def choice_json(choice: LayoutChoice) -> dict[str, Any]:
    """A layout's figures by the keys that every answer has, and its run as `plan`."""
    found = choice.prediction
    usd = found.usd_per_million_tokens
    return {
        "step_time_s": found.step_time_s.value,
        "step_time_low_s": found.step_time_s.low,
        "step_time_high_s": found.step_time_s.high,
        "mfu": found.mfu,
        "peak_memory_bytes": found.peak_memory_bytes,
        "required_memory_bytes": found.required_memory_bytes,
        "out_of_memory_probability": found.out_of_memory_probability,
        "usd_per_million_tokens": usd.value if usd else None,
        "price_usd_per_hour": encode(found.price_usd_per_hour),
        "plan": encode(choice.run),
        "devices_used": choice.run.degrees.num_devices,
        "devices_idle": choice.idle_devices,
    }


def delivered_json(choice: LayoutChoice) -> dict[str, Any]:
    """What is kept of a long run, and energy and carbon of a million tokens that are kept; carbon
    where a region was said."""
    found = choice.prediction
    kwh, kg = found.kwh_per_million_tokens_delivered, found.kg_co2e_per_million_tokens_delivered
    return {
        "productive_time": found.reliability.goodput.value,
        "kwh_per_million_tokens_delivered": kwh.value if kwh else None,
        "kg_co2e_per_million_tokens_delivered": kg.value if kg else None,
        "region": found.region or None,
    }


def front_json(against: str, points: list[tuple[str, LayoutChoice]]) -> dict[str, Any]:
    """A Pareto front: the cluster of each point and its figures."""
    return {
        "schema": FRONT_SCHEMA,
        "against": against,
        "front": [{"cluster": name, **choice_json(choice)} for name, choice in points],
    }


def frameworks_json(
    answers: list[LayoutFile], refused: Mapping[str, str], why: Mapping[str, str]
) -> dict[str, Any]:
    """The best framework's answer, and under `frameworks` that of each, fastest first.

    refused  why a framework has no layout;  why  by framework, why it is not the fastest
    """
    best = answer_json(answers[0]) if answers else dict.fromkeys(ANSWER_KEYS)
    every = [answer_json(each) | {"why_not_first": why.get(each.stack, "")} for each in answers]
    return best | {
        "schema": FRAMEWORKS_SCHEMA,
        "frameworks": every,
        "refused": dict(refused),
    }
