"""What chosen strategies ask of every tensor: the changes of placements between ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from planner.op_sharding.flow import Layout, backward_of, forward_of, shards
from planner.op_sharding.resharding import Resharding, operation_between
from planner.op_sharding.strategies import Strategy
from planner.op_sharding.uses import layouts_read, makers_of, readers_of
from profiles.model.op_graph import GraphTensor, OpGraph
from simulator.op_sharding_file import Change, Conversion, Message, PlacedTensor, Placements

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
            forward = resharding.forward_changes(tensor, made, forms)
            backward = resharding.backward_changes(tensor, made, forms)
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


def messages_of(
    graph: OpGraph,
    strategies: Sequence[Strategy],
    conversions: Sequence[Conversion],
    sizes: tuple[int, ...],
) -> tuple[Message, ...]:
    """All collectives of one micro-batch, and of the weights' gradients once."""
    found: dict[tuple[str, str, int, int, str, str], int] = {}

    def add(
        phase: str, operation: str, axis: int, elements: int, dtype: str, what: str, n: int
    ) -> None:
        key = (phase, operation, axis, elements, dtype, what)
        found[key] = found.get(key, 0) + n

    for conversion in conversions:
        tensor = graph.tensors[conversion.tensor]
        op = graph.ops[conversion.maker]
        for phase in ("forward", "backward"):
            for change in getattr(conversion, phase):
                before = change.source
                for after in change.steps:
                    (axis,) = (
                        i
                        for i, pair in enumerate(zip(before, after, strict=True))
                        if pair[0] != pair[1]
                    )
                    operation = operation_between(before[axis], after[axis])
                    if operation is not None:
                        others = tuple("R" if i == axis else p for i, p in enumerate(before))
                        elements = tensor.num_elements // shards(others, sizes)
                        what = f"{op.module or graph.name} {op.name}"
                        add(phase, operation, axis, elements, tensor.dtype, what, conversion.runs)
                    before = after
    for op, strategy in zip(graph.ops, strategies, strict=True):
        for axis, x in strategy.exchanged:
            what = f"inside {op.module or graph.name} {op.name}"
            runs = graph.blocks[op.block].repeats
            add(x.phase, x.operation, axis, x.elements, x.dtype, what, runs)
    for t, layouts in weight_layouts(graph, strategies).items():
        tensor = graph.tensors[t]
        elements = tensor.num_elements // shards(forward_of(layouts[0]), sizes)
        partial = {
            axis for layout in layouts for axis, flow in enumerate(layout) if flow.backward == "P"
        }
        block = next(op.block for op in graph.ops if t in op.inputs)
        for axis in sorted(partial):
            runs = graph.blocks[block].repeats
            add("weights", "all_reduce", axis, elements, "float32", tensor.parameter, runs)
    return tuple(
        Message(
            phase=phase,
            operation=operation,
            axis=axis,
            elements=elements,
            dtype=dtype,
            count=count,
            what=what,
        )
        for (phase, operation, axis, elements, dtype, what), count in found.items()
    )


def weight_layouts(graph: OpGraph, strategies: Sequence[Strategy]) -> dict[int, tuple[Layout, ...]]:
    """The layouts in which each trained weight is read, by its number."""
    found: dict[int, dict[Layout, None]] = {}
    for op, strategy in zip(graph.ops, strategies, strict=True):
        for t, layout in zip(op.inputs, strategy.inputs, strict=True):
            if graph.tensors[t].parameter and graph.tensors[t].needs_gradient:
                found.setdefault(t, {})[layout] = None
    return {t: tuple(layouts) for t, layouts in found.items()}
