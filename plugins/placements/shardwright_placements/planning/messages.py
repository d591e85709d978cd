"""The collectives that placements require: the expected counts of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardwright_placements.op_graph.op_graph import GraphTensor, OpGraph
from shardwright_placements.planning.conversions import weight_layouts
from shardwright_placements.planning.flow import forward_of, shards, shards_of_others
from shardwright_placements.planning.resharding import operation_between
from shardwright_placements.planning.strategies import Strategy
from shardwright_placements.sharding_file import Change, Conversion, Message


def messages_of(
    graph: OpGraph,
    strategies: Sequence[Strategy],
    conversions: Sequence[Conversion],
    sizes: tuple[int, ...],
) -> tuple[Message, ...]:
    """All collectives of one micro-batch and of the weights' gradients; equal ones are merged."""
    counts: Counter[Message] = Counter()
    for message in (
        *_resharding(graph, conversions, sizes),
        *_inside(graph, strategies),
        *_of_weights(graph, strategies, sizes),
    ):
        counts[replace(message, count=1)] += message.count
    return tuple(replace(message, count=n) for message, n in counts.items())


def _resharding(
    graph: OpGraph, conversions: Sequence[Conversion], sizes: tuple[int, ...]
) -> Iterator[Message]:
    for conversion in conversions:
        op = graph.ops[conversion.maker]
        what = f"{graph.path_pattern(op.module, op.block) or graph.name} {op.name}"
        for phase, changes in (("forward", conversion.forward), ("backward", conversion.backward)):
            for change in changes:
                tensor = graph.tensors[conversion.tensor]
                for axis, operation, elements in _steps(change, tensor, sizes):
                    yield Message(
                        phase=phase,
                        operation=operation,
                        axis=axis,
                        elements=elements,
                        dtype=tensor.dtype,
                        count=conversion.runs,
                        what=what,
                    )


def _steps(
    change: Change, tensor: GraphTensor, sizes: tuple[int, ...]
) -> Iterator[tuple[int, str, int]]:
    """(axis, collective, elements of the buffer after cuts by other axes) of each step."""
    before = change.source
    for after in change.steps:
        axis = next(i for i, (x, y) in enumerate(zip(before, after, strict=True)) if x != y)
        operation = operation_between(before[axis], after[axis])
        if operation is not None:
            yield axis, operation, tensor.num_elements // shards_of_others(before, sizes, axis)
        before = after


def _inside(graph: OpGraph, strategies: Sequence[Strategy]) -> Iterator[Message]:
    for op, strategy in zip(graph.ops, strategies, strict=True):
        for axis, x in strategy.exchanged:
            yield Message(
                phase=x.phase,
                operation=x.operation,
                axis=axis,
                elements=x.elements,
                dtype=x.dtype,
                count=graph.blocks[op.block].repeats,
                what=f"inside {graph.path_pattern(op.module, op.block) or graph.name} {op.name}",
            )


def _of_weights(
    graph: OpGraph, strategies: Sequence[Strategy], sizes: tuple[int, ...]
) -> Iterator[Message]:
    """Gradient sums of weights: one fp32 all-reduce per axis with a partial gradient."""
    for t, layouts in weight_layouts(graph, strategies).items():
        tensor = graph.tensors[t]
        block = next(op.block for op in graph.ops if t in op.inputs)
        flows = {(axis, flow.backward) for layout in layouts for axis, flow in enumerate(layout)}
        for axis in sorted(axis for axis, backward in flows if backward == "P"):
            yield Message(
                phase="weights",
                operation="all_reduce",
                axis=axis,
                elements=tensor.num_elements // shards(forward_of(layouts[0]), sizes),
                dtype="float32",
                count=graph.blocks[block].repeats,
                what=graph.path_pattern(tensor.parameter, block),
            )
