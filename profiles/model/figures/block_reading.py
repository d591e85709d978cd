"""`BlockReading`: a traced block as products with its weights, attention, and what is left.

Every forward matmul is matched with the parameter that it multiplies by sizes: [rows, k] x [k, n]
takes a parameter of k n elements (a stack of experts: E k n), that of its own module first. Two
matmuls without a parameter, [., head] x [head, keys] and [., keys] x [keys, value], are attention
that is not fused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from profiles.model.graph import Block, MatmulShape, Op, OpKind, Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightProduct:
    """Products of `rows` rows in all with one parameter: [rows, k] x [k, n].

    experts  weights of this shape in the parameter: 1, or the number of experts in a stack
    rows     summed over the experts
    tied     the parameter belongs to an earlier block
    """

    name: str
    k: int
    n: int
    rows: int
    experts: int = 1
    tied: bool = False

    @property
    def elements(self) -> int:
        """Of the parameter."""
        return self.experts * self.k * self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """One attention: heads and sizes, and which keys a query meets.

    causal   True, False, or None where the trace does not say (a mask of unknown values, scores
             that are computed by matmuls)
    window   keys that a query meets at most, 0 for all
    fused    one call; else matmuls and a softmax
    capped   tanh of the scores (soft-capping)
    work_flop   as traced
    """

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_size: int
    value_size: int
    causal: bool | None
    fused: bool
    work_flop: int
    window: int = 0
    capped: bool = False

    @property
    def kind(self) -> tuple[int, int, int, int, bool]:
        """What must be equal in all layers: sizes and the length of the keys."""
        return (self.heads, self.kv_heads, self.head_size, self.value_size, self.fused)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockReading:
    """A block; `tables` are parameters of an embedding's lookup or unused ones of two dimensions
    and more, `vectors` the elements of all others (norms, biases), `work_flop` of all matmuls and
    attention calls, `unread` matmuls that are neither with a weight nor attention."""

    label: str
    products: tuple[WeightProduct, ...]
    attention: tuple[AttentionCall, ...]
    tables: tuple[Parameter, ...]
    vectors: int
    work_flop: int
    unread: tuple[MatmulShape, ...]
    convolutions: int
    inputs: tuple[tuple[int, ...], ...]


def read_block(block: Block, micro_batch: int) -> BlockReading:
    """The block, read from its forward ops."""
    matched = _Parameters(block.parameters)
    loose: list[Op] = []
    calls: list[AttentionCall] = []
    for op in block.forward_ops:
        if op.attention is not None:
            calls.append(_fused(op))
        elif op.matmul is not None and op.kind is OpKind.MATMUL and not matched.take(op):
            loose.append(op)
    unread = _unfused(loose, block.forward_ops, micro_batch, calls)
    rest = matched.unused()
    tables = tuple(p for p in rest if len(_sizes(p)) > 1)
    return BlockReading(
        label=block.label,
        products=matched.products(),
        attention=tuple(calls),
        tables=tables,
        vectors=sum(math.prod(p.full_shape) for p in rest if p not in tables and not p.tied_to),
        work_flop=sum(op.work_flop for op in block.forward_ops if op.kind is not OpKind.CONV),
        unread=tuple(op.matmul for op in unread if op.matmul is not None),
        convolutions=sum(op.kind is OpKind.CONV for op in block.forward_ops),
        inputs=tuple(spec.shape for spec in block.inputs),
    )


def _sizes(parameter: Parameter) -> tuple[int, ...]:
    """The dimensions that are not 1."""
    return tuple(size for size in parameter.full_shape if size > 1)


class _Parameters:
    """The parameters of a block, and the rows that each was multiplied with."""

    def __init__(self, parameters: tuple[Parameter, ...]) -> None:
        self._all = parameters
        self._rows = [0] * len(parameters)
        self._of: list[tuple[int, int, int]] = [(0, 0, 1)] * len(parameters)  # k, n, experts

    def take(self, op: Op) -> bool:
        """Whether the op multiplies one of them; it is then counted."""
        shape = op.matmul
        if shape is None:
            return False
        found = self._find(op, shape)
        if found is None:
            return False
        place, k, n, experts = found
        self._of[place] = (k, n, experts)
        self._rows[place] += op.work_flop // (2 * k * n)
        return True

    def _find(self, op: Op, shape: MatmulShape) -> tuple[int, int, int, int] | None:
        best: tuple[tuple[int, ...], tuple[int, int, int, int]] | None = None
        for place, p in enumerate(self._all):
            sizes = _sizes(p)
            if len(sizes) < 2:
                continue
            made = _as_weight(sizes, shape)
            if made is None or (self._rows[place] and self._of[place] != made):
                continue
            path = p.name.rpartition(".")[0]
            inside = op.module == path or op.module.startswith(f"{path}.")
            # Its own module first, then what was multiplied least, then the order.
            rank = (int(not inside), self._rows[place], place)
            if best is None or rank < best[0]:
                best = (rank, (place, *made))
        return best[1] if best is not None else None

    def products(self) -> tuple[WeightProduct, ...]:
        return tuple(
            WeightProduct(
                name=p.name, k=of[0], n=of[1], rows=rows, experts=of[2], tied=bool(p.tied_to)
            )
            for p, of, rows in zip(self._all, self._of, self._rows, strict=True)
            if rows
        )

    def unused(self) -> tuple[Parameter, ...]:
        return tuple(p for p, rows in zip(self._all, self._rows, strict=True) if not rows)


def _as_weight(sizes: tuple[int, ...], shape: MatmulShape) -> tuple[int, int, int] | None:
    """k, n and the number of experts, where a parameter of these sizes is what is multiplied."""
    k, n, elements = shape.k, shape.n, math.prod(sizes)
    first = [math.prod(sizes[:cut]) for cut in range(1, len(sizes))]
    if shape.batch == 1 and elements == k * n and (k in first or n in first):
        return k, n, 1
    stacked = len(sizes) == 3 and set(sizes[1:]) == {k, n} and elements == sizes[0] * k * n
    if stacked and shape.batch in (1, sizes[0]):
        # One slice of a stack of experts at a time, or all in one grouped call.
        return k, n, sizes[0]
    return None


def _fused(op: Op) -> AttentionCall:
    a = op.attention
    assert a is not None
    pairs = a.batch * a.heads * a.q_len * a.kv_len
    widths = op.work_flop * (2 if a.causal else 1) // (2 * pairs) if pairs else 0
    causal: bool | None = a.causal
    reach = a.mask_reach or 0
    if a.mask_reach is not None:
        causal = True if reach else None
    return AttentionCall(
        batch=a.batch,
        heads=a.heads,
        kv_heads=a.kv_heads,
        q_len=a.q_len,
        kv_len=a.kv_len,
        head_size=a.head_dim,
        value_size=widths - a.head_dim,
        causal=causal,
        fused=True,
        work_flop=op.work_flop,
        window=reach if reach < a.kv_len else 0,
    )


def _unfused(
    loose: list[Op], ops: tuple[Op, ...], micro_batch: int, calls: list[AttentionCall]
) -> list[Op]:
    """Adds attention that is written out to `calls`; returns the matmuls that belong to none."""
    unread: list[Op] = []
    place = 0
    while place < len(loose):
        op = loose[place]
        then = loose[place + 1] if place + 1 < len(loose) else None
        call = _written_out(op, then, ops, micro_batch)
        if call is None:
            unread.append(op)
            place += 1
        else:
            calls.append(call)
            place += 2
    return unread


def _written_out(
    op: Op, then: Op | None, ops: tuple[Op, ...], micro_batch: int
) -> AttentionCall | None:
    scores, values = op.matmul, then.matmul if then is not None else None
    if scores is None or values is None or then is None:
        return None
    keys = scores.n
    same = (scores.batch, scores.m, keys) == (values.batch, values.m, values.k)
    heads, rest = divmod(scores.batch * scores.m, micro_batch * keys)
    if not same or rest or not heads or keys < 2 or op.module != then.module:
        return None
    size = scores.batch * scores.m * keys
    capped = any(
        o.name == "tanh" and o.module == op.module and o.written_bytes >= size for o in ops
    )
    reaches = [o.mask_reach for o in ops if o.module == op.module and o.mask_reach is not None]
    return AttentionCall(
        batch=micro_batch,
        heads=heads,
        kv_heads=max(1, scores.batch // micro_batch),
        q_len=keys,
        kv_len=keys,
        head_size=scores.k,
        value_size=values.n,
        causal=True if reaches else None,
        fused=False,
        work_flop=op.work_flop + then.work_flop,
        window=min((reach for reach in reaches if reach < keys), default=0),
        capped=capped,
    )
