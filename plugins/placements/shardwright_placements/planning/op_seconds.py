"""Seconds and bytes of an op under a strategy, on one rank.

The traced kernels are shrunk to the rank's share and priced by the simulator (traced/op_cost.py):
matmuls, convolutions and attention by their local shapes, all others in proportion to the share of
the op's bytes that the rank has.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from profiles.model.graph import AttentionShape, MatmulShape, Op, OpKind, Phase
from shardwright_placements.op_graph.op_graph import GraphOp, GraphTensor, OpGraph
from shardwright_placements.planning.flow import Layout, backward_of, forward_of, shards
from shardwright_placements.planning.mesh import Mesh
from shardwright_placements.planning.strategies import Strategy
from simulator.traced.op_cost import price_op

STATE_BYTES = 16.0
"""Bytes per element of a weight, its gradient and its optimizer states: mixed-precision Adam
(2 + 2 + 12: Rajbhandari et al., ZeRO, SC 2020, section 3.1)."""
GRADIENT_BYTES = 4.0
"""Bytes per element of the gradient that is summed over ranks that hold the same weight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpPrice:
    """Seconds of one run of an op, forward and backward, and its bytes.

    work_s        kernels
    inner_s       collectives inside the op
    weight_sync_s sum of gradients of shared weights, one micro-batch's part
    weight_bytes  weights with their training states
    inner_bytes   saved by the op in addition to tensors of the graph
    """

    work_s: float
    inner_s: float
    weight_sync_s: float
    weight_bytes: float
    inner_bytes: float

    @property
    def total_s(self) -> float:
        """Sum of the seconds."""
        return self.work_s + self.inner_s + self.weight_sync_s


def price_strategy(
    op: GraphOp,
    graph: OpGraph,
    strategy: Strategy,
    mesh: Mesh,
    micro_batches: int,
    *,
    owned: frozenset[int],
) -> OpPrice:
    """The price of one run of the op under the strategy.

    micro_batches  number of micro-batches per sum of weight gradients
    owned  weights counted for this op (a weight read by several ops counts once)
    """
    share = _held_share(op, graph, strategy, mesh)
    work = sum(
        price_op(shrunk(kernel, op, strategy.cuts, share), mesh.device).time_s
        for kernel in (*op.forward, *op.backward)
        if kernel.kind is not OpKind.VIEW
    )
    inner = sum(
        mesh.collective_s(x.operation, x.memory_bytes, axis) for axis, x in strategy.exchanged
    )
    sync, weight = 0.0, 0.0
    for number, layout in zip(op.inputs, strategy.inputs, strict=True):
        tensor = graph.tensors[number]
        if tensor.parameter and tensor.needs_gradient and number in owned:
            elements = tensor.num_elements / shards(forward_of(layout), mesh.sizes)
            weight += elements * STATE_BYTES
            sync += weight_sync_s(tensor, (layout,), mesh, micro_batches)
    return OpPrice(
        work_s=work,
        inner_s=inner,
        weight_sync_s=sync,
        weight_bytes=weight,
        inner_bytes=op.saved_inner_bytes / math.prod(ranks for _, ranks in strategy.cuts),
    )


def weight_sync_s(
    tensor: GraphTensor, layouts: Sequence[Layout], mesh: Mesh, micro_batches: int
) -> float:
    """Seconds to sum a weight's gradients over ranks, one micro-batch's part.

    layouts  in which the weight is read; its gradient is summed if it is partial in any of them
    """
    elements = tensor.num_elements / shards(forward_of(layouts[0]), mesh.sizes)
    partial = [
        axis
        for axis, flows in enumerate(zip(*layouts, strict=True))
        if any(flow.backward == "P" for flow in flows)
    ]
    size = elements * GRADIENT_BYTES
    return sum(mesh.collective_s("all_reduce", size, axis) for axis in partial) / micro_batches


def tied_sync_s(
    tensor: GraphTensor, layouts: Sequence[Layout], mesh: Mesh, micro_batches: int
) -> float:
    """The part of `weight_sync_s` caused by layouts other than the first."""
    alone = weight_sync_s(tensor, layouts[:1], mesh, micro_batches)
    return weight_sync_s(tensor, layouts, mesh, micro_batches) - alone


