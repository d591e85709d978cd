"""`LayerFigures`: widths, heads and experts of a layer, from the matrix products of a traced block.

Widths are computed from sums, not from names or order, so that fused and separate projections, and
sequential and parallel attention and feed-forward, give the same result. With H the hidden size, a
the width of attention's projections (from the attention call), d the width of its output:

    elements of all weights that are applied to every token / H  =  a + (1 + w) I
    sum of k of those with n = H                                 =  d + I

where the feed-forward has w projections to the inner width I (2: gated) and one from it. A gate of
the attention's output is one more projection: of width d, or one output per head. Experts are the
weights that are not applied to every token; the same two equations hold for them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from profiles.errors import InputError
from profiles.model.figures.block_reading import AttentionCall, BlockReading, WeightProduct
from profiles.model.figures.transformer import LatentAttention

# The number of experts per token is an integer, up to this deviation.
_ROUNDING = 0.03
# A gate of a shared expert has one output; projections with fewer outputs are no feed-forward.
_NARROW = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """The attention of a layer, as in `Transformer`."""

    heads: int
    kv_heads: int
    head_size: int
    latent: LatentAttention | None = None
    gated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFigures:
    """A layer: its attention and its feed-forward.

    attention   None for a layer without attention
    call        the traced attention
    ffn_size    of the feed-forward for every token (dense or shared experts), 0 for none
    gated       None without a feed-forward
    experts_per_token  as traced: top_k, except for rounding of rows
    """

    attention: Attention | None
    call: AttentionCall | None
    ffn_size: int = 0
    gated: bool | None = None
    num_experts: int = 0
    top_k: int = 0
    expert_size: int = 0
    experts_per_token: float = 0.0

    @property
    def kind(self) -> LayerFigures:
        """The properties that must be equal in all layers of one kind; windows may differ."""
        return replace(self, call=None, experts_per_token=0.0)


def layer_figures(reading: BlockReading, hidden: int, tokens: int) -> LayerFigures:
    """The figures of a block that is one layer; `tokens` is the number of tokens of a pass.

    Raises InputError, with the reason, for other blocks.
    """
    if reading.convolutions:
        raise InputError(f"{reading.convolutions} convolutions")
    if len(reading.attention) > 1:
        raise InputError(f"{len(reading.attention)} attention calls in one block")
    routed = tuple(p for p in reading.products if p.experts > 1 or p.rows < tokens)
    if not routed:
        routed = _used_by_all(reading.products, hidden)
    common = tuple(p for p in reading.products if p not in routed and p.n >= _NARROW)
    experts, size, gated, used = _experts(routed, hidden, tokens)
    if experts:
        routers = [p for p in common if (p.k, p.n) == (hidden, experts)]
        if not routers:
            raise InputError(f"{experts} experts, but no router of {hidden} x {experts}")
        common = tuple(p for p in common if p is not routers[-1])
    call = reading.attention[0] if reading.attention else None
    attention, inner, ways = _common(common, hidden, call)
    if inner and experts and (ways == 2) != gated:
        raise InputError("gated experts with an ungated feed-forward, or vice versa")
    dense = ways == 2 if inner else None
    return LayerFigures(
        attention=attention,
        call=call,
        ffn_size=inner,
        gated=gated if experts else dense,
        num_experts=experts,
        top_k=round(used),
        expert_size=size,
        experts_per_token=used,
    )


class _FeedForward(NamedTuple):
    """A feed-forward: inner width, number of input projections, and how many square weights must
    be outputs of it or of attention for these to be right."""

    inner: int
    ways: int
    squares: int


# --- weights for every token ----------------------------------------------------------------------


def _common(
    products: tuple[WeightProduct, ...], hidden: int, call: AttentionCall | None
) -> tuple[Attention | None, int, int]:
    """Attention, and of the feed-forward the inner width and the number of input projections."""
    total = sum(p.elements for p in products)
    if call is None:
        alone = _feed_forward(products, hidden, total, 0)
        return None, alone.inner, alone.ways
    out = call.heads * call.value_size
    if any(hidden not in (p.k, p.n) for p in products) or call.head_size != call.value_size:
        latent, elements = _latent(products, hidden, call)
        if latent is not None:
            behind = _feed_forward(products, hidden, total - elements, out)
            attention = Attention(
                heads=call.heads, kv_heads=call.heads, head_size=call.head_size, latent=latent
            )
            return attention, behind.inner, behind.ways
    inside = [p for p in products if hidden not in (p.k, p.n)]
    if inside:
        listed = ", ".join(f"{p.name} [{p.k} x {p.n}]" for p in inside[:3])
        raise InputError(f"weights without the hidden size {hidden} as a dimension: {listed}")
    fits: list[tuple[_FeedForward, Attention]] = []
    for gate in (0, call.heads, out):
        for kv_heads in _kv_heads(products, hidden, call):
            width = gate + out + call.heads * call.head_size
            width += kv_heads * (call.head_size + call.value_size)
            try:
                behind = _feed_forward(products, hidden, total - width * hidden, out)
            except InputError:
                continue
            attention = Attention(
                heads=call.heads,
                kv_heads=kv_heads,
                head_size=call.head_size,
                gated=gate == out,
            )
            fits.append((behind, attention))
            break
    if fits and call.head_size != call.value_size:
        raise InputError(f"heads of {call.head_size} for queries and {call.value_size} for values")
    if fits:
        behind, attention = min(fits, key=lambda fit: fit[0].squares)
        return attention, behind.inner, behind.ways
    raise InputError(
        f"{total:,} weights used by every token do not match an attention of {call.heads} heads "
        f"of {call.head_size} and a feed-forward with one or two input matrices and one output"
    )


def _kv_heads(
    products: tuple[WeightProduct, ...], hidden: int, call: AttentionCall
) -> Iterator[int]:
    """Possible numbers of key-value heads, likely ones first: the keys passed to attention may be
    repeated for each query head."""
    widths = [p.n for p in products if p.k == hidden]
    size, heads = call.head_size, call.heads
    likely = []
    for kv in (n for n in range(1, call.kv_heads + 1) if call.kv_heads % n == 0):
        # Queries and, if square, the output projection have the width of keys of all heads.
        need = 2 if kv < heads else 3 + int(heads * size == hidden)
        separate = widths.count(kv * size) >= need
        # A pair of that width is a gated feed-forward's two input projections.
        fused = widths.count((heads + 2 * kv) * size) % 2 == 1
        halves = kv < heads and 2 * kv * size in widths
        if separate or fused or halves:
            likely.append(kv)
    yield from reversed(likely)
    others = (n for n in range(call.kv_heads, 0, -1) if call.kv_heads % n == 0)
    yield from (n for n in others if n not in likely)


def _feed_forward(
    products: tuple[WeightProduct, ...], hidden: int, elements: int, out: int
) -> _FeedForward:
    """The feed-forward, from the elements of weights other than attention's.

    out  input width of attention's output projection

    Raises InputError if the two equations have no solution.
    """
    left, rest = divmod(elements, hidden)
    if rest or left < 0:
        raise InputError("more weights in attention than the block has")
    if left == 0:
        return _FeedForward(0, 0, 0)
    squares = sum(p.k == p.n == hidden for p in products)
    given = sum(p.k for p in products if p.n == hidden and p.k != hidden)
    for ways in (2, 1):
        inner, uneven = divmod(left, 1 + ways)
        outputs, other = divmod(inner + out - given, hidden)
        # A square output projection of attention is one of them, if there are square ones.
        least = min(squares, 1) if out == hidden else 0
        if not uneven and not other and least <= outputs <= squares:
            return _FeedForward(inner, ways, outputs)
    raise InputError(
        f"weights of width {left:,} without attention do not match a feed-forward with one or two "
        "input matrices and one output"
    )


def _latent(
    products: tuple[WeightProduct, ...], hidden: int, call: AttentionCall
) -> tuple[LatentAttention | None, int]:
    """Low-rank queries, keys and values (DeepSeek-V2), and the elements of all their weights."""
    heads, key, value = call.heads, call.head_size, call.value_size
    taken = {p.n for p in products if p.k == hidden}
    given: dict[int, int] = defaultdict(int)
    for p in products:
        if hidden not in (p.k, p.n) or (p.k != hidden and p.n == heads * key):
            given[p.k] += p.n
    # The queries' rank is the width of a product; that of keys and values includes rotary keys.
    ranks = [rank for rank, width in given.items() if width == heads * key and rank in taken]
    for query in [*ranks, 0]:
        for rank, width in given.items():
            nope, uneven = divmod(width, heads)
            nope -= value
            rope = key - nope
            # The rotary keys come with the low-rank ones or from a separate projection.
            made = rank + rope in taken or {rank, rope} <= taken
            if rank == query or uneven or nope < 1 or rope < 0 or not made:
                continue
            found = LatentAttention(
                query_rank=query,
                key_value_rank=rank,
                nope_size=nope,
                rope_size=rope,
                value_size=value,
            )
            elements = hidden * (rank + rope) + rank * width + heads * value * hidden
            elements += (hidden + heads * key) * query if query else hidden * heads * key
            return found, elements
    return None, 0


# --- experts --------------------------------------------------------------------------------------


def _experts(
    routed: tuple[WeightProduct, ...], hidden: int, tokens: int
) -> tuple[int, int, bool, float]:
    """Number of experts, inner width, whether gated, and experts per token."""
    if not routed:
        return 0, 0, False, 0.0
    counts = {p.experts for p in routed}
    if counts == {1}:
        # One module per expert: as many as weights with the hidden size as output.
        shapes: dict[tuple[int, int], int] = defaultdict(int)
        for p in routed:
            shapes[p.k, p.n] += 1
        experts = min(shapes.values())
    else:
        experts = max(counts)
        if counts != {experts}:
            raise InputError(f"weights stacked for different numbers of experts: {sorted(counts)}")
    elements = sum(p.elements for p in routed)
    if elements % (experts * hidden) or any(hidden not in (p.k, p.n) for p in routed):
        raise InputError("experts of unequal size, or without the hidden size as a dimension")
    one = tuple(replace(p, experts=1) for p in _one_expert(routed, experts))
    size, ways, _ = _feed_forward(one, hidden, sum(p.elements for p in one), 0)
    rows = sum(p.rows * p.k * p.n for p in routed) / sum(p.k * p.n for p in one)
    used = rows / tokens
    # Rows are integers: each expert may have half a row more or less than its share.
    if (
        not 1 <= round(used) <= experts
        or abs(used - round(used)) > experts / (2 * tokens) + _ROUNDING
    ):
        raise InputError(f"{used:.2f} experts per token, which is not a whole number")
    return experts, size, ways == 2, used


def _used_by_all(products: tuple[WeightProduct, ...], hidden: int) -> tuple[WeightProduct, ...]:
    """The weights of experts that are applied to every token: members of a list of modules with the
    same number of members as a router has outputs."""
    groups: dict[str, list[WeightProduct]] = defaultdict(list)
    for p in products:
        groups[re.sub(r"\d+", "#", p.name)].append(p)
    counts = {len(same) for same in groups.values() if len(same) > 1}
    if len(counts) != 1 or not any((p.k, p.n) == (hidden, *counts) for p in products):
        return ()
    return tuple(p for same in groups.values() if len(same) > 1 for p in same)


def _one_expert(routed: tuple[WeightProduct, ...], experts: int) -> Iterator[WeightProduct]:
    """The weights of one expert: its share of each shape."""
    if routed[0].experts > 1:
        yield from routed
        return
    shapes: dict[tuple[int, int], list[WeightProduct]] = defaultdict(list)
    for p in routed:
        shapes[p.k, p.n].append(p)
    for same in shapes.values():
        if len(same) % experts:
            raise InputError("experts of different shapes")
        yield from same[: len(same) // experts]
