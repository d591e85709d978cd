"""`figures_of_trace`: a `Transformer` from a traced module.

Names and configurations are not used: layers come from products and attention calls
(layer_figures.py), the vocabulary from the head, embedding tables from parameters without products.
The result is checked against the trace: parameters within 0.1 %, FLOPs of forward matmuls and
attention within 1 %. Otherwise an error names the block and the amount.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from profiles.errors import InputError
from profiles.model.figures.block_reading import (
    AttentionCall,
    BlockReading,
    WeightProduct,
    read_block,
)
from profiles.model.figures.layer_figures import LayerFigures, layer_figures
from profiles.model.figures.transformer import Transformer
from profiles.model.graph import RMS_NORM, ModelGraph

_PARAMETERS_WITHIN = 0.001
_FLOP_WITHIN = 0.01
# Norms and biases are counted individually if the usual count is off by more than this share of all
# parameters.
_SMALL_WITHIN = 0.0005
SOFT_CAPPED = (
    "soft-capped attention scores are priced as the framework's own attention, without the cap"
)
_ADVICE = (
    "Such a model is planned block by block: leave out --stack, and shardwright plan searches over "
    "its own blocks."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFigures:
    """A model by its figures.

    sequence_length  tokens per traced sample, 0 if the figures are valid for any length
    notes            assumptions and omissions of the figures
    entries          of the traced blocks; () if the figures are not from a trace
    """

    figures: Transformer
    sequence_length: int = 0
    notes: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()


def figures_of_trace(graph: ModelGraph) -> ModelFigures:
    """The figures of a graph traced at tp = 1.

    Raises InputError, with the block and the parameters or FLOPs, unless the module is a chain of
    equal transformer layers between an embedding of tokens and their logits.
    """
    try:
        return _Chain(graph).figures()
    except InputError as error:
        raise InputError(
            f"{graph.source or graph.name}: its trace does not give a transformer's figures: "
            f"{error}. {_ADVICE}"
        ) from error


class _Chain:
    """The blocks of a graph: before the layers, the layers, and after them."""

    def __init__(self, graph: ModelGraph) -> None:
        self.graph = graph
        if graph.tp != 1:
            raise InputError(f"it was traced at tp={graph.tp}; figures need tp=1")
        if changed := graph.state + graph.clamped:
            raise InputError(
                f"its forward updates and reads {changed[0]}, which layouts do not describe"
            )
        if graph.branches:
            fork = next(b for b in graph.branches if b.consumers != (b.producer + 1,))
            users = ", ".join(map(str, fork.consumers[:4]))
            more = ", ..." if len(fork.consumers) > 4 else ""
            raise InputError(
                f"its blocks branch: the output of block {fork.producer} is used by blocks "
                f"{users}{more}"
            )
        kinds = [read_block(block, graph.micro_batch) for block in graph.kinds]
        readings = [kinds[ref.kind] for ref in graph.chain]
        mixing = [place for place, reading in enumerate(readings) if reading.attention]
        if not mixing:
            convolutions = sum(reading.convolutions for reading in readings)
            note = f"; it has {convolutions} convolutions" if convolutions else ""
            raise InputError(f"no block has a recognized attention{note}")
        first, last = mixing[0], mixing[-1]
        shape = readings[first].inputs[0] if readings[first].inputs else ()
        if not shape:
            raise InputError(f"block {first} has attention, but no input from an earlier block")
        frozen = sum(
            math.prod(p.full_shape)
            for block in graph.blocks
            for p in block.parameters
            if not p.trainable and not p.tied_to
        )
        if frozen > _PARAMETERS_WITHIN * graph.full_parameter_count:
            raise InputError(f"{frozen:,} of its parameters are frozen; layouts train all")
        self.hidden = shape[-1]
        self.tokens = math.prod(shape[:-1])
        self.sequence = self.tokens // graph.micro_batch
        # Feed-forwards that are separate blocks follow the last attention.
        for behind in readings[last + 1 :]:
            if behind.tables or len([p for p in behind.products if not p.tied]) < 2:
                break
            last += 1
        self.before, self.after = readings[:first], readings[last + 1 :]
        for place, reading in enumerate(self.before):
            if reading.products or reading.convolutions:
                what = "convolutions" if reading.convolutions else reading.products[0].name
                raise InputError(
                    f"block {place} ({reading.label}) applies {what} to the inputs before the "
                    "layers; only a token embedding is supported there"
                )
        self.first = first
        self.layers = [
            part for reading in readings[first : last + 1] for part in _single_layers(reading)
        ]
        self.head = self._head()

    def _head(self) -> WeightProduct:
        """The logits: the widest product after the layers, or at the end of the last one."""
        tail = [p for reading in self.after for p in reading.products]
        rows = {p.full_shape[0] for reading in self.before for p in reading.tables}
        inside = [p for p in self.layers[-1].products if p.tied or p.n in rows]
        found = [p for p in (*tail, *inside) if p.k == self.hidden]
        if not found:
            raise InputError(
                f"no matmul after its layers maps the hidden size {self.hidden} to logits"
            )
        head = max(found, key=lambda p: p.n)
        if head in inside:
            last = self.layers[-1]
            rest = tuple(p for p in last.products if p is not head)
            self.layers[-1] = replace(last, products=rest)
        return head

    # --- layers -----------------------------------------------------------------------------------

    def _layer(self, place: int) -> LayerFigures:
        reading = self.layers[place]
        multiplied = sum(p.elements for p in reading.products)
        # Smaller ones are, for example, biases of experts.
        large = [p for p in reading.tables if 100 * math.prod(p.full_shape) > multiplied]
        if large:
            table = large[0]
            raise InputError(
                f"block {self.first + place} ({reading.label}) has a weight {table.name} "
                f"{list(table.full_shape)} that no matmul uses"
            )
        try:
            return layer_figures(reading, self.hidden, self.tokens)
        except InputError as error:
            raise InputError(f"block {self.first + place} ({reading.label}) has {error}") from error

    def _joined(self) -> list[LayerFigures]:
        """The layers; if attention and feed-forward are separate blocks, two blocks are one
        layer."""
        made: dict[int, LayerFigures] = {}
        found = [
            made.setdefault(id(reading), self._layer(place))
            for place, reading in enumerate(self.layers)
        ]
        alone = [layer for layer in found if layer.attention is None]
        if not alone:
            return found
        pairs = list(zip(found[::2], found[1::2], strict=False))
        if len(found) % 2 or any(
            a.attention is None or a.gated is not None or b.attention is not None for a, b in pairs
        ):
            raise InputError(
                f"{len(alone)} of its {len(found)} layers, at irregular places, have no attention"
            )
        return [replace(b, attention=a.attention, call=a.call) for a, b in pairs]

    # --- figures ----------------------------------------------------------------------------------

    def figures(self) -> ModelFigures:
        layers = self._joined()
        dense = [layer for layer in layers if not layer.num_experts]
        sparse = [layer for layer in layers if layer.num_experts]
        for group in (dense, sparse):
            odd = next((layer for layer in group if layer.kind != group[0].kind), None)
            if odd is not None:
                raise InputError(
                    f"its layers differ: some have {_words(group[0])}, others {_words(odd)}"
                )
        if sparse and layers[: len(dense)] != dense:
            raise InputError(
                "layers with experts alternate with layers without; layouts have all of the latter "
                "first"
            )
        usual = layers[-1]
        if dense and sparse and dense[0].attention != usual.attention:
            raise InputError("attention of layers with experts differs from that of other layers")
        attention = usual.attention
        assert attention is not None
        shared = usual.ffn_size if sparse else 0
        if shared and shared % usual.expert_size:
            raise InputError(
                f"shared experts of total width {shared}, not a multiple of the width "
                f"{usual.expert_size} of an expert"
            )
        gated = {layer.gated for layer in layers if layer.gated is not None}
        if len(gated) > 1:
            raise InputError("some feed-forwards are gated, others are not")
        learned = self._learned()
        windows = [layer.call.window for layer in layers if layer.call and layer.call.window]
        if len(set(windows)) > 1:
            raise InputError(
                f"its attention windows differ: {', '.join(map(str, sorted(set(windows))))} keys"
            )
        capped = any(layer.call is not None and layer.call.capped for layer in layers)
        tables = [p.full_shape for reading in self.layers for p in reading.tables]
        rows = {shape[0] for shape in tables if len(shape) == 2}  # biases of experts, one a row
        found = Transformer(
            num_layers=len(layers),
            hidden_size=self.hidden,
            ffn_size=dense[0].ffn_size if dense else 0,
            num_heads=attention.heads,
            num_kv_heads=attention.kv_heads,
            head_size=attention.head_size,
            vocab_size=self.head.n,
            gated=gated.pop() if gated else False,
            tied_embeddings=self.head.tied,
            num_experts=usual.num_experts,
            top_k=usual.top_k,
            expert_size=usual.expert_size,
            expert_biases=usual.num_experts in rows,
            num_shared_experts=shared // usual.expert_size if shared else 0,
            first_dense_layers=len(dense) if sparse else 0,
            learned_positions=learned,
            latent=attention.latent,
            gated_attention=attention.gated,
            window=windows[0] if windows else 0,
            window_layers=len(windows),
            unfused_gelu=not capped and self._has_unfused_gelu(usual.ffn_size),
        )
        found = self._with_norms(self._with_small(found))
        outside = [p for r in (*self.before, *self.after) for p in r.products]
        outside = [p for p in outside if p is not self.head and not p.tied]
        _check_parameters(found, traced=self.graph.full_parameter_count, outside=outside)
        readings = (*self.before, *self.layers, *self.after)
        _check_flop(found, layers, readings, head=self.head, tokens=self.tokens)
        return ModelFigures(
            figures=found,
            sequence_length=self.sequence,
            notes=_notes(layers),
            entries=tuple(ref.entry for ref in self.graph.chain),
        )

    def _has_unfused_gelu(self, inner: int) -> bool:
        """Whether the first layer computes the tanh of a GELU as a separate op."""
        ops = self.graph.blocks[self.first].forward_ops
        size = self.tokens * inner  # 0 without a dense feed-forward
        return size > 0 and any(op.name == "tanh" and op.written_bytes >= size for op in ops)

    def _with_norms(self, figures: Transformer) -> Transformer:
        """The figures with norms of the first layer other than the usual two: RMS norms in several
        ops, with one row per token, or LayerNorms with biases. Norms of queries and keys have a row
        per head."""
        ops = self.graph.blocks[self.first].forward_ops
        if not figures.biases and any(op.name == "native_layer_norm" for op in ops):
            return replace(figures, special_parts="LayerNorms in layers without biases")
        if any(op.name == RMS_NORM for op in ops):
            return replace(figures, special_parts="fused RMS norms")
        sizes = Counter(op.written_bytes for op in ops if op.name == "rsqrt")
        token = min(sizes, default=0)
        per_head = Counter((figures.num_heads * token, figures.num_kv_heads * token))
        if sizes[token] <= 2 and sizes - Counter({token: 2}) == per_head:
            return replace(figures, query_key_norms=True)
        return replace(figures, special_parts="further norms" if sizes.total() > 2 else "")

    def _learned(self) -> int:
        """Rows of all tables of the hidden size except the vocabulary's."""
        tables = [p for reading in (*self.before, *self.after) for p in reading.tables]
        tables = [p for p in tables if not p.tied_to]
        rows = []
        for p in tables:
            sizes = [size for size in p.full_shape if size > 1]
            if len(sizes) != 2 or sizes[1] != self.hidden:
                raise InputError(
                    f"the width of table {p.name} {list(p.full_shape)} is not the hidden size "
                    f"{self.hidden}"
                )
            rows.append(sizes[0])
        if not rows:
            raise InputError("it has no token embedding: its inputs are not tokens")
        # The tokens' table has one row per logit, apart from padding.
        return sum(rows) - min(rows, key=lambda count: abs(count - self.head.n))

    def _with_small(self, figures: Transformer) -> Transformer:
        """The figures with norms and biases as traced."""
        readings = (*self.before, *self.layers, *self.after)
        vectors = sum(reading.vectors for reading in readings)
        vectors += sum(
            math.prod(p.full_shape)
            for reading in self.layers
            for p in reading.tables
            if not p.tied_to
        )
        # Gates of shared experts, and those of attention with one output per head.
        narrow = {1, 2, 3, figures.num_heads} - {figures.num_experts}
        products = [p for r in self.layers for p in r.products if p.n in narrow and not p.tied]
        vectors += sum(p.elements for p in products)
        plain, biased = figures, replace(figures, biases=True)
        distances = [abs(_small(x) - vectors) for x in (plain, biased)]
        figures = biased if distances[1] < distances[0] else plain
        if min(distances) > _SMALL_WITHIN * self.graph.full_parameter_count:
            final = self.hidden * (2 if figures.biases else 1)
            each = max(1, round((vectors - final) / figures.num_layers))
            figures = replace(figures, vector_parameters=each)
        return figures


