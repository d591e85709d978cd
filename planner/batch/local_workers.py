"""Worker processes on this machine with one thread each, which receive jobs as lines of text.

A process is a plain Python that imports one function and answers each line on its standard input
with a line on its standard output. Nothing is pickled, the caller's main module is not imported
again, and Ctrl-C reaches only the caller. A process ends when its caller ends. Jobs with the same
`kin` (questions that share features) go to one process: 54 searches of a sweep then took 8.4 s of
CPU instead of 9.9 s (two workers, 2026-11-24).
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import selectors
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO, TypeVar

from planner.batch.sweep import Job, Reply, Workers
from profiles.document import decode, encode
from profiles.errors import InputError


def take(waiting: list[Job], begun: set[str], last: str | None = None) -> Job:
    """Take the next job with the kin `last`, on which the process has worked. If there is none,
    take the first job of a kin that no process has begun; if there is none, one of the kin with the
    most jobs left. The order changes no answer, only how much shared work is repeated."""
    left = Counter(job.kin for job in waiting)
    kin = next((kin for kin in left if kin not in begun), left.most_common(1)[0][0])
    if last is not None and last in left:
        kin = last
    begun.add(kin)
    return waiting.pop(next(place for place, job in enumerate(waiting) if job.kin == kin))


Answer = TypeVar("Answer")


def answers_of(
    function: str, tasks: Sequence[object], answer: type[Answer], workers: int
) -> list[Answer]:
    """The answers of all tasks, in order, computed by `workers` processes.

    function  `package.module:name`, from a task's JSON to an answer's JSON, or to {"fault": reason}

    Raises InputError if a task or its process fails.
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


TRIES = 2  # a job whose process died is tried once more
_ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def local_workers(function: str, count: int) -> Workers:
    """Workers that are `count` processes of this machine.

    function  `package.module:name` of a function from a job's text to its answer's text
    """

    def work(jobs: Sequence[Job]) -> Iterator[Reply]:
        waiting, begun = list(jobs), set[str]()
        tries: Counter[str] = Counter()
        ready = selectors.DefaultSelector()
        processes = [_start(function) for _ in range(min(count, len(jobs)))]

        def give(process: subprocess.Popen[str], last: str | None = None) -> None:
            if waiting:
                job = take(waiting, begun, last)
                tries[job.key] += 1
                with suppress(BrokenPipeError):  # the process died; its output ends below
                    _send(process.stdin, job.text)
                ready.register(_stream(process.stdout), selectors.EVENT_READ, (process, job))

        try:
            for process in processes:
                give(process)
            while ready.get_map():
                for event, _ in ready.select():
                    process, job = event.data
                    ready.unregister(event.fileobj)
                    line = _stream(process.stdout).readline()
                    if line.endswith("\n"):
                        yield Reply(key=job.key, text=json.loads(line))
                        give(process, job.kin)
                        continue
                    status = process.wait()
                    processes.remove(process)
                    if tries[job.key] < TRIES:
                        waiting.insert(0, job)
                    else:
                        yield Reply(key=job.key, fault=_died(status))
                    if waiting:
                        processes.append(_start(function))
                        give(processes[-1])
        finally:
            ready.close()
            for process in processes:
                process.kill()
                process.communicate()

    return work


def _died(status: int) -> str:
    how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    memory = " (on Linux often for want of memory: use fewer --workers)" if status == -9 else ""
    return f"its process {how}{memory}, on {TRIES} attempts; ask it alone with `shardwright plan`"


def _start(function: str) -> subprocess.Popen[str]:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    environment |= dict.fromkeys(_ONE_THREAD, "1")
    return subprocess.Popen(
        [sys.executable, "-m", "planner.batch.local_workers", function],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=environment,
        start_new_session=True,
    )


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None  # both ends are pipes, see _start
    return stream


def _send(stream: IO[str] | None, text: str) -> None:
    _stream(stream).write(json.dumps(text) + "\n")
    _stream(stream).flush()


def named_function(name: str) -> object:
    """The object of `package.module:name`."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _serve(name: str) -> None:
    """Answer line by line until standard input ends; output of the function goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)  # the caller has ended, so nobody reads the answers

    threading.Thread(target=read, daemon=True).start()
    solve = named_function(name)
    assert callable(solve)
    while True:
        _send(answers, solve(json.loads(lines.get())))


if __name__ == "__main__":
    _serve(sys.argv[1])
