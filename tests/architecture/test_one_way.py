"""What exists once: who prices a plan, who searches blocks, and who says what MFU is."""

from __future__ import annotations

import ast
import functools
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("profiles", "simulator", "planner", "executor", "shardwright")
WAYS = "shardwright/requests/executor_layouts.py"
CALLERS = {
    # A plan that is a layout is priced by the first, any other by the second.
    "plan_prediction": ("shardwright/requests/predicted_plan.py",),
    "simulator.traced.predict.predict": (
        "planner/costs/costs.py",
        "planner/heterogeneous/unlike_search.py",
        "executor/probe_pipeline.py",
        "shardwright/requests/predicted_plan.py",
        "shardwright/runs/module_row.py",
    ),
    # Whether a question is one of layouts: for single questions, sweeps, the page and predictions.
    "way_of": (
        "shardwright/requests/layout_answers.py",
        "shardwright/requests/predicted_plan.py",
        "shardwright/requests/python_plan.py",
        "shardwright/requests/questions.py",
    ),
    "planner.search.search.search": (
        "planner/heterogeneous/plan_mixed.py",
        "shardwright/requests/python_plan.py",
    ),
    "graph_model_flop": ("simulator/traced/predict.py",),
    # Every search of the planner is this one.
    "BestFirst": (
        "planner/heterogeneous/unlike_search.py",
        "planner/layout/layout_search.py",
        "planner/search/answer.py",
        "planner/sizing/sizing_search.py",
    ),
}
"""Who may import a function; one with a common name is given with its module."""
DEFINED_ONCE = {
    "way_of": WAYS,
    "mfu": "simulator/mfu.py",
    "explore": "planner/best_first.py",
    "fullest_term": "planner/neighbors.py",
    "graph_model_flop": "simulator/mfu.py",
    "model_flop_per_token": "simulator/mfu.py",
    "run_of_plan": "planner/layout/executable.py",
    "layout_prediction": "planner/layout/layout_choice.py",
}


@dataclass(frozen=True, slots=True)
class Found:
    """Files by what they import (`module.name`), by what they define, and by what they call."""

    imports: dict[str, list[str]]
    functions: dict[str, list[str]]
    calls: dict[str, list[str]]


@functools.cache
def found() -> Found:
    made = Found(defaultdict(list), defaultdict(list), defaultdict(list))
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            where = path.relative_to(ROOT).as_posix()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom):
                    for alias in node.names:
                        for name in (alias.name, f"{node.module}.{alias.name}"):
                            made.imports[name].append(where)
                elif isinstance(node, ast.FunctionDef):
                    made.functions[node.name].append(where)
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    made.calls[node.func.id].append(where)
    return made


@pytest.mark.parametrize("name", CALLERS)
def test_only_these_files_import_it(name: str) -> None:
    assert tuple(dict.fromkeys(found().imports[name])) == CALLERS[name]


@pytest.mark.parametrize("name", DEFINED_ONCE)
def test_it_is_defined_once(name: str) -> None:
    assert found().functions[name] == [DEFINED_ONCE[name]]


def test_one_function_asks_why_a_question_is_of_blocks() -> None:
    assert found().calls["_why_block_by_block"] == [WAYS]
