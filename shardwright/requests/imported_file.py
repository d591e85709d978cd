"""`imported.json`: an imported run as a file."""

from __future__ import annotations

from pathlib import Path

from profiles.document import read_document, read_mapping, to_json, write_text
from profiles.errors import ShardwrightError
from shardwright.requests.imported_run import IMPORTED_SCHEMA, ImportedRun, imported_json


def write_imported(path: str | Path, run: ImportedRun) -> None:
    """Writes the run; raises DocumentError if that fails."""
    write_text(path, to_json(imported_json(run)))


def read_imported(path: str | Path) -> ImportedRun:
    """The run of a file; raises DocumentError for another file and for a wrong entry."""
    return read_document(path, ImportedRun, schema=IMPORTED_SCHEMA)


def is_imported(path: str | Path) -> bool:
    """Whether a file is an imported run; False if it cannot be read."""
    try:
        return read_mapping(path).get("schema") == IMPORTED_SCHEMA
    except ShardwrightError:
        return False
