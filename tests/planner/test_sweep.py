"""The loop over questions, and the dollars of an answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from planner.batch.answer_cache import AnswerCache, AnswerFolder
from planner.batch.sweep import (
    Job,
    Posed,
    Question,
    Reply,
    Verdict,
    sweep,
    with_price,
)
from profiles.document import to_line
from profiles.errors import InputError
from profiles.sourced import Sourced
from simulator.values.plan_file import Infeasibility, PlanFile, Relaxation
from simulator.values.workload import Workload
from tests.shardwright.hand_made import answer

WORK = Workload(global_batch=8, sequence_length=16, precision="fp32")
SOLVED = to_line(Verdict(answer=with_price(answer(), None)))


def dollars(value: float) -> Sourced:
    return Sourced(value=value, source="test", date="2026-11-21")


def question(model: str, price: str = "2.0") -> Question:
    return Question(model=model, cluster="2xtoy", workload=WORK, price=price)


def pose(asked: Question) -> Posed:
    if asked.model == "nobody":
        raise InputError("unknown model 'nobody'")
    job = Job(key=asked.model, text=asked.model)
    return Posed(
        question=asked,
        key=f"{asked.model}-{asked.price}",
        job=job,
        price=dollars(float(asked.price)),
    )


class Counting:
    """Workers that know one answer and count what they are asked."""

    def __init__(self, *, faults: dict[str, str] | None = None, text: str = SOLVED) -> None:
        self.asked: list[str] = []
        self.faults = faults or {}
        self.text = text

    def __call__(self, jobs: Sequence[Job]) -> Iterator[Reply]:
        for job in reversed(jobs):
            self.asked.append(job.key)
            fault = self.faults.get(job.key, "")
            yield Reply(key=job.key, text="" if fault else self.text, fault=fault)


def test_questions_that_differ_by_price_are_solved_once(tmp_path: Path) -> None:
    workers = Counting()
    questions = [question("a"), question("a", "4.0"), question("b")]
    rows = list(sweep(questions, pose=pose, workers=workers, shelf=AnswerFolder(folder=tmp_path)))
    assert sorted(workers.asked) == ["a", "b"]
    usd = {
        (r.question.model, r.question.price): r.answer.usd_per_million_tokens
        for r in rows
        if r.answer is not None
    }
    # 2 devices x $2/h / 3600 s/h over 64 tokens/s = $17.36 per million tokens; twice at $4.
    assert usd["a", "2.0"] == pytest.approx(2 * 2.0 / 3600 / 64 * 1e6)
    assert usd["a", "4.0"] == pytest.approx(2 * 4.0 / 3600 / 64 * 1e6)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a-2.0.json",
        "a-4.0.json",
        "b-2.0.json",
    ]


def test_a_fault_is_a_row_and_ends_nothing(tmp_path: Path) -> None:
    shelf = AnswerFolder(folder=tmp_path)
    workers = Counting(faults={"b": "its process died"})
    questions = [question("nobody"), question("b"), question("a")]
    rows = {r.question.model: r for r in sweep(questions, pose=pose, workers=workers, shelf=shelf)}
    assert rows["nobody"].reason == "unknown model 'nobody'"
    assert rows["b"].reason == "its process died"
    assert rows["a"].reason == ""
    assert [path.name for path in tmp_path.iterdir()] == ["a-2.0.json"]


def test_what_is_answered_is_not_asked_again_and_what_failed_is(tmp_path: Path) -> None:
    shelf = AnswerFolder(folder=tmp_path)
    questions = [question("a"), question("b")]
    first = Counting(faults={"b": "its process died"})
    list(sweep(questions, pose=pose, workers=first, shelf=shelf))
    second = Counting()
    rows = {r.question.model: r for r in sweep(questions, pose=pose, workers=second, shelf=shelf)}
    assert second.asked == ["b"]
    assert rows["a"].reused
    assert not rows["b"].reused


def test_a_damaged_answer_is_solved_again(tmp_path: Path) -> None:
    shelf = AnswerFolder(folder=tmp_path)
    list(sweep([question("a")], pose=pose, workers=Counting(), shelf=shelf))
    whole = (tmp_path / "a-2.0.json").read_bytes()
    (tmp_path / "a-2.0.json").write_bytes(whole[:100])
    workers = Counting()
    with pytest.warns(UserWarning, match="solved again"):
        list(sweep([question("a")], pose=pose, workers=workers, shelf=shelf))
    assert workers.asked == ["a"]
    assert (tmp_path / "a-2.0.json").read_bytes() == whole


def test_a_wider_sweep_into_another_folder_asks_the_cache_first(tmp_path: Path) -> None:
    cache = AnswerCache(folder=tmp_path / "cache")
    one = AnswerFolder(folder=tmp_path / "one", cache=cache)
    two = AnswerFolder(folder=tmp_path / "two", cache=cache)
    list(sweep([question("a")], pose=pose, workers=Counting(), shelf=one))
    workers = Counting()
    wider = [question("a"), question("a", "3.0"), question("c")]
    list(sweep(wider, pose=pose, workers=workers, shelf=two))
    assert workers.asked == ["c"]
    assert (tmp_path / "one" / "a-2.0.json").read_bytes() == (
        tmp_path / "two" / "a-2.0.json"
    ).read_bytes()


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


def test_an_infeasible_question_is_a_row_with_what_would_fit(tmp_path: Path) -> None:
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
    workers = Counting(text=to_line(Verdict(answer=nothing)))
    shelf = AnswerFolder(folder=tmp_path)
    for reused in (False, True):
        (row,) = sweep([question("a")], pose=pose, workers=workers, shelf=shelf)
        assert row.reused is reused
        assert row.reason == (
            "does not fit: activations of stage 1 of tp1 pp2 dp1; would fit: --on 4xtoy"
        )
    assert workers.asked == ["a"]
