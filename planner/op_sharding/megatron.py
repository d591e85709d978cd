"""Megatron's layout as a restriction of strategies, to price it beside the best one.

Linear layers by columns and rows (arXiv 1909.08053, section 3), and what stands between them in a
block, normalisation and residual, split along the sequence (arXiv 2205.05198, section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Mapping

from planner.op_sharding.flow import SUMMANDS, WHOLE, Layout, sliced
from planner.op_sharding.strategies import strategies_of
from profiles.errors import InputError
from profiles.model.op_graph import GraphOp, OpGraph

_BOUNDARY = ("layer_norm", "rms_norm")


def megatron_strategies(
    graph: OpGraph, size: int, kinds: Mapping[str, str], *, sequence_dim: int | None = 1
) -> dict[int, frozenset[str]]:
    """For each op that Megatron's layout decides, the labels of the strategies that it allows.

    kinds         last part of a linear layer's path -> `column`, `row` or `replicated`
    sequence_dim  of the activations between the split layers; None: whole there
    Raises InputError where a named layer cannot be split so.
    """
    allowed: dict[int, frozenset[str]] = {}
    for number, op in enumerate(graph.ops):
        own = strategies_of(op, graph, (size,))
        kind = kinds.get(op.module.rpartition(".")[2], "")
        rank = len(graph.tensors[op.outputs[0]].shape)
        if op.name == "linear" and kind:
            made: Layout = (sliced(rank - 1) if kind == "column" else SUMMANDS,)
            if kind == "replicated":
                made = (WHOLE,)
            allowed[number] = frozenset(s.label for s in own if s.outputs == (made,))
            if not allowed[number]:
                raise InputError(
                    f"{op.module} cannot be a {kind} layer over {size} ranks: its weight has shape "
                    f"{graph.tensors[op.inputs[1]].shape}"
                )
        elif _is_between(op, graph):
            form = WHOLE if sequence_dim is None else sliced(sequence_dim)
            held = frozenset(s.label for s in own if s.outputs == ((form,),))
            if held:
                allowed[number] = held
    return allowed


def _is_between(op: GraphOp, graph: OpGraph) -> bool:
    """A norm's last op (it reads the norm's weight) or the sum of two activations."""
    weighted = any(graph.tensors[t].parameter for t in op.inputs)
    if op.name in _BOUNDARY or (op.name == "mul" and weighted):
        return True
    shapes = {graph.tensors[t].shape for t in (*op.inputs, *op.outputs)}
    residual = op.name == "add" and len(op.inputs) == 2 and len(shapes) == 1
    return residual and len(shapes.pop()) == 3
