"""End of a command on a signal, or on a closed pipe."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

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
    nobody reads it (`| head`)."""
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
    sys.exit(status)


def _drop_output() -> None:
    """What is still buffered goes nowhere, or the interpreter would try again at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
