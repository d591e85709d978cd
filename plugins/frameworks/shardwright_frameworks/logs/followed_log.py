"""`FollowedLog`: a log that grows or is replaced by a new file of the same name."""

from __future__ import annotations

import os
from pathlib import Path

from profiles.errors import DocumentError
from shardwright_frameworks.logs.log_lines import without_colours
from shardwright_frameworks.logs.log_reading import LogReading
from shardwright_frameworks.logs.read_log import log_of_reading
from shardwright_frameworks.logs.training_log import TrainingLog

_CHUNK = 1 << 20


class FollowedLog:
    """Reads the lines added since the last call.

    A file that was replaced (rotated) or shortened is read from its beginning; earlier lines are
    kept. A missing log counts as empty.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.reading = LogReading()
        self._identity: tuple[int, int] | None = None
        self._position = 0
        self._rest = b""

    def look(self) -> bool:
        """Read the new lines; returns whether there were complete ones. Raises DocumentError for a
        folder or an unreadable file."""
        try:
            with self.path.open("rb") as stream:
                status = os.fstat(stream.fileno())
                identity = (status.st_dev, status.st_ino)
                if identity != self._identity or status.st_size < self._position:
                    self._flush()
                    self._identity, self._position = identity, 0
                stream.seek(self._position)
                added = False
                while chunk := stream.read(_CHUNK):
                    self._position += len(chunk)
                    added = self._feed(chunk) or added
                return added
        except FileNotFoundError:
            return False
        except OSError as error:
            raise DocumentError(f"{self.path}: cannot be read: {error.strerror}") from error

    def _feed(self, chunk: bytes) -> bool:
        text = (self._rest + chunk).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._rest = text.split(b"\n")
        if len(self._rest) > _CHUNK:
            lines, self._rest = [*lines, self._rest], b""
        for line in lines:
            self.reading.feed(_line(line))
        return bool(lines)

    def _flush(self) -> None:
        """Process the unfinished last line of a replaced file."""
        if self._rest.strip():
            self.reading.feed_last(_line(self._rest))
        self._rest = b""

    def log(self) -> TrainingLog:
        """The log of all lines so far."""
        return log_of_reading(self.reading, str(self.path))


def _line(raw: bytes) -> str:
    return without_colours(raw.decode("utf-8", errors="replace"))
