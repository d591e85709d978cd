"""Sweeps: questions answered per CPU second, beside the searches alone.

A study asks every question at four prices, which are one search. Its searches are timed in the same
process twice: each with neither the features (known_features.py) nor the floors of memory
(memory_floor.py) of those before it, and one after the other, so that they share both. What else a
process keeps, such as what it reads from files, is there both times. The sweep reads the study,
poses, solves, keeps every answer and writes its tables. What neighbours save, and what the sweep
adds to its searches, are held.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from planner.batch.sweep import Job, Reply, Workers
from profiles.document import decode
from shardwright.requests.solve_task import LayoutTask
from shardwright.sweeps.study_file import read_study
from shardwright.sweeps.study_requests import study_requests
from shardwright.sweeps.study_run import run_study
from shardwright.sweeps.worker import answer_text
from simulator.training_run.step.known_features import features_of

STUDY = """
schema = "shardwright/questions@1"

[[grids]]
models = ["llama-3.1-8b", "llama-3.1-70b"]
clusters = ["4x8xh100-sxm", "8x8xh100-sxm"]
global_batches = [512, 1024]
sequence_lengths = [4096]
stacks = ["megatron-core", "nanotron", "torchtitan"]
prices = ["on-demand", "spot", "reserved-1y", 2.0]
"""
# CPU seconds of a sweep over those of its searches.
MOST_OVERHEAD = 1.25
# CPU seconds of searches that share no features and floors over those of the same in a row.
LEAST_SHARED = 1.3
REPEATS = 2


def run() -> int:
    """Prints the rates; 1 where a ratio does not hold."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "study.toml"
        for number in range(REPEATS):
            (Path(folder) / str(number)).mkdir()
        path.write_text(STUDY, encoding="utf-8")
        asked = study_requests(read_study(path))
        tasks = [decode(LayoutTask, json.loads(job.text), where="a job") for job in asked.jobs()]
        for task in tasks:  # what is read once per process is read
            task.solve()
        alone_s = min(_searches_s(tasks, share=False) for _ in range(REPEATS))
        searches_s = min(_searches_s(tasks, share=True) for _ in range(REPEATS))
        spent = []
        for number in range(REPEATS):
            _forget()
            begin = time.process_time()
            done = run_study(
                study_requests(read_study(path)),
                Path(folder) / str(number),
                workers=_here(),
                parquet=False,
            )
            spent.append(time.process_time() - begin)
        sweep_s = min(spent)
    questions = sum(map(len, done.rows.values()))
    ratio, shared = sweep_s / searches_s, alone_s / searches_s
    print(
        f"sweep: {questions} questions, {done.jobs} searches: {questions / sweep_s:.1f} questions "
        f"a CPU second, {done.jobs / sweep_s:.1f} searches; the searches alone "
        f"{len(tasks) / searches_s:.1f}\n"
        f"  a sweep takes {ratio:.2f} times its searches (must hold {MOST_OVERHEAD:.2f})\n"
        f"  alone each, the searches take {shared:.2f} times as long (must hold {LEAST_SHARED:.2f})"
    )
    return int(ratio > MOST_OVERHEAD or shared < LEAST_SHARED)


def _searches_s(tasks: Sequence[LayoutTask], *, share: bool) -> float:
    """CPU seconds of the searches; `share` lets each find what those before it priced."""
    _forget()
    begin = time.process_time()
    for task in tasks:
        if not share:
            _forget()
        task.solve()
    return time.process_time() - begin


def _forget() -> None:
    features_of.cache_clear()


def _here() -> Workers:
    """Workers that are this process, whose CPU time is counted."""

    def work(jobs: Sequence[Job]) -> Iterator[Reply]:
        for job in jobs:
            yield Reply(key=job.key, text=answer_text(job.text))

    return work
