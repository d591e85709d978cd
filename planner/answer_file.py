"""Answer files: a plan of our own executor or a framework's layout, told apart by their schema."""

from __future__ import annotations

from pathlib import Path

from planner.layout.layout_answer import LAYOUT_SCHEMA, LayoutFile
from planner.sweep import Answer
from profiles.document import read_document, read_mapping
from simulator.plan import PLAN_SCHEMA
from simulator.plan_file import PlanFile


def schema_of(answer: Answer) -> str:
    """The schema that a file of this answer carries."""
    return LAYOUT_SCHEMA if isinstance(answer, LayoutFile) else PLAN_SCHEMA


def read_answer(path: Path) -> Answer:
    """The answer in a file; raises DocumentError."""
    if read_mapping(path).get("schema") == LAYOUT_SCHEMA:
        return read_document(path, LayoutFile, schema=LAYOUT_SCHEMA)
    return read_document(path, PlanFile, schema=PLAN_SCHEMA)
