"""Answer files: a plan of our own executor or a framework's layout, told apart by their schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planner.layout.layout_answer import LAYOUT_SCHEMA, LayoutFile, layout_decision
from planner.many.sweep import Answer
from profiles.document import decode, read_document, read_mapping
from profiles.errors import DocumentError
from simulator.values.decision import plan_decision
from simulator.values.plan import PLAN_SCHEMA
from simulator.values.plan_file import PlanFile


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
        return read_layout(path)
    return read_document(path, PlanFile, schema=PLAN_SCHEMA)


def read_layout(path: Path) -> LayoutFile:
    """The layout in a file, of this release or an earlier one; raises DocumentError."""
    data = read_mapping(path)
    tag = data.pop("schema", None)
    data.pop("provenance", None)
    if tag != LAYOUT_SCHEMA:
        raise DocumentError(
            f"{path}: schema {tag!r} is not supported, this release reads {LAYOUT_SCHEMA}; plan "
            "again with this release"
        )
    found: LayoutFile = decode(LayoutFile, _migrated(data), where=str(path))
    return found


# Keys of runs that earlier releases wrote and that say nothing now: since 2026-11-22 a framework's
# memory stands in its own file.
_GONE = ("memory_stack",)


def _migrated(data: dict[str, Any]) -> dict[str, Any]:
    choices = [data.get("chosen"), *(data.get("alternatives") or ())]
    for choice in choices:
        run = choice.get("run") if isinstance(choice, dict) else None
        for key in _GONE:
            if isinstance(run, dict):
                run.pop(key, None)
    return data
