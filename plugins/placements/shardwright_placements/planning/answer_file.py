"""The answer as a file that the executor can run (sharding_file.py)."""

from __future__ import annotations

from shardwright_placements.op_graph.op_graph import OpGraph
from shardwright_placements.planning.conversions import Between, conversion_of, placed, reshards_of
from shardwright_placements.planning.flow import Layout, forward_of
from shardwright_placements.planning.mesh import Mesh
from shardwright_placements.planning.messages import messages_of
from shardwright_placements.planning.resharding import Resharding
from shardwright_placements.planning.solve_block import OpSharding, PlacedOp
from shardwright_placements.planning.strategies import Strategy, strategies_of
from shardwright_placements.sharding_file import Conversion, Message, PlacedCall, Rule, split_dim

_TEXT = {"R": "Replicate()", "P": "Partial()"}


def in_whole_model(
    graph: OpGraph, mesh: Mesh, answer: OpSharding, block: int | None
) -> tuple[tuple[Strategy, ...], Between]:
    """A strategy for every op of the whole graph, and the layouts between them, from an answer for
    the whole graph or for one block; ops outside of that block are replicated."""
    inside = iter(answer.ops)
    strategies = tuple(
        next(inside).strategy
        if block is None or op.block == block
        else strategies_of(op, graph, mesh.sizes)[0]
        for op in graph.ops
    )
    own = {(b if block is None else block, t): forms for (b, t), forms in answer.between.items()}
    return strategies, own


def run_parts(
    graph: OpGraph, mesh: Mesh, strategies: tuple[Strategy, ...], between: Between
) -> tuple[tuple[PlacedCall, ...], tuple[Conversion, ...], tuple[Message, ...]]:
    """Calls, conversions and messages of the whole graph under these strategies."""
    resharding = Resharding(mesh)
    conversions = tuple(
        conversion_of(graph, reshard, resharding)
        for reshard in reshards_of(graph, strategies, resharding, between)
    )
    calls = tuple(
        PlacedCall(
            op=number,
            name=op.name,
            module=op.module,
            inputs=tuple(placed(x) for x in strategy.inputs),
            outputs=tuple(placed(x) for x in strategy.outputs),
            shapes=tuple(graph.tensors[t].shape for t in op.outputs),
        )
        for number, (op, strategy) in enumerate(zip(graph.ops, strategies, strict=True))
    )
    return calls, conversions, messages_of(graph, strategies, conversions, mesh.sizes)


def placement_rules(answer: OpSharding, graph: OpGraph) -> tuple[Rule, ...]:
    """A rule for every op that reads weights, in order of execution."""
    return tuple(
        Rule(
            pattern=graph.path_pattern(one.op.module, one.op.block),
            op=one.op.name,
            kind=_kind(one, graph),
            placements=_text(one, graph),
        )
        for one in answer.ops
        if any(graph.tensors[t].parameter for t in one.op.inputs)
    )


def _kind(one: PlacedOp, graph: OpGraph) -> str:
    """The kind of a placement: `column` or `row` (a linear layer split by outputs or inputs),
    `vocabulary` (a table by rows), `experts` (stacked weights by the first dim), `weight` (stacked
    weights by another dim), `batch` and `sequence` (activations along dim 0 or another, weights
    whole), `hidden` (a one-dimensional weight, or a table, along the last dim), `replicated`."""
    op, strategy = one.op, one.strategy
    weight = next(i for i, t in enumerate(op.inputs) if graph.tensors[t].parameter)
    dims = {split_dim(p) for p in forward_of(strategy.inputs[weight])} - {None}
    if dims and op.name == "linear":
        return "column" if dims == {0} else "row" if dims == {1} else "column and row"
    if dims and op.name == "embedding":
        return "vocabulary" if dims == {0} else "hidden"
    rank = len(graph.tensors[op.inputs[weight]].shape)
    if dims and rank > 1:
        return "experts" if dims == {0} and rank == 3 else "weight"
    if dims:
        return "hidden"
    out = {split_dim(p) for p in forward_of(strategy.outputs[0])} - {None}
    return "batch" if out == {0} else "sequence" if out else "replicated"


def _text(one: PlacedOp, graph: OpGraph) -> str:
    """Inputs, weights and outputs as DTensor placements, one list per tensor."""
    names = [graph.tensors[t].parameter.rpartition(".")[2] or "input" for t in one.op.inputs]
    parts = [*zip(names, one.strategy.inputs, strict=True)]
    parts += [("output", layout) for layout in one.strategy.outputs]
    return ", ".join(f"{name} {placements_text(layout)}" for name, layout in parts)


def placements_text(layout: Layout) -> str:
    """The forward placements as torch.distributed.tensor writes them.

    >>> from shardwright_placements.planning.flow import SUMMANDS, sliced
    >>> placements_text((sliced(1), SUMMANDS))
    '[Shard(1), Partial()]'
    """
    written = [_TEXT.get(p, f"Shard({split_dim(p)})") for p in forward_of(layout)]
    return f"[{', '.join(written)}]"
