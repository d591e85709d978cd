"""How a command ends: on a signal, at a closed pipe, or while a native solver is still running.

A solve whose time is up does not wait for HiGHS, which looks at the clock now and then only
(`intra_op/solve.py`). Where the interpreter then takes itself down, that thread is cut off inside
C++, which ends the process with `terminate called without an active exception` and status 134
although the answer was printed and written.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

# The name of the threads of a solve.
SOLVER_THREAD = "intra-op solver"

# What a shell reports of a process that SIGINT or SIGPIPE ended: 128 and the signal's number.
INTERRUPTED, PIPE_CLOSED = 130, 141


def heed_termination() -> None:
    """From here on SIGTERM, which schedulers send, does what Ctrl-C does."""

    def interrupt(_: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            handler(signal.SIGINT, frame)
        else:  # in the background of a shell Ctrl-C is ignored; to be ended is not
            raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)


def leave(status: int) -> NoReturn:
    """Ends the process with `status`, or with 2 and a word where stdout takes no more, or 141 where
    nobody reads it (`| head`). At once, output flushed, where a solver still runs."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        status = PIPE_CLOSED
        _drop_output()
    except OSError as error:
        status = 2
        _drop_output()
        sys.stderr.write(f"error: stdout cannot be written: {error.strerror}\n")
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    if any(thread.name == SOLVER_THREAD for thread in threading.enumerate()):
        os._exit(status)
    sys.exit(status)


def _drop_output() -> None:
    """What is still buffered goes nowhere, or the interpreter would try again at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
