"""`known_options`: the options that some version of a framework has."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document

_FILE = Path(__file__).parents[1] / "data" / "known_options.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Framework:
    source: str
    names: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _KnownOptions:
    date: str
    frameworks: Mapping[str, _Framework]


@functools.cache
def known_options(framework: str) -> frozenset[str]:
    """Names in lower case with underscores, of a framework of data/known_options.toml."""
    found = read_document(_FILE, _KnownOptions, schema="shardwright/known-options@1")
    return frozenset(found.frameworks[framework].names.split())


def is_known(framework: str, key: str) -> bool:
    """Whether some version has the option; `no_` and `use_` in front of a name are switches."""
    names = known_options(framework)
    plain = key.lower()
    return plain in names or any(plain.removeprefix(p) in names for p in ("no_", "disable_"))
