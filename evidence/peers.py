"""Errors of other tools on published runs, with citations.

`run`: the tool's release was run on published rows; `claimed`: its authors' figure.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Error of a tool on rows of `source` (`groups.source_of`), or "" for its own rows."""

    tool: str
    source: str
    rows: str
    error: str
    how: str
    citation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """The file peers.toml."""

    peers: tuple[Peer, ...]


def peers() -> tuple[Peer, ...]:
    """All of them, in the order of the accuracy page."""
    path = Path(__file__).with_name("peers.toml")
    return read_document(path, Peers, schema="shardwright/peers@1").peers
