"""Answer files: plans of our own executor and layouts of frameworks, read by their schema."""

from __future__ import annotations

import warnings
from pathlib import Path

from planner.batch.sweep import Answer
from planner.layout.layout_answer import LAYOUT_SCHEMA, LayoutFile, layout_decision
from profiles.document import read_document, read_mapping, schema_name
from profiles.errors import ShardwrightError
from simulator.values.plan import PLAN_SCHEMA
from simulator.values.plan_file import PlanFile, plan_decision


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
        return read_document(path, LayoutFile, schema=LAYOUT_SCHEMA)
    return read_document(path, PlanFile, schema=PLAN_SCHEMA)
