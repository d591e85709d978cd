"""`followed_run`: a run beside its prediction while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator

from interop.logs.followed_log import FollowedLog
from shardwright.asking.planned_step import PlannedStep
from shardwright.findings.log_comparison import FEWEST_STEPS, LogComparison, compare_log


def followed_run(
    followed: FollowedLog, planned: PlannedStep, interval_s: float
) -> Iterator[LogComparison]:
    """A comparison of the last steps whenever the log has new ones and FEWEST_STEPS of them are
    steady, until the log says that the run has finished or failed.

    interval_s  between two looks at the log, which may be missing at first
    """
    seen = 0
    while True:
        if followed.look():
            found = followed.told()
            if (found.steps or 0) > seen and found.steady_lines >= FEWEST_STEPS:
                seen = found.steps or 0
                yield compare_log(planned, found, recent=True)
            if found.ended != "open":
                return
        time.sleep(interval_s)