def local_bytes(tensor: GraphTensor, placements: tuple[str, ...], mesh: Mesh) -> float:
    """Bytes of a tensor on one rank."""
    return tensor.memory_bytes / shards(placements, mesh.sizes)


def _held_share(op: GraphOp, graph: OpGraph, strategy: Strategy, mesh: Mesh) -> float:
    """Share of the bytes of the op's inputs and outputs that are on one rank."""
    whole = held = 0.0
    tables = op.name == "embedding"
    pairs: list[tuple[int, Layout]] = [
        *zip(op.inputs, strategy.inputs, strict=True),
        *zip(op.outputs, strategy.outputs, strict=True),
    ]
    for number, layout in pairs:
        tensor = graph.tensors[number]
        if tables and tensor.parameter:
            continue  # only the rows that are looked up are read
        most = max(
            local_bytes(tensor, forward_of(layout), mesh),
            local_bytes(tensor, backward_of(layout), mesh),
        )
        whole += tensor.memory_bytes
        held += most
    return held / whole if whole else 1.0


def shrunk(kernel: Op, op: GraphOp, cuts: tuple[tuple[str, int], ...], share: float) -> Op:
    """The kernel with the shapes on one rank."""
    ranks: dict[str, int] = {}
    for role, count in cuts:
        ranks[role] = ranks.get(role, 1) * count
    if kernel.attention is not None:
        return replace(kernel, attention=_attention(kernel.attention, ranks))
    if kernel.matmul is not None:
        turned = kernel.phase is Phase.BACKWARD and kernel.kind is OpKind.MATMUL
        whole = _forward_product(op) if turned else None
        return replace(kernel, matmul=_product(kernel.matmul, ranks, whole))
    moved = share * (kernel.read_bytes + kernel.written_bytes)
    if op.name == "embedding":
        moved = share * 2.0 * _smallest_pass(kernel)
    return replace(kernel, read_bytes=round(moved), written_bytes=0)


def _smallest_pass(kernel: Op) -> float:
    """Bytes that a look-up writes (forward) or reads (backward), without the rest of the table."""
    return float(min(kernel.read_bytes, kernel.written_bytes))


def _attention(shape: AttentionShape, ranks: Mapping[str, int]) -> AttentionShape:
    """The attention of one rank; if rows are cut, of the last rank, which has nearly all
    columns."""
    heads, rows = ranks.get("heads", 1), ranks.get("rows", 1)
    return replace(
        shape,
        batch=max(1, shape.batch // ranks.get("batch", 1)),
        heads=max(1, shape.heads // heads),
        kv_heads=max(1, shape.kv_heads // heads),
        q_len=max(1, shape.q_len // rows),
        causal=shape.causal and rows == 1,
    )


def _forward_product(op: GraphOp) -> MatmulShape | None:
    found = [k.matmul for k in op.forward if k.matmul is not None]
    return found[0] if len(found) == 1 else None


def _product(
    shape: MatmulShape, ranks: Mapping[str, int], forward: MatmulShape | None
) -> MatmulShape:
    """The matmul with its cut indices; a backward's indices are the forward's, permuted.

    Of C[m, n] = A[m, k] B[k, n] the gradients are dA[m, k], summed over n, and dB[k, n] (or its
    transpose), summed over m.
    """
    names = ("m", "n", "k")
    if forward is not None:
        for turned in (("m", "k", "n"), ("k", "n", "m"), ("n", "k", "m")):
            sizes = tuple(getattr(forward, name) for name in turned)
            if sizes == (shape.m, shape.n, shape.k):
                names = turned
                break
    batches = ranks.get("b", 1)
    # A grouped product's weight gradient is traced as one product over all rows.
    rows = batches if shape.batch == 1 else 1
    return MatmulShape(
        batch=max(1, shape.batch // batches),
        m=max(1, shape.m // ranks.get(names[0], 1)),
        n=max(1, shape.n // ranks.get(names[1], 1)),
        k=max(1, shape.k // (ranks.get(names[2], 1) * rows)),
    )
