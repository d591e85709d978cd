"""Answers of a sweep's questions, and their dollars."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.batch.sweep import (
    Job,
    Posed,
    Question,
    Reply,
    Verdict,
    row_of,
    verdict_of,
    with_price,
)
from profiles.document import to_line
from profiles.sourced import Sourced
from simulator.values.plan_file import Infeasibility, PlanFile, Relaxation
from simulator.values.workload import Workload
from tests.shardwright.hand_made import answer

WORK = Workload(global_batch=8, sequence_length=16, precision="fp32")


def dollars(value: float) -> Sourced:
    return Sourced(value=value, source="test", date="2026-11-21")


def test_dollars_follow_the_price_and_nothing_else_changes() -> None:
    before = answer()
    dear = with_price(before, dollars(3.0))
    assert dear.usd_per_million_tokens == pytest.approx(2 * 3.0 / 3600 / 64 * 1e6)
    assert with_price(dear, None).usd_per_million_tokens is None
    assert dear.prediction is not None
    assert dear.prediction.price_usd_per_hour == dollars(3.0)
    assert before.prediction is not None
    assert (
        replace(
            dear.prediction,
            price_usd_per_hour=before.prediction.price_usd_per_hour,
            usd_per_million_tokens=before.prediction.usd_per_million_tokens,
        )
        == before.prediction
    )
    assert dear.plan == before.plan


def test_an_infeasible_question_is_a_row_with_what_would_fit() -> None:
    change = Relaxation(change="two devices more", flag="--on 4xtoy", step_time_s=1.0)
    why = Infeasibility(
        nearest="tp1 pp2 dp1",
        stage=1,
        term="activations",
        needed_bytes=2.0,
        capacity_bytes=1.0,
        relaxations=(change,),
    )
    nothing = PlanFile(
        status="infeasible", search_time_s=1.0, cells_considered=3, infeasibility=why
    )
    question = Question(model="a", cluster="2xtoy", workload=WORK)
    row = row_of(Posed(question=question, job=Job(key="a", text="a")), nothing)
    assert row.reason == (
        "does not fit: activations of stage 1 of tp1 pp2 dp1; would fit: --on 4xtoy"
    )


def test_a_worker_that_died_is_a_reason() -> None:
    assert verdict_of(Reply(key="a", fault="its process died")).reason == "its process died"
    solved = to_line(Verdict(answer=with_price(answer(), None)))
    assert verdict_of(Reply(key="a", text=solved)).reason == ""
