"""Ranks of a torch.distributed job. That torchrun starts a plan's is tested in test_launch.py."""

from __future__ import annotations

import datetime
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist

import executor.train
from executor.launch import first_failure
from profiles.document import read_document
from profiles.errors import RunError
from simulator.values.measurement import MEASUREMENT_SCHEMA, Measurement
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


def train(plan: Path, *options: str, processes: int, folder: Path) -> Measurement:
    """A plan run by the program of `executor.launch.run_plan`, without torchrun: its measurement.

    Raises RunError with the message of the rank that failed first.
    """
    ranks = started(plan, *[options] * processes, folder=folder)
    for rank in ranks:
        rank.join(_TIMEOUT_S)
    if any(rank.exitcode for rank in ranks):
        errors = sorted((folder / "errors").iterdir())
        raise RunError(first_failure([json.loads(path.read_text()) for path in errors], "", 1))
    return read_document(folder / "run.json", Measurement, schema=MEASUREMENT_SCHEMA)


def started(plan: Path, *options: Sequence[str], folder: Path) -> list[BaseProcess]:
    """The ranks of a run, each with its own options; their errors go to `folder`/errors."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "errors").mkdir()
    files = (str(plan), f"--output={folder / 'run.json'}", f"--errors={folder / 'errors'}")
    return [
        forked(
            _train,
            (*files, *own),
            output=(folder / f"out{rank}", folder / f"log{rank}"),
            environment={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(len(options)),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank, own in enumerate(options)
    ]


def _train(arguments: tuple[str, ...]) -> None:
    sys.argv = ["executor.train", *arguments]
    executor.train.main()


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
