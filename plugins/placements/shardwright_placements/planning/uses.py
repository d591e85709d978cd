"""The readers of each tensor, and the layouts in which it may be converted for them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from shardwright_placements.op_graph.op_graph import OpGraph
from shardwright_placements.planning.flow import Layout
from shardwright_placements.planning.strategies import Strategy

# Maximum number of layouts into which one tensor is converted, by the number of mesh axes. Fewer
# would forbid good answers. With more axes there are too many sets, and two layouts already allow
# one reader to have the tensor sliced and all others gathered.
MOST_FORMS = {1: 4, 2: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """The readers of a tensor in one block.

    made    for each op that makes it: (op, index of its output, times per step); the first repeat
            of a block may read another op's output than later repeats
    readers ops
    states  the sets of layouts to choose from
    is_kept whether the backward needs it (of tensors in one storage, only the first counts)
    """

    tensor: int
    block: int
    made: tuple[tuple[int, int, int], ...]
    readers: tuple[int, ...]
    states: tuple[tuple[Layout, ...], ...]
    is_kept: bool


def uses_of(
    graph: OpGraph, strategies: Sequence[tuple[Strategy, ...]], most: int
) -> tuple[Uses, ...]:
    """The uses of every tensor, per block, except inputs that any rank can load.

    Tensors without maker and gradient, such as tokens, are available in every layout at no cost.
    """
    kept_storages: set[tuple[int, int]] = set()
    found = []
    for (block, t), reading in readers_of(graph).items():
        tensor = graph.tensors[t]
        made = makers_of(graph, block, t)
        if not made and not tensor.needs_gradient:
            continue
        storage = (block, tensor.storage)
        keeps = any(t in graph.ops[r].saved for r in reading) or any(
            graph.ops[m].block == block and t in graph.ops[m].saved for m, _, _ in made
        )
        is_kept = keeps and storage not in kept_storages
        if is_kept:
            kept_storages.add(storage)
        found.append(
            Uses(
                tensor=t,
                block=block,
                made=made,
                readers=reading,
                states=_states(graph, strategies, t, reading, made, most),
                is_kept=is_kept,
            )
        )
    return tuple(found)


def readers_of(graph: OpGraph) -> dict[tuple[int, int], tuple[int, ...]]:
    """The ops of a block that read a tensor, by (block, tensor); weights left out."""
    readers: dict[tuple[int, int], dict[int, None]] = {}
    for number, op in enumerate(graph.ops):
        for t in op.inputs:
            if not graph.tensors[t].parameter:
                readers.setdefault((op.block, t), {})[number] = None
    return {key: tuple(ops) for key, ops in readers.items()}


def makers_of(graph: OpGraph, block: int, t: int) -> tuple[tuple[int, int, int], ...]:
    """(op, index of its output, times per step) of each op whose output a block reads as tensor
    `t`."""
    repeats = graph.blocks[block].repeats
    carried = dict(graph.blocks[block].carried)
    tensor = graph.tensors[t]
    first = tensor.stands_for if tensor.stands_for is not None else t
    sources = [(first, repeats)]
    if t in carried and repeats > 1:
        sources = [(first, 1), (carried[t], repeats - 1)]
    made = []
    for source, count in sources:
        maker = graph.tensors[source].producer
        if maker is not None:
            made.append((maker, graph.ops[maker].outputs.index(source), count))
    return tuple(made)


def layouts_read(graph: OpGraph, op: int, strategy: Strategy, t: int) -> tuple[Layout, ...]:
    """The layouts in which a strategy reads a tensor (twice if the op reads it twice)."""
    numbers = graph.ops[op].inputs
    return tuple(
        dict.fromkeys(layout for n, layout in zip(numbers, strategy.inputs, strict=True) if n == t)
    )


def _states(
    graph: OpGraph,
    strategies: Sequence[tuple[Strategy, ...]],
    t: int,
    readers: tuple[int, ...],
    made: tuple[tuple[int, int, int], ...],
    most: int,
) -> tuple[tuple[Layout, ...], ...]:
    options = [{frozenset(layouts_read(graph, r, s, t)) for s in strategies[r]} for r in readers]
    own = [
        {s.outputs[output] for s in strategies[m]}
        for m, output, _ in made
        if t in graph.ops[m].saved
    ]
    layouts = sorted(set().union(*(x for option in options for x in option), *own), key=str)
    most = min(most, len(own) + sum(max(map(len, option)) for option in options))
    return tuple(
        chosen
        for size in range(1, most + 1)
        for chosen in itertools.combinations(layouts, size)
        if all(any(x <= set(chosen) for x in option) for option in options)
    )
