"""The answer of `plan` as JSON: common keys for every answer, plus the keys of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from planner.layout.layout_answer import LayoutChoice, LayoutFile
from profiles.document import encode
from simulator.training_run.step.step_time import PARTS
from simulator.values.plan import PLAN_SCHEMA
from simulator.values.plan_file import PlanFile
from simulator.values.prediction import Interval, Prediction

# Always present in `plan --json`, null without a value.
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

# Schemas of printed JSON; plan files have newer ones.
LAYOUT_SCHEMA = "shardwright/layout@2"
FRONT_SCHEMA = "shardwright/layout-front@1"
FRAMEWORKS_SCHEMA = "shardwright/layouts-by-framework@1"


def interval_names(name: str) -> tuple[str, str, str]:
    """The keys of a number and of the ends of its 90 % interval; a suffix of its unit stays at the
    end: `step_time_s`, `step_time_low_s`."""
    for unit in ("_s", "_bytes"):
        if name.endswith(unit) and not name.endswith("_per_s"):
            stem = name.removesuffix(unit)
            return name, f"{stem}_low{unit}", f"{stem}_high{unit}"
    return name, f"{name}_low", f"{name}_high"


def interval_json(name: str, number: Interval | None) -> dict[str, float | None]:
    """A number and its 90 % interval by these keys."""
    if number is None:
        return dict.fromkeys(interval_names(name))
    ends = (number.value, number.low, number.high)
    return dict(zip(interval_names(name), ends, strict=True))


def answer_json(answer: PlanFile | LayoutFile) -> dict[str, Any]:
    """An answer as plain values, with all of ANSWER_KEYS."""
    data = dict.fromkeys(ANSWER_KEYS) | encode(answer)
    if isinstance(answer, LayoutFile):
        if answer.chosen is not None:
            data |= choice_json(answer.chosen) | delivered_json(answer.chosen)
            data["chosen"] = _choice(answer.chosen)
        data["alternatives"] = [
            _choice(other) | choice_json(other) for other in answer.alternatives
        ]
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
    """A layout's numbers by the common keys, and its run as `plan`."""
    prediction = choice.prediction
    usd = prediction.usd_per_million_tokens
    return {
        **interval_json("step_time_s", prediction.step_time_s),
        "mfu": prediction.mfu.value,
        "peak_memory_bytes": prediction.peak.value,
        "required_memory_bytes": choice.required_memory_bytes,
        "out_of_memory_probability": choice.out_of_memory_probability,
        "usd_per_million_tokens": usd.value if usd else None,
        "price_usd_per_hour": encode(prediction.price_usd_per_hour),
        "plan": encode(choice.run),
        "devices_used": choice.run.degrees.num_devices,
        "devices_idle": choice.idle_devices,
    }


def _choice(choice: LayoutChoice) -> dict[str, Any]:
    """A layout with its prediction and the reason for its rank."""
    return {
        "run": encode(choice.run),
        "prediction": layout_prediction_json(choice),
        "why_not_first": choice.why_not_first,
        "idle_devices": choice.idle_devices,
    }


def layout_prediction_json(choice: LayoutChoice) -> dict[str, Any]:
    """The prediction of a layout, without missing values."""
    prediction = choice.prediction
    values = {
        "step_time_s": prediction.step_time_s,
        "parts": parts_by_key(prediction),
        "mfu": prediction.mfu.value,
        "mfu_range": prediction.mfu,
        "peak_memory_bytes": prediction.peak.value,
        "peak_memory_range": prediction.peak,
        "reserved_memory_bytes": max(rank.reserved_bytes or 0.0 for rank in prediction.ranks),
        "required_memory_bytes": choice.required_memory_bytes,
        "out_of_memory_probability": choice.out_of_memory_probability,
        "price_usd_per_hour": prediction.price_usd_per_hour,
        "usd_per_million_tokens": prediction.usd_per_million_tokens,
        "kwh_per_million_tokens": prediction.kwh_per_million_tokens,
        "tokens_per_s": prediction.tokens_per_s,
        "reliability": choice.reliability,
        "usd_per_million_tokens_delivered": choice.usd_delivered,
        "kwh_per_million_tokens_delivered": choice.kwh_delivered,
        "kg_co2e_per_million_tokens_delivered": choice.kg_co2e_delivered,
        "region": choice.region,
    }
    return {key: encode(value) for key, value in values.items() if value is not None}


def parts_by_key(prediction: Prediction) -> list[tuple[str, float]]:
    """Seconds of every part of a step: `compute_s`, `tensor_s`, ..."""
    return [(f"{part.name.lower()}_s", prediction.seconds.get(part, 0.0)) for part in PARTS]


def delivered_json(choice: LayoutChoice) -> dict[str, Any]:
    """Productive share of a long run, and energy and carbon per million productive tokens; carbon
    only if a region was given."""
    kwh, kg = choice.kwh_delivered, choice.kg_co2e_delivered
    return {
        "productive_time": choice.reliability.goodput.value,
        "kwh_per_million_tokens_delivered": kwh.value if kwh else None,
        "kg_co2e_per_million_tokens_delivered": kg.value if kg else None,
        "region": choice.region or None,
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
    """The best framework's answer, and the answers of all `frameworks`, fastest first.

    refused  framework without a layout -> reason
    why      framework that is not the fastest -> reason
    """
    best = answer_json(answers[0]) if answers else dict.fromkeys(ANSWER_KEYS)
    every = [answer_json(each) | {"why_not_first": why.get(each.stack, "")} for each in answers]
    return best | {
        "schema": FRAMEWORKS_SCHEMA,
        "frameworks": every,
        "refused": dict(refused),
    }
