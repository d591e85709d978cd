"""Placements as rules per module: what the executor applies, and DTensor text for all else."""

from __future__ import annotations

from dataclasses import dataclass

from planner.op_sharding.flow import Layout, forward_of
from planner.op_sharding.solve_block import OpSharding, PlacedOp
from profiles.model.op_graphs.op_graph import OpGraph
from simulator.values.op_sharding_file import split_dim

_TEXT = {"R": "Replicate()", "P": "Partial()"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRule:
    """How one op with weights, in every repeat of its block, is placed.

    pattern   module path, `*` where the number of the repeat stands
    kind      `column` or `row` (a linear layer by its outputs or inputs), `vocabulary` (a table by
              its rows), `experts` (a stack of weights by its first dim), `weight` (another dim of
              one), `batch` and `sequence` (activations are split along dim 0 or another, weights
              whole), `hidden` (a weight of one dim, or a table, along its last), `replicated`
    text      inputs, weights and outputs as DTensor placements, one list per tensor
    """

    pattern: str
    kind: str
    text: str


def placement_rules(answer: OpSharding, graph: OpGraph) -> tuple[PlacementRule, ...]:
    """A rule for every op that reads weights, in order of execution."""
    rules = []
    for placed in answer.ops:
        if any(graph.tensors[t].parameter for t in placed.op.inputs):
            rules.append(
                PlacementRule(
                    pattern=graph.path_pattern(placed.op.module, placed.op.block),
                    kind=_kind(placed, graph),
                    text=_text(placed, graph),
                )
            )
    return tuple(rules)


def _kind(placed: PlacedOp, graph: OpGraph) -> str:
    op, strategy = placed.op, placed.strategy
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


def _text(placed: PlacedOp, graph: OpGraph) -> str:
    parts = []
    for t, layout in zip(placed.op.inputs, placed.strategy.inputs, strict=True):
        name = graph.tensors[t].parameter.rpartition(".")[2] or "input"
        parts.append(f"{name} {placements_text(layout)}")
    parts += [f"output {placements_text(layout)}" for layout in placed.strategy.outputs]
    return ", ".join(parts)


def placements_text(layout: Layout) -> str:
    """The forward placements as torch.distributed.tensor writes them.

    >>> from planner.op_sharding.flow import SUMMANDS, sliced
    >>> placements_text((sliced(1), SUMMANDS))
    '[Shard(1), Partial()]'
    """
    written = [_TEXT.get(p, f"Shard({split_dim(p)})") for p in forward_of(layout)]
    return f"[{', '.join(written)}]"
