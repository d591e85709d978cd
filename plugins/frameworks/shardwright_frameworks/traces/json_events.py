"""Reads the events of a Chrome trace one at a time, from a file of any size."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, cast

from profiles.errors import DocumentError

MOST_EVENT_CHARACTERS = 1 << 24
"""Longest event in bytes, far above any profiler's; a file with a longer one is no trace."""

_CHUNK = 1 << 20
_BEGIN = re.compile(r'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
# Most text before the events (device properties, stacks) that is searched.
_MOST_HEAD = 1 << 26


def trace_events(path: str | Path) -> Iterator[dict[str, Any]]:
    """The events of `{"traceEvents": [...]}` or of a bare `[...]`, gzipped or plain; for a
    truncated file, the events before its end.

    Memory is bounded by one event and one chunk. Raises DocumentError for a missing file and for a
    file without events.
    """
    file = Path(path)
    try:
        raw = file.open("rb")
    except FileNotFoundError:
        raise DocumentError(f"{path}: no such file") from None
    except OSError as error:
        raise DocumentError(f"{path}: cannot be read: {error.strerror}") from error
    with raw:
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw) if packed else raw)
        text = io.TextIOWrapper(stream, encoding="utf-8", errors="replace")
        yield from _events(text, path)


def _events(text: IO[str], path: str | Path) -> Iterator[dict[str, Any]]:
    buffer = _head(text, path)
    decode = json.JSONDecoder(strict=False).raw_decode
    at, ended = 0, False
    while True:
        between = _BETWEEN.match(buffer, at)
        at = between.end() if between else at
        if at < len(buffer):
            if buffer[at] == "]":
                return
            try:
                event, at = decode(buffer, at)
            except json.JSONDecodeError:
                if ended or len(buffer) - at > MOST_EVENT_CHARACTERS:
                    return
            else:
                if isinstance(event, dict):
                    yield event
                continue
        elif ended:
            return
        more = _more(text)
        ended = not more
        buffer, at = buffer[at:] + more, 0


def _head(text: IO[str], path: str | Path) -> str:
    """The text after the bracket where the events begin."""
    buffer = _more(text)
    if buffer.lstrip("\ufeff \t\r\n").startswith("["):
        return buffer.lstrip("\ufeff \t\r\n")[1:]
    passed = 0
    while (found := _BEGIN.search(buffer)) is None:
        more = _more(text)
        passed += len(more)
        if not more or passed > _MOST_HEAD:
            raise DocumentError(
                f"{path}: has no traceEvents; export the profile with "
                "`prof.export_chrome_trace` or name another file"
            )
        buffer = buffer[-64:] + more
    return buffer[found.end() :]


def _more(text: IO[str]) -> str:
    try:
        return text.read(_CHUNK)
    except (EOFError, OSError, zlib.error):
        return ""  # a trace that is cut: earlier events are used
