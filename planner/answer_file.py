"""Answer files: a plan of our own executor or a framework's layout, told apart by their schema."""

from __future__ import annotations

from pathlib import Path

from planner.layout.layout_answer import LAYOUT_SCHEMA, LayoutFile
from planner.sweep import Answer
from profiles.document import read_document, read_mapping
from simulator.decision import layout_decision, plan_decision
from simulator.plan import PLAN_SCHEMA
from simulator.plan_file import PlanFile


def decision_of(answer: Answer) -> dict[str, str]:
    """What the answer decides, by its place in the file; nothing where it is infeasible."""
    if isinstance(answer, LayoutFile):
        return layout_decision(answer.chosen.run) if answer.chosen is not None else {}
    return plan_decision(answer.plan) if answer.plan is not None else {}


def schema_of(answer: Answer) -> str:
    """The schema that a file of this answer carries."""
    return LAYOUT_SCHEMA if isinstance(answer, LayoutFile) else PLAN_SCHEMA


def read_answer(path: Path) -> Answer:
    """The answer in a file; raises DocumentError."""
    if read_mapping(path).get("schema") == LAYOUT_SCHEMA:
        return read_document(path, LayoutFile, schema=LAYOUT_SCHEMA)
    return read_document(path, PlanFile, schema=PLAN_SCHEMA)
