"""`folder_held`: a lock on the folder of a sweep; another sweep reports its owner.

The lock is the operating system's (flock), on a hidden file of the folder, and ends with the
process that holds it, however that ends: a killed sweep leaves nothing to be removed by hand.
"""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from profiles.errors import DocumentError, InputError

LOCK_FILE = ".sweep.lock"


@contextmanager
def folder_held(folder: Path, command: str) -> Iterator[None]:
    """Context in which no other process works in the folder; creates a missing folder.

    command  of this process, named in errors of later ones

    Raises InputError that names the process and its machine if another one holds it, DocumentError
    if the folder cannot be written.
    """
    path = folder / LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise DocumentError(f"{path}: cannot be written: {error.strerror or error}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(handle, 0)
            who = f"process {os.getpid()} on {socket.gethostname()} ({command})"
            os.pwrite(handle, who.encode(), 0)
        except BlockingIOError as error:
            who = os.read(handle, 4096).decode("utf-8", "replace").strip() or "another process"
            raise InputError(
                f"{folder} is being written by {who}; two sweeps in one folder would write over "
                "each other, and nothing was changed. Wait for it, end it, or name another folder "
                "with -o"
            ) from error
        except OSError as error:
            raise DocumentError(
                f"{path}: cannot be locked or cannot be written: {error.strerror or error}"
            ) from error
        try:
            yield
        finally:
            os.ftruncate(handle, 0)
    finally:
        os.close(handle)
