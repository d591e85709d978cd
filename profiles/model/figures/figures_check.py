"""Whether figures account for the trace that they come from: parameters within 0.1 %, forward
matmuls and attention within 1 %."""

from __future__ import annotations

from collections.abc import Sequence

from profiles.errors import InputError
from profiles.model.figures.block_reading import AttentionCall, BlockReading, WeightProduct
from profiles.model.figures.layer_figures import LayerFigures
from profiles.model.figures.transformer import Transformer

PARAMETERS_WITHIN = 0.001
FLOP_WITHIN = 0.01


def check_parameters(found: Transformer, *, traced: int, beside: Sequence[WeightProduct]) -> None:
    """Raises InputError where the figures have others than the `traced` parameters; `beside` are
    weights outside the layers and the head, for the message."""
    told = found.parameters
    if abs(traced - told) <= PARAMETERS_WITHIN * traced:
        return
    where = ""
    if beside:
        largest = max(beside, key=lambda p: p.elements)
        where = f"; beside the layers stands {largest.name} [{largest.k} x {largest.n}]"
    raise InputError(
        f"it has {traced:,} parameters, figures of {_title(found)} have {told:,}: "
        f"{abs(traced - told):,} {'are left over' if traced > told else 'too many'}{where}"
    )


def check_flop(
    found: Transformer,
    layers: Sequence[LayerFigures],
    readings: Sequence[BlockReading],
    *,
    head: WeightProduct,
    tokens: int,
) -> None:
    """Raises InputError where the figures' forward FLOPs are others than the traced ones.

    Attention counts as causal where the trace does not say (a mask without values, scores that are
    written out), with whatever the module's own kernel computes and masks.
    """
    traced = float(sum(reading.work_flop for reading in readings))
    told = 2.0 * tokens * _met_weights(found, layers)
    for layer in layers:
        if layer.call is not None:
            half = _causal_flop(layer.call)
            told += half
            if layer.call.causal is not False:
                traced -= layer.call.work_flop - half
    if abs(traced - told) <= FLOP_WITHIN * traced:
        return
    why = ""
    if any(layer.call is not None and layer.call.causal is False for layer in layers):
        why = "; its attention meets keys on both sides, that of figures only those before a token"
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
        f"{_title(found)} {told:.4g}{why}"
    )


def _met_weights(found: Transformer, layers: Sequence[LayerFigures]) -> float:
    """Weights that a token meets in matmuls, of experts as many as were traced."""
    met = found.num_layers * found.attention_parameters
    met += found.num_dense_layers * found.dense_parameters
    experts = found.num_expert_layers * (
        layers[-1].met * found.expert_parameters
        + found.shared_expert_parameters
        + found.router_parameters
    )
    return met + experts + found.vocab_size * found.hidden_size


def _causal_flop(call: AttentionCall) -> float:
    """FLOPs where a query meets the keys before it alone: half of all pairs."""
    pairs = call.batch * call.heads * call.q_len * call.kv_len
    return float(pairs * (call.head_size + call.value_size))


def _title(found: Transformer) -> str:
    what = f"{found.num_layers} layers of {found.hidden_size}, {found.num_heads} heads"
    if found.num_experts:
        return f"{what}, {found.num_experts} experts of {found.expert_size}"
    return f"{what}, feed-forward {found.ffn_size}"
