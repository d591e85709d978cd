"""Reads a configuration that a test writes."""

from __future__ import annotations

from pathlib import Path

from shardwright_frameworks.imported_run import ImportedRun
from shardwright_frameworks.reading.read_config import read_config


def read(folder: Path, name: str, text: str) -> ImportedRun:
    """What is read of the text as a file of that name in the folder."""
    path = folder / name
    path.write_text(text)
    return read_config(path)
