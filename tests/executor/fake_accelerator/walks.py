"""Walks of many ranks, each in a process of its own: torch keeps meshes of groups that are gone."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import traceback
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from profiles.document import decode, encode
from profiles.model.loaders import ModelSpec
from simulator.values.plan import Plan
from tests.executor.fake_accelerator.peers import held_names
from tests.executor.fake_accelerator.walk import Walk, walk
from tests.executor.fake_accelerator.watch import Found, Message
from tests.forked import forked

Job = tuple[Plan, ModelSpec, Sequence[int]]


def walks_of(jobs: Sequence[Job], folder: Path, *, steps: int = 2) -> list[dict[int, Walk | str]]:
    """Of each plan the walks of these ranks, or the error with which one ended.

    Every rank is built. Ranks that are then alike have one walk, that of the first of them.
    """
    task = [
        {"plan": encode(plan), "spec": encode(spec), "ranks": list(ranks)}
        for plan, spec, ranks in jobs
    ]
    (folder / "jobs.json").write_text(json.dumps(task))
    process = forked(
        _run,
        folder,
        steps,
        output=(folder / "out", folder / "log"),
        environment={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    process.join()
    return [
        {rank: _read(folder, number, rank) for rank in ranks}
        for number, (_, _, ranks) in enumerate(jobs)
    ]


def _read(folder: Path, number: int, rank: int) -> Walk | str:
    path = folder / f"{number}.{rank}.json"
    data = json.loads(path.read_text()) if path.is_file() else "no result"
    if isinstance(data, int):
        return _read(folder, number, data)
    if isinstance(data, str):
        return data
    data["found"] = tuple(Found(**x) for x in data["found"])
    data["messages"] = tuple(Message(**{**x, "ranks": tuple(x["ranks"])}) for x in data["messages"])
    data["held"] = tuple(data["held"])
    return Walk(**data)


def _run(folder: Path, steps: int) -> None:
    # A child would wait for the other threads of its parent's (OpenMP's), which no fork copies. The
    # variable comes too late for a process that is itself forked.
    torch.set_num_threads(1)
    for number, job in enumerate(json.loads((folder / "jobs.json").read_text())):
        plan: Plan = decode(Plan, job["plan"], where="plan")
        spec: ModelSpec = decode(ModelSpec, job["spec"], where="spec")
        try:
            # What every rank would find out by itself: the flow between blocks, who holds what.
            names = held_names(plan, spec)
        except Exception:  # whatever it is, it is the answer
            for rank in job["ranks"]:
                _write(folder, number, rank, traceback.format_exc())
            continue
        gc.freeze()  # the collector of a child need not look at what it was forked with
        # Two at a time, of different stages where there are some: those are not alike.
        running = 0
        for rank in sorted(job["ranks"], key=plan.degrees.coordinates):
            if running == 2:
                os.wait()
                running -= 1
            if os.fork() == 0:
                _one(folder, number, plan, spec, rank, names, steps)
                os._exit(0)
            running += 1
        for _ in range(running):
            os.wait()


def _one(
    folder: Path,
    number: int,
    plan: Plan,
    spec: ModelSpec,
    rank: int,
    names: list[list[str]],
    steps: int,
) -> None:
    def claimed_by(layout: str) -> int:
        digest = hashlib.sha256(f"{plan.degrees.coordinates(rank).pp} {layout}".encode())
        claim = folder / f"{number}.{digest.hexdigest()}"
        with suppress(FileExistsError):
            claim.symlink_to(str(rank))
        return int(claim.readlink().name)

    try:
        found = walk(plan, spec, rank, names, steps=steps, claimed=lambda x: claimed_by(x) == rank)
        answer = claimed_by(found) if isinstance(found, str) else asdict(found)
    except BaseException:  # whatever it is, it is the answer
        answer = traceback.format_exc()
    _write(folder, number, rank, answer)


def _write(folder: Path, number: int, rank: int, answer: Any) -> None:
    (folder / f"{number}.{rank}.json").write_text(json.dumps(answer))
