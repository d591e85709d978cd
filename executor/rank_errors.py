"""Error files of ranks: an error with its time, from which the launcher finds the rank that failed
first."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from executor.before_launch import die_with_parent
from profiles.document import write_text
from profiles.errors import ShardwrightError


def run_rank(work: Callable[[], None], errors: str) -> NoReturn:
    """Run the work and exit the process; the exit status reports failure to torchrun.

    errors  folder for rank<N>.json with the error, "" for none; it is also printed to stderr
    """
    die_with_parent()
    code = 0
    try:
        work()
    except BaseException as error:
        code = error.exit_code if isinstance(error, ShardwrightError) else 1
        text = "".join(traceback.format_exception(error))
        sys.stderr.write(text)
        rank = int(os.environ.get("RANK", "0"))
        entry = {
            "rank": rank,
            "time_s": time.time(),
            "kind": type(error).__name__,
            "message": str(error) or type(error).__name__,
            "ours": isinstance(error, ShardwrightError),
        }
        if errors:
            write_text(Path(errors) / f"rank{rank}.json", json.dumps(entry))
    sys.stdout.flush()
    sys.stderr.flush()
    # A plain exit may abort in gloo's threads after DTensor was used.
    os._exit(code)
