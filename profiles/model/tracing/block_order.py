"""Reorder the blocks of a graph with branches, and find the tensors that cross a cut.

A pipeline stage consists of consecutive blocks of a topological order. A tensor crosses a cut if it
is made before the cut and used after it. A tensor for a later stage is received and forwarded by
the stages in between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from profiles.errors import MismatchError
from profiles.model.graph import Branch, ModelGraph


def in_order(graph: ModelGraph, entries: Sequence[str]) -> ModelGraph:
    """The graph with its chain in the order of `entries`.

    Raises MismatchError if the entries are not those of the graph's blocks, or if a block comes
    before one whose tensor it needs.
    """
    own = [ref.entry for ref in graph.chain]
    if list(entries) == own:
        return graph
    if sorted(entries) != sorted(own) or len(set(own)) != len(own):
        odd = sorted(set(entries) ^ set(own))
        raise MismatchError(
            f"the plan cuts the model into other blocks than the traced {graph.name} has"
            + (f": {odd[0]!r} is a block of only one of them" if odd else "")
            + "; plan again for this model"
        )
    at = {entry: position for position, entry in enumerate(entries)}
    position = [at[entry] for entry in own]
    if not graph.branches:
        raise MismatchError(
            f"the plan puts the blocks of {graph.name} in another order than the model runs them, "
            "and each takes the output of the one before it; plan again for this model"
        )
    moved = []
    for branch in graph.branches:
        producer = position[branch.producer]
        consumers = tuple(sorted(position[k] for k in branch.consumers))
        if consumers[0] <= producer:
            raise MismatchError(
                f"the plan runs block {entries[consumers[0]] or 'the first'!r} before "
                f"{entries[producer] or 'the first'!r}, whose tensor it takes; plan again"
            )
        moved.append(Branch(producer=producer, consumers=consumers, spec=branch.spec))
    chain = [graph.chain[own.index(entry)] for entry in entries]
    return replace(graph, chain=tuple(chain), branches=tuple(moved))


def crossing(graph: ModelGraph, cut: int) -> tuple[Branch, ...]:
    """The tensors of a graph with branches that are made before position `cut` and used there or
    later."""
    return tuple(b for b in graph.branches if b.producer < cut <= b.consumers[-1])


def crossing_bytes(graph: ModelGraph, cut: int) -> float:
    """Bytes per micro-batch that cross the cut before position `cut`; 0 at both ends."""
    if not 0 < cut < len(graph.chain):
        return 0.0
    if graph.branches:
        return float(sum(branch.spec.memory_bytes for branch in crossing(graph, cut)))
    return float(sum(spec.memory_bytes for spec in graph.kinds[graph.chain[cut].kind].inputs))
