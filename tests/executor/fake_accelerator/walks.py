"""Walks of many ranks, each in a process of its own: torch keeps meshes of groups that are gone."""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from itertools import zip_longest
from pathlib import Path
from typing import Any

from profiles.document import decode, encode
from profiles.model.loaders import ModelSpec
from simulator.values.plan import Plan
from tests.executor.fake_accelerator.peers import held_names
from tests.executor.fake_accelerator.walk import Walk, walk
from tests.executor.fake_accelerator.watch import Found, Message
from tests.forked import forked

Job = tuple[Plan, ModelSpec, Sequence[int]]


def walks_of(jobs: Sequence[Job], folder: Path, *, steps: int = 2) -> list[dict[int, Walk | str]]:
    """Of each plan the walks of these ranks, or the error with which one ended."""
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
    found = []
    for number, (_, _, ranks) in enumerate(jobs):
        each: dict[int, Walk | str] = {}
        for rank in ranks:
            path = folder / f"{number}.{rank}.json"
            text = path.read_text() if path.is_file() else '"no result"'
            data = json.loads(text)
            each[rank] = data if isinstance(data, str) else _walk(data)
        found.append(each)
    return found


def _walk(data: dict[str, Any]) -> Walk:
    data["found"] = tuple(Found(**x) for x in data["found"])
    data["messages"] = tuple(Message(**{**x, "ranks": tuple(x["ranks"])}) for x in data["messages"])
    return Walk(**data)


def _run(folder: Path, steps: int) -> None:
    for number, job in enumerate(json.loads((folder / "jobs.json").read_text())):
        plan: Plan = decode(Plan, job["plan"], where="plan")
        spec: ModelSpec = decode(ModelSpec, job["spec"], where="spec")
        try:
            # What every rank would find out by itself: the flow between blocks, who holds what.
            names = held_names(plan, spec)
        except Exception:  # whatever it is, it is the answer
            _write(folder, number, job["ranks"], traceback.format_exc())
            continue
        for first, second in zip_longest(job["ranks"][::2], job["ranks"][1::2]):
            children = []
            for rank in (first, second) if second is not None else (first,):
                child = os.fork()
                if child == 0:
                    _one(folder, number, plan, spec, rank, names, steps)
                    os._exit(0)
                children.append(child)
            for child in children:
                os.waitpid(child, 0)


def _one(
    folder: Path,
    number: int,
    plan: Plan,
    spec: ModelSpec,
    rank: int,
    names: list[list[str]],
    steps: int,
) -> None:
    try:
        found: Any = asdict(walk(plan, spec, rank, names, steps=steps))
    except BaseException:  # whatever it is, it is the answer
        found = traceback.format_exc()
    (folder / f"{number}.{rank}.json").write_text(json.dumps(found))


def _write(folder: Path, number: int, ranks: Sequence[int], text: str) -> None:
    for rank in ranks:
        (folder / f"{number}.{rank}.json").write_text(json.dumps(text))
