"""`leave`: the end of a process in which a native solver may still be running.

A solve whose time is up does not wait for HiGHS, which looks at the clock now and then only
(`intra_op/solve.py`). Where the interpreter then takes itself down, that thread is cut off inside
C++, which ends the process with `terminate called without an active exception` and status 134
although the answer was printed and written.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import NoReturn

# The name of the threads of a solve.
SOLVER_THREAD = "intra-op solver"


def leave(status: int) -> NoReturn:
    """Ends the process with `status`: at once, output flushed, where a solver still runs."""
    if any(thread.name == SOLVER_THREAD for thread in threading.enumerate()):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)
