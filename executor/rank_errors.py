"""A rank's error as a file, with its time: the launcher tells which rank failed first."""

from __future__ import annotations

import json
import sys
import time
import traceback
from pathlib import Path

from profiles.document import write_text
from profiles.errors import ShardwrightError


def report_error(folder: str, rank: int, error: BaseException) -> None:
    """Say it on stderr and, where a folder is given, in rank<N>.json there."""
    text = "".join(traceback.format_exception(error))
    sys.stderr.write(text)
    sys.stderr.flush()
    if folder:
        entry = {
            "rank": rank,
            "time_s": time.time(),
            "kind": type(error).__name__,
            "message": str(error) or type(error).__name__,
            "ours": isinstance(error, ShardwrightError),
            "traceback": text,
        }
        write_text(Path(folder) / f"rank{rank}.json", json.dumps(entry))
