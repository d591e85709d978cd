"""Read a file named by a user, with precise errors."""

from __future__ import annotations

from pathlib import Path

from profiles.errors import DocumentError

MOST_BYTES = 2**30
"""Limit, far above real files: instance C of the 2025 contest has 87 MB of JSON."""


def read_file(path: str | Path) -> bytes:
    """The bytes of a file or pipe; raises DocumentError if it cannot be read."""
    file = Path(path)
    try:
        with file.open("rb") as stream:
            found = stream.read(MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise DocumentError(f"{path}: no such file") from error
    except IsADirectoryError as error:
        raise DocumentError(f"{path}: is a folder; name a file in it") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = error.strerror if isinstance(error, OSError) else None
        raise DocumentError(f"{path}: cannot be read: {why or error}") from error
    if len(found) > MOST_BYTES:
        raise DocumentError(
            f"{path}: has more than {MOST_BYTES // 2**30} GiB, more than any file of this kind; "
            "is it "
            "the right file?"
        )
    return found


def read_text(path: str | Path) -> str:
    """The UTF-8 text of a file, without a byte order mark.

    Raises DocumentError for a missing file, a folder, or other content.
    """
    raw = read_file(path)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"{path}: cannot be read as text: byte {error.start} (0x{raw[error.start]:02x}) is not "
            "UTF-8; is it a binary file, or one in another encoding?"
        ) from error
