"""Run a sweep in its folder, for `sweep` and for lists of `plan`."""

from __future__ import annotations

import shlex
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from planner.batch.folder_lock import folder_held
from planner.batch.local_workers import local_workers
from planner.batch.ray_workers import ray_workers
from planner.batch.sweep import Workers
from profiles.document import need_writable
from profiles.errors import InputError
from profiles.units import format_time
from shardwright import __version__
from shardwright.console.output import Bar
from shardwright.sweeps.study_requests import StudyRequests
from shardwright.sweeps.study_run import STORE, StudyRun, run_study
from shardwright.sweeps.worker import WORKER


def need_folder(folder: Path | None) -> Path:
    """The folder of -o; raises InputError if it is not given or cannot hold the results."""
    if folder is None:
        raise InputError("a sweep writes a folder: name it with -o FOLDER/")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"-o {folder} is a file; a sweep writes a folder: name another")
    need_writable(folder / STORE)
    return folder


def workers_of(workers: int | None, ray: str | None, *, usual: int) -> Workers:
    """The workers of --workers or --ray; raises InputError if both are given.

    usual  processes of this machine if neither is given
    """
    if ray is not None:
        if workers is not None:
            raise InputError("--workers is for this machine and --ray for a cluster; give one")
        return ray_workers(WORKER, ray)
    return local_workers(WORKER, workers or usual)


def sweep_in_folder(
    requests: StudyRequests,
    folder: Path,
    workers: Workers,
    *,
    quiet: bool,
    parquet: bool,
    plans: int,
    sort: str,
) -> StudyRun:
    """Runs the sweep with a progress bar; the arguments are those of `run_study`.

    Raises InputError if another sweep works in the folder.
    """
    with (
        folder_held(folder, shlex.join(["shardwright", *sys.argv[1:]])),
        Bar("answers", quiet=quiet) as update,
    ):
        return run_study(
            requests,
            folder,
            workers=workers,
            progress=_progress(update),
            parquet=parquet,
            plans=plans,
            sort=sort,
            version=__version__,
        )


def _progress(update: Callable[..., None]) -> Callable[[int, int], None]:
    """Shows the number of answers, their rate and the remaining time."""
    begun: list[int] = []
    pace = Pace(time.monotonic)

    def progress(done: int, jobs: int) -> None:
        if not begun:
            begun.append(done)
        update(done, jobs, pace.words(done - begun[0], jobs - done))

    return progress


# The rate is that of the last seconds: questions differ, and the first ones wait for processes to
# start.
_WINDOW_S = 60.0


class Pace:
    """Rate of a long job, and the remaining time at that rate."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: deque[tuple[float, int]] = deque([(clock(), 0)])

    def words(self, done: int, left: int) -> str:
        """`16.2 a second, about 8.4 min left`; "" before there is a rate.

        done  so far in this run
        left  still to do
        """
        now = self._clock()
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] > _WINDOW_S:
            self._seen.popleft()
        begin, before = self._seen[0]
        if done == before or now <= begin:
            return ""
        rate = (done - before) / (now - begin)
        return f"{rate:.3g} a second, about {format_time(left / rate)} left"
