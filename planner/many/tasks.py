"""Values answered by processes of this machine: tasks in, answers in their order."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TypeVar

from planner.many.local_workers import local_workers
from planner.many.sweep import Job
from profiles.document import decode, encode
from profiles.errors import InputError

Answer = TypeVar("Answer")


def answers_of(
    function: str, tasks: Sequence[object], answer: type[Answer], workers: int
) -> list[Answer]:
    """Every task's answer in their order, on so many processes.

    function  `package.module:name`, from a task's JSON to an answer's JSON, or to {"fault": words}
    Raises InputError where a task or its process fails.
    """
    jobs = [
        Job(key=str(number), text=json.dumps(encode(task), allow_nan=False))
        for number, task in enumerate(tasks)
    ]
    found: dict[int, Answer] = {}
    for reply in local_workers(function, workers)(jobs):
        data = json.loads(reply.text) if reply.text else {"fault": reply.fault}
        if "fault" in data:
            raise InputError(data["fault"])
        found[int(reply.key)] = decode(answer, data, where="a worker's answer")
    return [found[number] for number in range(len(tasks))]
