"""Functions that workers of the tests run: text in, text out."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path


def shout(text: str) -> str:
    """Says its text louder, after noise on stdout that is no answer."""
    print("noise")
    sys.stdout.flush()
    os.write(1, b"more noise\n")
    return text.upper()


def die(text: str) -> str:
    """Ends its process without a word, after one more byte in the file that its text names."""
    with Path(text).open("a") as attempts:
        attempts.write(".")
    os.kill(os.getpid(), signal.SIGKILL)
    return text


def die_once(text: str) -> str:
    """Dies where the file that its text names is missing, and makes it."""
    if not Path(text).exists():
        die(text)
    return "second"


def threads(text: str) -> str:
    """How many threads the process may use."""
    return f"{text} {os.environ['OMP_NUM_THREADS']}"


def ray_node(text: str) -> str:
    """The Ray node that it ran on, after a while in which the other has to take the next."""
    import ray

    time.sleep(float(text))
    return json.dumps(ray.get_runtime_context().get_node_id())
