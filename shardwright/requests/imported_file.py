"""`imported.json`: a run configured for another framework, read by the plug-in `frameworks`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from profiles.document import read_mapping
from profiles.errors import ShardwrightError

IMPORTED_SCHEMA = "shardwright/imported@1"


@runtime_checkable
class ImportedRun(Protocol):
    """An imported run (`shardwright_frameworks.imported_run`)."""

    @property
    def files(self) -> tuple[str, ...]: ...

    @property
    def contradictions(self) -> tuple[Any, ...]: ...


def is_imported(path: str | Path) -> bool:
    """Whether a file is an imported run; False if it cannot be read."""
    try:
        return read_mapping(path).get("schema") == IMPORTED_SCHEMA
    except ShardwrightError:
        return False
