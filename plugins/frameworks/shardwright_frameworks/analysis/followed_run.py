"""`followed_run`: a run beside its prediction while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from shardwright.asking.planned_step import PlannedStep
from shardwright_frameworks.analysis.log_comparison import FEWEST_STEPS, LogComparison, compare_log
from shardwright_frameworks.logs.followed_log import FollowedLog


def followed_run(
    followed: FollowedLog,
    planned: PlannedStep,
    interval_s: float,
    *,
    failed: Callable[[], None] | None = None,
) -> Iterator[LogComparison]:
    """A comparison of the last steps whenever the log has new ones and FEWEST_STEPS of them are
    steady, until the log says that the run has finished. One that failed may start again in it.

    interval_s  between two looks at the log, which may be missing at first
    failed      called whenever the log says anew that the run has failed
    """
    seen, before = (0, 0), "open"
    while True:
        if followed.look():
            found = followed.log()
            # A start from a checkpoint does steps once more.
            last = (len(found.attempts), found.attempts[-1].last_step) if found.attempts else seen
            if last != seen and found.steady_lines >= FEWEST_STEPS:
                seen = last
                yield compare_log(planned, found, recent=True)
            if found.ended == "finished":
                return
            if failed is not None and found.ended == "failed" and before != "failed":
                failed()
            before = found.ended
        time.sleep(interval_s)
