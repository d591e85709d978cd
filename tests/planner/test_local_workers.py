"""Processes of this machine as workers: what they answer, what they say when one dies."""

from __future__ import annotations

from pathlib import Path

from planner.batch.local_workers import answers_of, local_workers
from planner.batch.sweep import Job, Reply

HERE = "tests.planner.sweep_workers"


def replies(function: str, count: int, *texts: str) -> list[Reply]:
    jobs = [Job(key=str(number), text=text) for number, text in enumerate(texts)]
    found = list(local_workers(f"{HERE}:{function}", count)(jobs))
    return sorted(found, key=lambda reply: reply.key)


def test_every_job_has_one_reply_and_noise_is_none() -> None:
    found = replies("shout", 2, "a", "line\nbreak", "ü")
    assert [(r.key, r.text, r.fault) for r in found] == [
        ("0", "A", ""),
        ("1", "LINE\nBREAK", ""),
        ("2", "Ü", ""),
    ]


def test_answers_are_in_the_order_of_their_tasks() -> None:
    tasks = ["c", "a", "b"]
    assert answers_of(f"{HERE}:shout", tasks, str, 2) == [task.upper() for task in tasks]


def test_a_process_has_one_thread() -> None:
    assert [reply.text for reply in replies("threads", 1, "x")] == ["x 1"]


def test_a_job_whose_process_dies_is_tried_once_more(tmp_path: Path) -> None:
    assert [r.text for r in replies("die_once", 1, str(tmp_path / "tried"))] == ["second"]


def test_a_job_that_kills_two_processes_is_given_up(tmp_path: Path) -> None:
    attempts = tmp_path / "attempts"
    (reply,) = replies("die", 1, str(attempts))
    assert attempts.read_text() == ".."
    assert reply.text == ""
    assert reply.fault == (
        "its process was ended by signal 9 (on Linux often for want of memory: use fewer "
        "--workers), on 2 attempts; ask it alone with `shardwright plan`"
    )
