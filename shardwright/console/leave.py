"""End of a command on a signal, or on a closed pipe."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

# A shell's exit status for a process ended by SIGINT or SIGPIPE: 128 plus the signal's number.
INTERRUPTED, PIPE_CLOSED = 130, 141


def heed_termination() -> None:
    """Handle SIGTERM, which schedulers send, like Ctrl-C from now on."""

    def interrupt(_: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)
        if callable(handler):
            handler(signal.SIGINT, frame)
        else:  # Ctrl-C is ignored for background processes of a shell, but SIGTERM is not
            raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, interrupt)


def leave(status: int) -> NoReturn:
    """End the process with `status`; with 2 and a message if stdout cannot be written, with 141 if
    its reader has closed (`| head`)."""
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
    gc.freeze()  # the interpreter would look through all objects of torch once more: a second
    sys.exit(status)


def _drop_output() -> None:
    """Discard buffered output, which the interpreter would otherwise try to write at its end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
