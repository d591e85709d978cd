"""Ranks of a torch.distributed job. That torchrun starts a plan's is tested in test_launch.py."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path

import torch
import torch.distributed as dist

from tests.forked import forked

_TIMEOUT_S = 540.0
_GRACE_S = 10.0  # for the other ranks to write their logs, once one has failed

Job = Callable[[Path, Path], None]


def run_ranks(job: Job, source: Path, results: Path, *, processes: int) -> str:
    """Runs `job(source, results)` on so many ranks over gloo; what they wrote to stderr."""
    rendezvous = results.with_suffix(".rendezvous")
    rendezvous.unlink(missing_ok=True)
    logs = [results.with_suffix(f".rank{rank}") for rank in range(processes)]
    ranks = [
        forked(
            _rank,
            job,
            source,
            results,
            rendezvous,
            output=(log.with_suffix(f".out{rank}"), log),
            environment={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(processes),
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank, log in enumerate(logs)
    ]
    deadline = time.monotonic() + _TIMEOUT_S
    while running := [p for p in ranks if p.exitcode is None]:
        wait([p.sentinel for p in running], timeout=max(0.0, deadline - time.monotonic()))
        if any(p.exitcode for p in ranks):
            deadline = min(deadline, time.monotonic() + _GRACE_S)
        if time.monotonic() >= deadline:
            for process in running:
                process.kill()
                process.join()
    return "".join(log.read_text() for log in logs)


def _rank(job: Job, source: Path, results: Path, rendezvous: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=datetime.timedelta(seconds=90),
    )
    job(source, results)
