"""One block of an op graph as a separate graph."""

from __future__ import annotations

from dataclasses import replace

from profiles.errors import UnknownNameError
from shardwright_placements.op_graph.op_graph import OpGraph


def block_names(graph: OpGraph) -> dict[str, int]:
    """Block numbers by name: the paths of entries, and class names that only one block has."""
    names: dict[str, int] = {}
    labels = [block.label for block in graph.blocks]
    for number, block in enumerate(graph.blocks):
        if labels.count(block.label) == 1:
            names[block.label] = number
        names |= {entry: number for entry in block.entries if entry}
    return names


def block_number(graph: OpGraph, name: str) -> int:
    """The block of this name; raises UnknownNameError with the nearest one."""
    names = block_names(graph)
    if name in names:
        return names[name]
    classes = [block.label for block in graph.blocks if block.label in names]
    first = [block.entries[0] for block in graph.blocks if block.entries[0]]
    raise UnknownNameError("block", name, {*classes, *first} or names, where="--block")


def block_graph(graph: OpGraph, number: int) -> OpGraph:
    """The ops of one run of a block. Its inputs are the outputs of the previous equal block.

    Other inputs have no maker: they are available in any layout at no cost.
    """
    carried = dict(graph.blocks[number].carried)
    chosen = [i for i, op in enumerate(graph.ops) if op.block == number]
    own = {old: new for new, old in enumerate(chosen)}
    return OpGraph(
        name=f"{graph.name} {graph.blocks[number].label}",
        tensors=tuple(
            replace(
                x,
                producer=own.get(x.producer) if x.producer is not None else None,
                stands_for=carried.get(t, x.stands_for),
            )
            for t, x in enumerate(graph.tensors)
        ),
        ops=tuple(replace(graph.ops[i], block=0) for i in chosen),
        blocks=(replace(graph.blocks[number], entries=graph.blocks[number].entries[:1]),),
    )
