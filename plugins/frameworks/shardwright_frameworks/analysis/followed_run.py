"""`followed_run`: comparison of a run with its prediction while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from shardwright.requests.planned_step import PlannedStep
from shardwright_frameworks.analysis.log_comparison import FEWEST_STEPS, LogComparison, compare_log
from shardwright_frameworks.logs.followed_log import FollowedLog


def followed_run(
    followed: FollowedLog,
    planned: PlannedStep,
    interval_s: float,
    *,
    failed: Callable[[], None] | None = None,
) -> Iterator[LogComparison]:
    """A comparison of the last steps for every new part of the log, until the run has finished.

    Needs at least FEWEST_STEPS steady steps. A failed run may restart in the same log.

    interval_s  seconds between reads of the log, which may not exist at first
    failed      called when the log reports a new failure
    """
    seen, before = (0, 0), "open"
    while True:
        if followed.look():
            log = followed.log()
            # A restart from a checkpoint repeats steps.
            last = (len(log.attempts), log.attempts[-1].last_step) if log.attempts else seen
            if last != seen and log.steady_lines >= FEWEST_STEPS:
                seen = last
                yield compare_log(planned, log, recent=True)
            if log.ended == "finished":
                return
            if failed is not None and log.ended == "failed" and before != "failed":
                failed()
            before = log.ended
        time.sleep(interval_s)
