"""Sweeps: questions answered per CPU second, beside the searches alone.

A study asks every question at four prices, which are one search. The searches alone are timed in
the same process; the sweep reads the study, poses, solves, keeps every answer and writes its
tables. What it adds to its searches is held.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from planner.many.sweep import Job, Reply, Workers
from profiles.document import decode
from shardwright.asking.layout_task import LayoutTask, solve_layout_task
from shardwright.sweeps.asked_study import asked_study
from shardwright.sweeps.study_file import read_study
from shardwright.sweeps.study_run import run_study
from shardwright.sweeps.worker import answer_text

STUDY = """
schema = "shardwright/questions@1"

[[grids]]
models = ["llama-3.1-8b", "llama-3.1-70b"]
clusters = ["4x8xh100-sxm", "16x8xh200"]
global_batches = [512]
sequence_lengths = [4096]
stacks = ["megatron-core", "nanotron", "torch-fsdp"]
prices = ["on-demand", "spot", "reserved-1y", 2.0]
"""
# CPU seconds of a sweep over those of its searches.
MOST_OVERHEAD = 1.25


def run() -> int:
    """Prints the rates; 1 where a sweep adds more than a quarter to its searches."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.toml"
        path.write_text(STUDY, encoding="utf-8")
        asked = asked_study(read_study(path))
        tasks = [decode(LayoutTask, json.loads(job.text), where="a job") for job in asked.jobs()]
        for task in tasks:  # what is read once per process is read
            solve_layout_task(task)
        begin = time.process_time()
        for task in tasks:
            solve_layout_task(task)
        searches_s = time.process_time() - begin
        begin = time.process_time()
        done = run_study(
            asked_study(read_study(path)),
            Path(folder),
            workers=_here(),
            clock=time.monotonic,
            parquet=False,
        )
        sweep_s = time.process_time() - begin
    questions = sum(map(len, done.rows.values()))
    ratio = sweep_s / searches_s
    print(
        f"sweep: {questions} questions, {done.jobs} searches: {questions / sweep_s:.1f} questions "
        f"a CPU second, {done.jobs / sweep_s:.1f} searches; the searches alone "
        f"{len(tasks) / searches_s:.1f}\n"
        f"  a sweep takes {ratio:.2f} times its searches (must hold {MOST_OVERHEAD:.2f})"
    )
    return int(ratio > MOST_OVERHEAD)


def _here() -> Workers:
    """Workers that are this process, whose CPU time is counted."""

    def work(jobs: Sequence[Job]) -> Iterator[Reply]:
        for job in jobs:
            yield Reply(key=job.key, text=answer_text(job.text))

    return work