def _single_layers(reading: BlockReading) -> Iterator[BlockReading]:
    """The layers of a block with several equal ones: every shape of weight occurs equally often per
    attention; otherwise the block itself."""
    count = len(reading.attention)
    shapes: dict[tuple[int, int, int, int], list[WeightProduct]] = {}
    for p in reading.products:
        shapes.setdefault((p.k, p.n, p.rows, p.experts), []).append(p)
    kinds = {call.kind for call in reading.attention}
    uneven = any(len(same) % count for same in shapes.values()) if count else True
    if count < 2 or uneven or len(kinds) > 1 or reading.vectors % count or reading.tables:
        yield reading
        return
    for place, call in enumerate(reading.attention):
        yield replace(
            reading,
            products=tuple(p for same in shapes.values() for p in same[place::count]),
            attention=(call,),
            vectors=reading.vectors // count,
            work_flop=reading.work_flop // count,
        )


def _small(figures: Transformer) -> int:
    """Elements of norms and biases of all layers and of the final norm."""
    final = figures.hidden_size * (2 if figures.biases else 1)
    return figures.num_layers * figures.small_parameters + final


def _words(layer: LayerFigures) -> str:
    attention = layer.attention
    words = "no attention"
    if attention is not None:
        words = f"{attention.heads} heads of {attention.head_size} ({attention.kv_heads} for keys)"
    if layer.num_experts:
        return f"{words}, {layer.num_experts} experts of {layer.expert_size}"
    return f"{words}, feed-forward of {layer.ffn_size}"


