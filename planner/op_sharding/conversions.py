"""What chosen strategies ask of every tensor: the changes of placements between ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.op_sharding.flow import Layout, backward_of, forward_of
from planner.op_sharding.resharding import Resharding
from planner.op_sharding.strategies import Strategy
from planner.op_sharding.uses import layouts_read, makers_of, readers_of
from profiles.model.op_graphs.op_graph import GraphTensor, OpGraph
from simulator.values.op_sharding_file import Change, Conversion, PlacedTensor, Placements

Between = Mapping[tuple[int, int], tuple[Layout, ...]]
"""Layouts for (block, tensor) that a tensor is brought into, its readers' and steps on the way."""


def layouts_needed(
    graph: OpGraph, strategies: Sequence[Strategy], readers: Sequence[int], t: int
) -> tuple[Layout, ...]:
    """The layouts in which the ops read the tensor, each once."""
    found: dict[Layout, None] = {}
    for reader in readers:
        found |= dict.fromkeys(layouts_read(graph, reader, strategies[reader], t))
    return tuple(sorted(found, key=str))


def best_forms(
    tensor: GraphTensor,
    made: Layout,
    needed: tuple[Layout, ...],
    chosen: tuple[Layout, ...],
    resharding: Resharding,
) -> tuple[Layout, ...]:
    """What is needed alone, or all that was chosen where a form on the way makes it cheaper."""
    direct = resharding.total_seconds(tensor, made, needed)
    return chosen if resharding.total_seconds(tensor, made, chosen) < direct else needed


def conversions_of(
    graph: OpGraph,
    strategies: Sequence[Strategy],
    resharding: Resharding,
    between: Between,
) -> tuple[Conversion, ...]:
    """Every tensor that is read otherwise than it was made; strategies of all ops of the graph."""
    found = []
    for (block, t), readers in readers_of(graph).items():
        tensor = graph.tensors[t]
        needed = layouts_needed(graph, strategies, readers, t)
        for maker, output, runs in makers_of(graph, block, t):
            made = strategies[maker].outputs[output]
            if needed == (made,):
                continue
            chosen = between.get((block, t), needed)
            forms = best_forms(tensor, made, needed, chosen, resharding)
            forward = resharding.changes(tensor, made, forms, back=False)
            backward = resharding.changes(tensor, made, forms, back=True)
            found.append(
                Conversion(
                    tensor=t,
                    block=block,
                    maker=maker,
                    output=output,
                    made=placed(made),
                    used=tuple(placed(layout) for layout in needed),
                    forward=_reached(forward, {forward_of(x) for x in needed}),
                    backward=_sent(backward, {backward_of(x) for x in needed}),
                    runs=runs,
                )
            )
    return tuple(found)


def placed(layout: Layout) -> PlacedTensor:
    """The layout as the file has it."""
    return PlacedTensor(forward=forward_of(layout), backward=backward_of(layout))


def _reached(changes: tuple[Change, ...], read: set[Placements]) -> tuple[Change, ...]:
    """Without changes into forms that nothing reads and nothing is made of."""
    kept: list[Change] = []
    wanted = set(read)
    for change in reversed(changes):
        if change.target in wanted:
            kept.append(change)
            wanted.add(change.source)
    return tuple(reversed(kept))


def _sent(changes: tuple[Change, ...], arriving: set[Placements]) -> tuple[Change, ...]:
    """Without changes of gradients that do not arrive."""
    kept: list[Change] = []
    there = set(arriving)
    for change in changes:
        if change.source in there:
            kept.append(change)
            there.add(change.target)
    return tuple(kept)


def weight_layouts(graph: OpGraph, strategies: Sequence[Strategy]) -> dict[int, tuple[Layout, ...]]:
    """The layouts in which each trained weight is read, by its number."""
    found: dict[int, dict[Layout, None]] = {}
    for op, strategy in zip(graph.ops, strategies, strict=True):
        for t, layout in zip(op.inputs, strategy.inputs, strict=True):
            if graph.tensors[t].parameter and graph.tensors[t].needs_gradient:
                found.setdefault(t, {})[layout] = None
    return {t: tuple(layouts) for t, layouts in found.items()}
