"""Processes end with their own status, their output whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_PRINTS = "from shardwright.console.leave import leave\nprint('x' * 10)\nleave(0)"


def test_output_that_nobody_reads_and_a_full_disk() -> None:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    read, write = os.pipe()
    os.close(read)
    closed = subprocess.run(
        [sys.executable, "-c", _PRINTS], stdout=write, stderr=subprocess.PIPE, env=environment
    )
    os.close(write)
    assert (closed.returncode, closed.stderr) == (141, b"")
    with Path("/dev/full").open("w") as full_disk:
        full = subprocess.run(
            [sys.executable, "-c", _PRINTS],
            stdout=full_disk,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
        )
    assert full.returncode == 2
    assert full.stderr == "error: stdout cannot be written: No space left on device\n"


_WAITS = """
import signal, time
from shardwright.console.leave import heed_termination
signal.signal(signal.SIGINT, signal.{before})
heed_termination()
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("before", ["default_int_handler", "SIG_IGN"])
def test_being_ended_is_as_ctrl_c_where_ctrl_c_is_ignored_too(before: str) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _WAITS.format(before=before)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    child.send_signal(signal.SIGTERM)
    said, _ = child.communicate(timeout=30)
    assert (child.returncode, said) == (0, "interrupted\n")
