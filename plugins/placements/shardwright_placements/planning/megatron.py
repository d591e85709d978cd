"""Megatron's layout as a restriction of strategies, to price it next to the best one.

Linear layers are split by columns and rows (arXiv 1909.08053, section 3); normalization and
residual between them are split along the sequence (arXiv 2205.05198, section 4.2.2).
"""

from __future__ import annotations

from collections.abc import Mapping

from profiles.errors import InputError
from shardwright_placements.op_graph.op_graph import GraphOp, OpGraph
from shardwright_placements.planning.flow import SUMMANDS, WHOLE, Flow, sliced
from shardwright_placements.planning.strategies import strategies_of

_GROUPED = ("_grouped_mm", "grouped_mm")
_LAYERS = ("linear", "addmm", "embedding", *_GROUPED)
_PASSED = ("to", "float", "dropout", "view", "reshape", "contiguous", "__getitem__")


def megatron_strategies(
    graph: OpGraph,
    sizes: int | tuple[int, ...],
    kinds: Mapping[str, str],
    *,
    sequence_dim: int | None = 1,
) -> dict[int, frozenset[str]]:
    """Op -> labels of the allowed strategies, for each op that Megatron's layout determines.

    sizes         of the mesh; the layers are split over its last axis, the batch over one before
    kinds         last part of a layer's path -> `column`, `row`, `replicated`, `vocabulary` (a
                  table by its rows) or `experts` (grouped products by experts)
    sequence_dim  of the activations between the split layers; None: whole there
    Raises InputError if a named layer cannot be split in this way.
    """
    mesh = (sizes,) if isinstance(sizes, int) else sizes
    before = (sliced(0),) * (len(mesh) - 1)
    between = WHOLE if sequence_dim is None else sliced(sequence_dim)
    allowed: dict[int, frozenset[str]] = {}
    for number, op in enumerate(graph.ops):
        kind = kinds.get(op.module.rpartition(".")[2], "") if op.name in _LAYERS else ""
        if not kind and not _is_between(op, graph):
            continue
        rank = len(graph.tensors[op.outputs[0]].shape)
        made = (*before, _made_by(kind, rank) if kind else between)
        own = strategies_of(op, graph, mesh)
        held = frozenset(s.label for s in own if s.outputs == (made,))
        if held:
            allowed[number] = held
        elif kind:
            weight = graph.tensors[op.inputs[2 if op.name == "addmm" else 1]]
            batch = f" with the batch over {mesh[0]}" if len(mesh) > 1 else ""
            raise InputError(
                f"{op.module} cannot be a {kind} layer over {mesh[-1]} ranks{batch}: its weight "
                f"has shape {weight.shape}"
            )
    return allowed


def megatron_kinds(graph: OpGraph) -> dict[str, str]:
    """Layer -> kind of Megatron's split, from the ops that read it; {} if it splits none.

    A linear layer whose output is added to the residual is split by rows, any other by columns; a
    router (its output goes to a softmax or a top-k) is not split.
    """
    readers: dict[int, list[int]] = {}
    for number, op in enumerate(graph.ops):
        for t in op.inputs:
            readers.setdefault(t, []).append(number)
    kinds: dict[str, str] = {}
    for number, op in enumerate(graph.ops):
        name = op.module.rpartition(".")[2]
        if op.name in ("linear", "addmm") and _is_weighted(op, graph):
            ends = _ends(graph, op.outputs[0], readers, number)
            if ends & {"softmax", "topk", "sigmoid"}:
                kinds[name] = "replicated"
            else:
                kinds[name] = "row" if "residual" in ends else "column"
        elif op.name == "embedding":
            kinds[name] = "vocabulary" if _is_vocabulary(op, graph) else "replicated"
        elif op.name in _GROUPED:
            kinds[name] = "experts"
    return kinds if {"row", "column"} <= set(kinds.values()) else {}


def _ends(graph: OpGraph, tensor: int, readers: Mapping[int, list[int]], layer: int) -> set[str]:
    """Names of the first ops on a layer's output, ignoring views and casts; `residual` for a sum
    with a tensor from before the layer."""
    found: set[str] = set()
    for number in readers.get(tensor, ()):
        op = graph.ops[number]
        shapes = [graph.tensors[t].shape for t in op.inputs]
        if op.name in _PASSED or op.strides:
            found |= _ends(graph, op.outputs[0], readers, layer)
        elif op.name == "add" and len(shapes) == 2 and shapes[0] == shapes[1]:
            makers = [graph.tensors[t].producer for t in op.inputs]
            earlier = any(maker is None or maker < layer for maker in makers)
            found.add("residual" if earlier else "add")
        else:
            found.add(op.name)
    return found


def _is_vocabulary(op: GraphOp, graph: OpGraph) -> bool:
    """Whether the op looks up input tokens in a table, rather than positions."""
    maker = graph.tensors[op.inputs[0]].producer
    return maker is None or graph.ops[maker].name == "view"


def _made_by(kind: str, rank: int) -> Flow:
    if kind in ("row", "vocabulary"):
        return SUMMANDS
    if kind == "experts":
        return sliced(0)
    return sliced(rank - 1) if kind == "column" else WHOLE


def _is_weighted(op: GraphOp, graph: OpGraph) -> bool:
    return any(graph.tensors[t].parameter for t in op.inputs)


def _is_between(op: GraphOp, graph: OpGraph) -> bool:
    """Whether an op is a norm's last (it reads the norm's weight) or the sum of two activations."""
    if op.name in ("layer_norm", "rms_norm") or (op.name == "mul" and _is_weighted(op, graph)):
        return True
    shapes = {graph.tensors[t].shape for t in (*op.inputs, *op.outputs)}
    residual = op.name == "add" and len(op.inputs) == 2 and len(shapes) == 1
    return residual and len(shapes.pop()) == 3
