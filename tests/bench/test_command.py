"""A process whose solver still runs ends with its own status, its output whole."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A thread that stays inside native code, as HiGHS does when its time is up.
_BUSY = """
import threading, time
from bench.command import SOLVER_THREAD, start
import atexit
atexit.register(lambda: print("taken down"))
def solve(_):
    threading.Thread(target=time.sleep, args=(60,), name={name}, daemon=True).start()
    print("cost 1", end="")
    return {status}
start(lambda _: None, solve, None)
"""


@pytest.mark.parametrize("status", [0, 3])
def test_a_solver_that_runs_on_is_left_behind(status: int) -> None:
    code = _BUSY.format(name="SOLVER_THREAD", status=status)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (status, "cost 1", "")


def test_any_other_end_is_the_usual_one() -> None:
    code = _BUSY.format(name="'another'", status=3)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, "cost 1taken down\n")