def _notes(layers: Sequence[LayerFigures]) -> tuple[str, ...]:
    calls = [layer.call for layer in layers if layer.call is not None]
    notes = []
    if any(call.capped for call in calls):
        notes.append(SOFT_CAPPED)
    written = sum(not call.fused for call in calls)
    if written:
        notes.append(
            f"attention of {written} layers is written out in matmuls; it is priced as the "
            "framework's own causal attention"
        )
    masked = sum(call.fused and call.causal is None for call in calls)
    if masked:
        notes.append(
            f"attention of {masked} layers takes a mask whose values a trace does not have; it is "
            "priced as causal over all keys"
        )
    if any(layer.num_experts and layer.top_k == layer.num_experts for layer in layers):
        notes.append("every token goes through every expert, as the module computes them")
    return tuple(notes)


def _check_parameters(
    figures: Transformer, *, traced: int, outside: Sequence[WeightProduct]
) -> None:
    """Raises InputError if the parameters of figures and trace differ; `outside` are weights
    outside the layers and the head, for the message."""
    counted = figures.parameters
    if abs(traced - counted) <= _PARAMETERS_WITHIN * traced:
        return
    where = ""
    if outside:
        largest = max(outside, key=lambda p: p.elements)
        where = f"; outside the layers there is {largest.name} [{largest.k} x {largest.n}]"
    raise InputError(
        f"it has {traced:,} parameters, figures of {_title(figures)} have {counted:,}: "
        f"{abs(traced - counted):,} {'are left over' if traced > counted else 'too many'}{where}"
    )


