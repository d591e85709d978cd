"""`BlockReading`: a traced block as products with weights, attention calls, and the rest.

Every forward matmul is matched with its parameter by sizes: [rows, k] x [k, n] needs a parameter of
k n elements (E k n for a stack of experts), preferably of the same module. Two matmuls without a
parameter, [., head] x [head, keys] and [., keys] x [keys, value], are unfused attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from profiles.model.graph import Block, MatmulShape, Op, OpKind, Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightProduct:
    """Products with one parameter: [rows, k] x [k, n].

    experts  number of weights in the parameter: 1, or the experts of a stack
    rows     in all products, summed over the experts
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
        """Elements of the parameter."""
        return self.experts * self.k * self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCall:
    """One attention.

    causal   None if the trace does not show it (a mask with unknown values, unfused scores)
    window   maximum number of keys per query, 0 for all
    fused    one call; otherwise matmuls and a softmax
    capped   tanh of the scores (soft-capping)
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
        """The properties that must be equal in all layers."""
        return (self.heads, self.kv_heads, self.head_size, self.value_size, self.fused)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockReading:
    """A block.

    tables     parameters of two or more dimensions without a product (embeddings)
    vectors    elements of other parameters without a product (norms, biases)
    work_flop  FLOPs of all matmuls and attention calls
    unread     matmuls that are neither with a weight nor attention
    """

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
    weights = _Weights(block.parameters)
    products = [op for op in block.forward_ops if op.kind is OpKind.MATMUL and op.matmul]
    loose = [op for op in products if not weights.take(op)]
    calls = [_fused(op) for op in block.forward_ops if op.attention is not None]
    unread: list[MatmulShape] = []
    while loose:
        op = loose.pop(0)
        call = _written_out(op, loose[0], block.forward_ops, micro_batch) if loose else None
        if call is not None:
            calls.append(call)
            loose.pop(0)
        elif op.matmul is not None:
            unread.append(op.matmul)
    rest = [p for place, p in enumerate(block.parameters) if place not in weights.multiplied]
    tables = tuple(p for p in rest if len(_sizes(p)) > 1)
    return BlockReading(
        label=block.label,
        products=weights.products(),
        attention=tuple(calls),
        tables=tables,
        vectors=sum(math.prod(p.full_shape) for p in rest if p not in tables and not p.tied_to),
        work_flop=sum(op.work_flop for op in block.forward_ops if op.kind is not OpKind.CONV),
        unread=tuple(unread),
        convolutions=sum(op.kind is OpKind.CONV for op in block.forward_ops),
        inputs=tuple(spec.shape for spec in block.inputs),
    )


def _sizes(parameter: Parameter) -> tuple[int, ...]:
    """The dimensions that are not 1."""
    return tuple(size for size in parameter.full_shape if size > 1)


class _Weights:
    """The parameters of a block; `multiplied` has those with products: index -> (k, n, experts) and
    rows."""

    def __init__(self, parameters: tuple[Parameter, ...]) -> None:
        self._all = parameters
        self.multiplied: dict[int, tuple[tuple[int, int, int], int]] = {}

    def take(self, op: Op) -> bool:
        """Whether the op multiplies a parameter, which is recorded. Ties are broken by the op's
        module, then by fewest rows, then by order."""
        found = []
        for place, p in enumerate(self._all):
            made = _as_weight(_sizes(p), op.matmul)
            known, rows = self.multiplied.get(place, (made, 0))
            if made is not None and known == made:
                path = p.name.rpartition(".")[0]
                outside = not f"{op.module}.".startswith(f"{path}.")
                found.append((outside, rows, place, made))
        if not found:
            return False
        _, rows, place, made = min(found)
        rows += op.work_flop // (2 * made[0] * made[1])
        if rows:
            self.multiplied[place] = made, rows
        return True

    def products(self) -> tuple[WeightProduct, ...]:
        """One per parameter with at least one row."""
        return tuple(
            WeightProduct(
                name=self._all[place].name,
                k=k,
                n=n,
                rows=rows,
                experts=experts,
                tied=bool(self._all[place].tied_to),
            )
            for place, ((k, n, experts), rows) in sorted(self.multiplied.items())
        )


def _as_weight(sizes: tuple[int, ...], shape: MatmulShape | None) -> tuple[int, int, int] | None:
    """k, n and the number of experts if a parameter of these sizes fits the product, or None."""
    if shape is None or len(sizes) < 2:
        return None
    k, n, elements = shape.k, shape.n, math.prod(sizes)
    first = [math.prod(sizes[:cut]) for cut in range(1, len(sizes))]
    if shape.batch == 1 and elements == k * n and (k in first or n in first):
        return k, n, 1
    stacked = len(sizes) == 3 and set(sizes[1:]) == {k, n} and elements == sizes[0] * k * n
    if stacked and shape.batch in (1, sizes[0]):
        # A slice of a stack of experts, or all in one grouped call.
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


def _written_out(op: Op, then: Op, ops: tuple[Op, ...], micro_batch: int) -> AttentionCall | None:
    """The unfused attention that two matmuls compute, or None."""
    scores, values = op.matmul, then.matmul
    if scores is None or values is None:
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
