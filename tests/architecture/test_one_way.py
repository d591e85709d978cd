"""What exists once: who prices a plan, who searches blocks, and who says what MFU is."""

from __future__ import annotations

import pytest

from tests.architecture.sources import shipped

_REASON = "_why_block_by_block"
ROUTE = "shardwright/requests/plan_route.py"
CALLERS = {
    # A plan that is a layout is priced by the first, any other by the second.
    "plan_prediction": ("shardwright/requests/predicted_plan.py",),
    "simulator.traced.predict.predict": (
        "planner/costs/costs.py",
        "planner/heterogeneous/unequal_search.py",
        "executor/probe_pipeline.py",
        "shardwright/requests/layout_check.py",
        "shardwright/requests/predicted_plan.py",
        "shardwright/runs/module_row.py",
    ),
    # Whether a question is one of layouts: for single questions, sweeps, the page and predictions.
    "route_of": (
        "shardwright/requests/layout_answers.py",
        "shardwright/requests/predicted_plan.py",
        "shardwright/requests/python_plan.py",
        "shardwright/requests/questions.py",
    ),
    "planner.blocks.block_search.search": (
        "planner/heterogeneous/plan_mixed.py",
        "shardwright/requests/python_plan.py",
    ),
    "graph_model_flop": ("simulator/traced/predict.py",),
    # Every search of the planner is this one.
    "BestFirst": (
        "planner/heterogeneous/unequal_search.py",
        "planner/layout/layout_search.py",
        "planner/blocks/answer.py",
        "planner/sizing/sizing_search.py",
    ),
}
"""Who may import a function; one with a common name is given with its module."""
DEFINED_ONCE = {
    "route_of": ROUTE,
    "mfu": "simulator/mfu.py",
    "explore": "planner/best_first.py",
    "fullest_term": "planner/neighbors.py",
    "graph_model_flop": "simulator/mfu.py",
    "model_flop_per_token": "simulator/mfu.py",
    "run_of_plan": "planner/layout/plan_of_layout.py",
    "layout_prediction": "planner/layout/layout_choice.py",
}


@pytest.mark.parametrize("name", CALLERS)
def test_only_these_files_import_it(name: str) -> None:
    found = [path for path, source in shipped() if name in source.imported]
    assert sorted(found) == sorted(CALLERS[name])


@pytest.mark.parametrize("name", DEFINED_ONCE)
def test_it_is_defined_once(name: str) -> None:
    found = [path for path, source in shipped() for each in source.functions if each == name]
    assert found == [DEFINED_ONCE[name]]


def test_one_function_asks_why_a_question_is_of_blocks() -> None:
    calls = [path for path, source in shipped() for name in source.calls if name == _REASON]
    assert calls == [ROUTE]