def _check_flop(
    figures: Transformer,
    layers: Sequence[LayerFigures],
    readings: Sequence[BlockReading],
    *,
    head: WeightProduct,
    tokens: int,
) -> None:
    """Raises InputError if the forward FLOPs of figures and trace differ.

    Attention counts as causal unless the trace shows that it is not (a mask with unknown values,
    unfused scores).
    """
    traced = float(sum(reading.work_flop for reading in readings))
    counted = 2.0 * tokens * _active_weights(figures, layers)
    for layer in layers:
        if layer.call is not None:
            half = _causal_flop(layer.call)
            counted += half
            if layer.call.causal is not False:
                traced -= layer.call.work_flop - half
    if abs(traced - counted) <= _FLOP_WITHIN * traced:
        return
    why = ""
    if any(layer.call is not None and layer.call.causal is False for layer in layers):
        why = "; its attention uses keys on both sides, that of figures only keys before a token"
    if head.rows != tokens:
        why += f"; its head runs on {head.rows} of {tokens} positions"
    unread = next((reading for reading in readings if reading.unread), None)
    if unread is not None:
        shape = unread.unread[0]
        why += (
            f"; {unread.label} multiplies [{shape.m} x {shape.k}] by [{shape.k} x {shape.n}], "
            "neither a weight nor attention"
        )
    raise InputError(
        f"its forward pass takes {traced:.4g} FLOPs in matmuls and attention, figures of "
        f"{_title(figures)} {counted:.4g}{why}"
    )


def _active_weights(figures: Transformer, layers: Sequence[LayerFigures]) -> float:
    """Weights per token in matmuls, with the traced number of experts."""
    active = figures.num_layers * figures.attention_parameters
    active += figures.num_dense_layers * figures.dense_parameters
    experts = figures.num_expert_layers * (
        layers[-1].experts_per_token * figures.expert_parameters
        + figures.shared_expert_parameters
        + figures.router_parameters
    )
    return active + experts + figures.vocab_size * figures.hidden_size


def _causal_flop(call: AttentionCall) -> float:
    """FLOPs of causal attention: half of all pairs."""
    pairs = call.batch * call.heads * call.q_len * call.kv_len
    return float(pairs * (call.head_size + call.value_size))


def _title(figures: Transformer) -> str:
    words = f"{figures.num_layers} layers of {figures.hidden_size}, {figures.num_heads} heads"
    if figures.num_experts:
        return f"{words}, {figures.num_experts} experts of {figures.expert_size}"
    return f"{words}, feed-forward {figures.ffn_size}"
