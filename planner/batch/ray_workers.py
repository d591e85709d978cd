"""Workers on a Ray cluster: one task of one CPU per job.

Every node needs the same version of Shardwright, which the job contains; a node with another
version refuses the job. https://docs.ray.io/en/latest/ray-core/tasks.html (2026-11-21)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from planner.batch.local_workers import TRIES, named_function
from planner.batch.sweep import Job, Reply, Workers
from profiles.errors import InputError
from profiles.extras import need_package

_AHEAD = 2  # tasks per CPU submitted at once: no CPU idles, and Ctrl-C loses few tasks


def ray_workers(function: str, address: str) -> Workers:
    """Workers that are tasks on the Ray cluster at `address` (`auto`, `host:port`, `ray://...`).

    function  `package.module:name` of a function from a job's text to its answer's text

    Raises InputError if ray is not installed, and when work begins if no cluster answers.
    """
    ray = _ray()

    def work(jobs: Sequence[Job]) -> Iterator[Reply]:
        mine = not ray.is_initialized()
        if mine:
            _connect(ray, address)
        task = ray.remote(num_cpus=1, max_retries=0)(_solve)
        waiting = deque(jobs)
        tries: dict[str, int] = {}
        running: dict[Any, Job] = {}
        try:
            while waiting or running:
                room = _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
                while waiting and len(running) < room:
                    job = waiting.popleft()
                    tries[job.key] = tries.get(job.key, 0) + 1
                    running[task.remote(function, job.text)] = job
                done, _ = ray.wait(list(running), num_returns=1)
                job = running.pop(done[0])
                try:
                    yield Reply(key=job.key, text=ray.get(done[0]))
                except ray.exceptions.RayError as error:
                    if tries[job.key] < TRIES:
                        waiting.appendleft(job)
                    else:
                        yield Reply(key=job.key, fault=_failed(error))
        finally:
            for left in running:
                ray.cancel(left, force=True)
            if mine:
                ray.shutdown()

    return work


def _solve(function: str, text: str) -> str:
    solve = named_function(function)
    assert callable(solve)
    return str(solve(text))


def _failed(error: Exception) -> str:
    said = str(error).strip().splitlines() or [""]
    return f"its Ray task failed on {TRIES} attempts: {type(error).__name__}: {said[0]}"


def _ray() -> Any:
    need_package("ray", "--ray", otherwise="use --workers N on this machine")
    import ray

    return ray


def _connect(ray: Any, address: str) -> None:
    import logging

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        first = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise InputError(
            f"--ray {address}: no Ray cluster answers ({first}); `ray start --head` starts one, "
            "`ray status` shows the one that this machine belongs to"
        ) from error
