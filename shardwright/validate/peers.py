"""What other tools reach or claim on published runs, with citations.

`run` figures were made by running the tool's release on the rows that it or others published;
`claimed` ones are the authors'. Row counts tell whether they cover all rows or those of one table.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """An error that a tool reaches on rows of `source` (`groups.source_of`), or "" for its own."""

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
    """All of them, as the accuracy page lists them."""
    path = Path(__file__).with_name("peers.toml")
    return read_document(path, Peers, schema="shardwright/peers@1").peers
