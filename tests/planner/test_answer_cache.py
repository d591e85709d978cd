"""Answers that were found before: which questions are one, and what is never kept."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from planner.axes import Axes
from planner.batch import answer_cache
from planner.batch.answer_cache import AnswerCache, answer_key, code_and_data_version
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.model.loaders import resolve_model
from shardwright.requests.cached_answer import answered, how_it_came_about
from shardwright.requests.solve_task import Task, key_of, task_of
from simulator.values.plan_file import PlanFile
from simulator.values.workload import Workload
from tests.shardwright.hand_made import answer
from tests.shardwright.test_cli import shardwright

WORK = Workload(global_batch=8, sequence_length=128)


def task(**changes: object) -> Task:
    made = task_of(resolve_model("tiny-llama-demo"), get_cluster("2xh100-sxm"), WORK, Axes())
    return replace(made, **changes)  # type: ignore[arg-type] # fields of Task by name


def test_whatever_changes_the_answer_changes_the_key() -> None:
    h100 = get_cluster("2xh100-sxm")
    level = h100.levels[0]
    slower = replace(level.link, latency_s=replace(level.link.latency_s, value=1.0))
    others = [
        task(),
        task(spec=resolve_model("gpt2")),
        task(cluster=get_cluster("2xa100-sxm-80gb")),
        task(cluster=replace(h100, levels=(replace(level, link=slower),))),
        task(workload=replace(WORK, global_batch=16)),
        task(workload=replace(WORK, optimizer="sgd")),
        task(space=Axes(tp=(1,))),
        task(solver="ilp"),
        task(seed=1),
        task(tp_degrees=(1,)),
        task(version="other"),
    ]
    assert len({key_of(other) for other in others}) == len(others)
    assert key_of(task()) == key_of(task())


def test_the_version_is_that_of_files_and_not_of_their_times() -> None:
    before = code_and_data_version()
    os.utime(answer_cache.__file__)
    code_and_data_version.cache_clear()
    assert code_and_data_version() == before
    key = answer_key("m", get_cluster("h100-sxm"), WORK, Axes(), solver="dp", seed=0, version="v")
    assert len(key) == 16


def test_the_version_is_that_of_all_code_and_data() -> None:
    root = Path(answer_cache.__file__).parents[2]
    for package in answer_cache.PACKAGES:
        there = {path.suffix for path in (root / package).rglob("*") if path.is_file()}
        assert there - {".pyc", ".md", ".typed"} <= set(answer_cache.SUFFIXES)


def solved(seconds: float) -> PlanFile:
    return replace(answer(), search_time_s=seconds)


def test_a_known_answer_is_not_solved_again(tmp_path: Path) -> None:
    cache = AnswerCache(folder=tmp_path)
    times = iter((0.5, 0.7))
    found = [
        answered(task(), lambda _: solved(next(times)), price=None, cache=cache) for _ in range(2)
    ]
    assert [one.cached for one in found] == [False, True]
    assert found[0].answer == found[1].answer
    assert how_it_came_about(found[0]) == ""
    assert how_it_came_about(found[1]) == (
        "Cache:  the same question was solved before, in 500 ms; --no-cache solves it again"
    )
    again = answered(task(), lambda _: solved(next(times)), price=None, cache=None)
    assert again.answer.search_time_s == 0.7


def test_answers_that_a_limit_or_ctrl_c_ended_are_not_kept(tmp_path: Path) -> None:
    cache = AnswerCache(folder=tmp_path)

    def limited(seconds: float) -> None:
        answered(task(), lambda _: solved(seconds), price=None, cache=cache, time_limit_s=1.0)

    def interrupted(_: object) -> PlanFile:
        with suppress(KeyboardInterrupt):  # as the search does
            signal.raise_signal(signal.SIGINT)
        return replace(solved(0.5), status="feasible", gap=0.25)

    limited(1.5)
    assert list(tmp_path.iterdir()) == []
    found = answered(task(), interrupted, price=None, cache=cache)
    assert found.interrupted
    assert "by Ctrl-C; the best plan by then" in how_it_came_about(found)
    assert "25 %" in how_it_came_about(found)
    assert list(tmp_path.iterdir()) == []
    limited(0.5)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_damaged_answer_is_a_warning(tmp_path: Path) -> None:
    cache = AnswerCache(folder=tmp_path)
    cache.keep("k", answer())
    assert cache.find("k") == answer()
    (tmp_path / "k.json").write_text("{")
    with pytest.warns(UserWarning, match="solved again"):
        assert cache.find("k") is None


def test_the_oldest_answers_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answer_cache, "KEPT_ANSWERS", 2)
    cache = AnswerCache(folder=tmp_path)
    for age, key in enumerate(("a", "b", "c")):
        cache.keep(key, answer())
        os.utime(tmp_path / f"{key}.json", (1000 + age, 1000 + age))
    cache.keep("d", answer())
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["c", "d"]


def test_a_repeated_plan_is_the_same_file_and_says_so(tmp_path: Path) -> None:
    asked = ["plan", "tiny-llama-demo", "--on", "2xh100-sxm", "--global-batch", "8", "--seq", "128"]
    asked += ["--micro-batch", "2", "--recompute", "none", "--stack", "torch"]

    def once(name: str, *more: str) -> tuple[str, dict[str, object]]:
        done = shardwright(*asked, "-o", name, *more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        data = json.loads((tmp_path / name).read_text())
        assert data.pop("provenance")
        return done.stdout + done.stderr, data

    _, first = once("a.json")
    said, second = once("b.json")
    assert "Cache:  the same question was solved before" in said
    assert second == first
    dear, third = once("c.json", "--price", "99")
    assert "Cache:" in dear
    assert third["plan"] == first["plan"]
    assert third["usd_per_million_tokens"] != first["usd_per_million_tokens"]
    fresh, fourth = once("d.json", "--no-cache")
    assert "Cache:" not in fresh
    assert {**fourth, "search_time_s": 0.0} == {**first, "search_time_s": 0.0}
