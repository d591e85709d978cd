"""Files that a command is to write, looked at before it works for them."""

from __future__ import annotations

from pathlib import Path

from profiles.document import need_writable


def need_room_for(*files: Path | None) -> None:
    """Raises DocumentError where a file cannot be written; `-` is stdout, None is not asked for."""
    for file in files:
        if file is not None and str(file) != "-":
            need_writable(file)
