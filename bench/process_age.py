"""Age of this process: time limits count from its start, not from the end of its imports."""

from __future__ import annotations

import os
import time
from pathlib import Path


def process_age_s() -> float:
    """Wall seconds since the process was started; its CPU seconds where there is no /proc.

    Source: proc_pid_stat(5), field 22: the start in clock ticks after the machine's own.
    """
    try:
        after_name = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2]
        started_s = int(after_name.split()[19]) / os.sysconf("SC_CLK_TCK")
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - started_s, 0.0)
    except (OSError, ValueError, IndexError, AttributeError):
        return time.process_time()
