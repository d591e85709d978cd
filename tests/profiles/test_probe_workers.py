"""Workers that measure together: their answers, and what the user reads when one of them fails."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from profiles.errors import InputError, RunError
from profiles.hardware.probe.probe_workers import run_workers

# Jobs are found by the workers in this folder under the test module's own name.
JOBS = """
import os, signal, time
import torch, torch.distributed as dist

def answer(job, reporter):
    print("a model may print")
    for step in range(3):
        reporter(step + 1, 3, f"step {step}")
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total)
    return {"rank": dist.get_rank(), "total": float(total), "word": job["word"],
            "threads": torch.get_num_threads()}

def fail_on_one(job, reporter):
    if dist.get_rank() == 1:
        raise ValueError("the second worker cannot")
    dist.barrier()  # breaks when rank 1 is gone
    return {}

def fail_while_others_wait(job, reporter):
    if dist.get_rank() == 0:
        raise ValueError("the first worker cannot")
    time.sleep(600)

def die_on_one(job, reporter):
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    return {}
"""


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "some_jobs.py").write_text(JOBS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "some_jobs"


def test_answers_in_the_order_of_ranks(jobs: str) -> None:
    lines: list[Any] = []
    answers = run_workers(
        f"{jobs}:answer",
        {"word": "here"},
        num_processes=2,
        progress=lambda *line: lines.append(line),
    )
    assert [a["rank"] for a in answers] == [0, 1]
    assert all(a["total"] == 3.0 for a in answers)  # 1 + 2
    assert all(a["word"] == "here" and a["threads"] == 1 for a in answers)
    # only rank 0 reports, and what a model prints is not taken for progress
    assert lines == [(1, 3, "step 0"), (2, 3, "step 1"), (3, 3, "step 2")]


@pytest.mark.parametrize(
    ("job", "count", "words"),
    [
        pytest.param(
            "fail_on_one",
            2,
            "rank 1 of 2 failed while measuring: ValueError: the second worker cannot",
            marks=pytest.mark.slow,
        ),
        ("fail_while_others_wait", 2, "rank 0 of 2 failed .*: ValueError: the first worker cannot"),
        pytest.param(
            "die_on_one",
            2,
            "rank 1 of 2 failed while measuring: ended by signal 9",
            marks=pytest.mark.slow,
        ),
        ("missing", 1, "has no attribute 'missing'"),
    ],
)
def test_the_first_failure_is_told_and_nobody_is_left(
    jobs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: str, count: int, words: str
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    start = time.monotonic()
    with pytest.raises(RunError, match=words):
        run_workers(f"{jobs}:{job}", {}, num_processes=count)
    assert time.monotonic() - start < 120  # not the ten minutes that the others would sleep
    assert not list(tmp_path.glob("shardwright-probe-*"))
    assert _children() == []


def test_numbers_below_one() -> None:
    with pytest.raises(InputError, match="got 0 processes of 1 threads"):
        run_workers("some_jobs:answer", {}, num_processes=0)


def _children() -> list[str]:
    """Command lines of this process's living worker processes (Linux)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
            parent = int(text.rsplit(")", 1)[1].split()[1])
            line = (path.parent / "cmdline").read_bytes().decode()
        except (OSError, ValueError):
            continue
        if parent == os.getpid() and "probe_workers" in line:
            found.append(line)
    return found
