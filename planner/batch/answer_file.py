"""Answer files: plans of our own executor and layouts of frameworks, read by their schema."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.batch.sweep import Answer
from planner.layout.layout_answer import LAYOUT_SCHEMA, LayoutChoice, LayoutFile, layout_decision
from profiles.document import Migration, read_document, read_mapping, schema_name
from profiles.errors import ShardwrightError
from simulator.memory.footprint import footprint
from simulator.training_run.explain.run_prediction import run_prediction
from simulator.values.plan import PLAN_SCHEMA
from simulator.values.plan_file import EARLIER_PLANS, PlanFile, plan_decision
from simulator.values.prediction import Part


def decision_of(answer: Answer) -> dict[str, str]:
    """The decisions of an answer, by their keys in the file; empty if nothing fits."""
    if isinstance(answer, LayoutFile):
        return layout_decision(answer.chosen.run) if answer.chosen is not None else {}
    return plan_decision(answer.plan) if answer.plan is not None else {}


def schema_of(answer: Answer) -> str:
    """The `schema` of the answer's file."""
    return LAYOUT_SCHEMA if isinstance(answer, LayoutFile) else PLAN_SCHEMA


def kept_answer(path: Path) -> Answer | None:
    """The answer in a file; None without a file, and with a warning for an unreadable one."""
    if not path.is_file():
        return None
    try:
        return _read_answer(path)
    except ShardwrightError as error:
        warnings.warn(f"solved again, the kept answer is unusable: {error}", stacklevel=3)
        return None


def _read_answer(path: Path) -> Answer:
    if schema_name(read_mapping(path).get("schema")) == schema_name(LAYOUT_SCHEMA):
        return read_layout(path)
    return read_document(path, PlanFile, schema=PLAN_SCHEMA, earlier=EARLIER_PLANS)


def read_layout(path: Path) -> LayoutFile:
    """The layout in a file of this or an earlier release. Raises DocumentError for other files."""
    earlier = read_mapping(path).get("schema") in _EARLIER
    found = read_document(path, LayoutFile, schema=LAYOUT_SCHEMA, earlier=_EARLIER)
    if not earlier:
        return found
    return replace(
        found,
        chosen=None if found.chosen is None else _with_memory(found.chosen),
        alternatives=tuple(_with_memory(other) for other in found.alternatives),
    )


# Keys of runs that earlier releases wrote and that are no longer used: since 2026-11-22 a
# framework's memory is in its own file.
_GONE = ("memory_stack",)
# Values in predictions of earlier versions that are computed again or follow from others.
_COUNTED = (
    *("parts", "mfu_range", "peak_memory_range", "reliability", "region"),
    *("reserved_memory_bytes", "required_memory_bytes", "out_of_memory_probability"),
    *("usd_per_million_tokens_delivered", "kwh_per_million_tokens_delivered"),
    "kg_co2e_per_million_tokens_delivered",
)


def _of_earlier(data: dict[str, Any]) -> dict[str, Any]:
    """Converts an older file: predictions had seconds under `compute_s`, `tensor_s`, ..., and the
    numbers of the long run. `_with_memory` adds the memory of their ranks."""
    for choice in (data.get("chosen"), *(data.get("alternatives") or ())):
        if not isinstance(choice, dict):
            continue
        run, made = choice.get("run"), choice.get("prediction")
        for key in _GONE:
            if isinstance(run, dict):
                run.pop(key, None)
        if not isinstance(made, dict):
            continue
        parts = {Part[key.removesuffix("_s").upper()]: time_s for key, time_s in made["parts"]}
        choice["reliability"], choice["region"] = made["reliability"], made.get("region", "")
        choice["prediction"] = {
            **{key: value for key, value in made.items() if key not in _COUNTED},
            "components": [{"name": part, "time_s": s} for part, s in parts.items() if s],
            "mfu": made["mfu_range"],
            "peak_memory_bytes": made["peak_memory_range"],
            "bubble_fraction": parts[Part.BUBBLE] / made["step_time_s"]["value"],
        }
    return data


_EARLIER: Mapping[str, Migration] = dict.fromkeys(
    ("shardwright/layout@1", "shardwright/layout@2"), _of_earlier
)


def _with_memory(choice: LayoutChoice) -> LayoutChoice:
    """The choice with the memory of its ranks, computed by this release."""
    run, made = choice.run, choice.prediction
    now = run_prediction(run, made.step_time_s, made.components, footprint(run))
    made = replace(made, peak_memory_bytes=now.peak_memory_bytes, ranks=now.ranks, fits=now.fits)
    return replace(choice, prediction=made)
