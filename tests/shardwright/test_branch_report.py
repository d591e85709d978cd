"""What the reports say of stages that are no run of a chain."""

import io

import numpy as np
import pytest
from rich.console import Console

from planner.axes import Axes
from planner.blocks.block_search import search
from shardwright.reports.brief.brief_terminal import brief_report
from shardwright.reports.brief.plan_answers import answer_brief
from shardwright.reports.brief.plan_page import report_html
from shardwright.reports.plan_summary import blocks_text, branch_rows
from simulator.traced.predict import predict
from simulator.training_run.framework.framework import load_stack
from simulator.values.workload import Workload
from tests.oracles.random_branches import BranchModel
from tests.simulator.hand_made import Traced, cluster, plan


def test_runs_of_numbered_blocks_are_joined():
    assert blocks_text(("", "a.0", "a.1", "a.2", "a.4", "b.head")) == "start, a.0-2, a.4, b.head"


@pytest.fixture(scope="module")
def answer():
    model = BranchModel(np.random.default_rng(4), "towers", 7, unlike=True)
    return search(
        model,
        cluster(1, 3),
        Workload(global_batch=6, sequence_length=1, precision="bf16"),
        space=Axes(pp=(3,), schedule=("1f1b",), micro_batch=(1,)),
        stack=load_stack(),
    )


def test_the_reports_name_what_stages_hold_and_receive(answer):
    rows = branch_rows(answer.plan, answer.prediction)
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert rows[0][2] == ""
    # A tower's tensor that no block of the middle stage takes goes through it.
    received = answer.prediction.stages[1].receives
    held = set(answer.plan.block_entries[: answer.plan.stages[1].last_block])
    passing = [t for t in received if not set(t.used_by) & held]
    assert ("(handed on)" in rows[1][2]) == bool(passing)
    out = io.StringIO()
    Console(file=out, width=100).print(brief_report(answer_brief(answer), short=True))
    assert "receives" in out.getvalue()
    assert rows[1][2].split(",")[0] in " ".join(out.getvalue().split())
    page = report_html(answer, None)
    assert ">receives</th>" in page
    assert rows[2][2] in page


def test_a_plain_chain_has_no_such_table():
    made = plan(pp=2)
    assert branch_rows(made, predict(made, Traced(), cluster())) == ()
