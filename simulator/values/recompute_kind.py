"""Kinds of activation recomputation (checkpointing) of a layer.

A kind frees some of the layer's kept tensors (`KeptTensor.part`) and runs shares of its forward
again in backward. A new kind is one entry of `RECOMPUTE_KINDS`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from profiles.errors import UnknownNameError
from profiles.model.figures.transformer import Transformer


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """Shares (0 to 1) of a layer's forward that run again.

    matmul               of the matmuls other than experts
    routed               of experts' matmuls and the layer's messages; None: as `matmul`
    core, unfused_core   of the attention core: fused, and with scores in memory (its softmax is
                         freed)
    passes               of the elementwise passes over activations
    """

    matmul: float = 0.0
    routed: float | None = None
    core: float = 0.0
    unfused_core: float = 0.0
    passes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecomputeKind:
    """A kind of recomputation.

    frees   parts of a layer that are not kept
    again   recomputed shares, by model
    latent  whether only latent attention has the freed parts; other models free nothing
    """

    frees: tuple[str, ...]
    again: Callable[[Transformer], Again]
    latent: bool = False

    def suits(self, model: Transformer) -> bool:
        """Whether the model has the freed parts."""
        return model.latent is not None or not self.latent


_ACTIVATION = ("activation", "expert-activation")
_INNER = ("mlp", "mlp-again", "routing", "experts", "shared", *_ACTIVATION)
# Shares of a fused layer's elementwise passes at Llama's widths (megatron-core.toml: 10 over the
# hidden size, of which 4 in the two norms, and 3 over an inner width of 3.5 hidden sizes).
_OF_NORMS, _OF_ACTIVATION = 0.2, 0.5
_ATTENTION = ("attention", "attention-again", "projected", "core")


def _always(again: Again) -> Callable[[Transformer], Again]:
    return lambda model: again


def _attention_module(model: Transformer) -> Again:
    """Shares for the four matmuls around the attention core, the core, and the rotary embedding (an
    eighth of an eager layer's passes at Llama's widths)."""
    mixer = model.mixer_parameters
    return Again(
        matmul=mixer / (mixer + model.dense_parameters), core=1.0, unfused_core=1.0, passes=0.25
    )


def _up_projection(model: Transformer) -> Again:
    """The up projections of queries, keys and values, as a share of the matmuls other than experts.
    No messages are repeated. The rotary embedding is ignored, as in the forward."""
    x = model.latent
    if x is None:
        return Again()
    up = x.query_rank * (x.nope_size + x.rope_size) + x.key_value_rank * (
        x.nope_size + x.value_size
    )
    dense = model.num_dense_layers * model.dense_parameters
    shared = model.num_expert_layers * (model.shared_expert_parameters + model.router_parameters)
    every = model.mixer_parameters + (dense + shared) / model.num_layers
    return Again(matmul=model.num_heads * up / every, routed=0.0)


def _every_second_matmul(model: Transformer) -> Again:
    """Shares for the key, output and up projections, three of a layer's seven matmuls. Without a
    gate there are six matmuls, and the last one is not recomputed, because no op needs its
    output."""
    query, key = model.num_heads * model.head_size, model.num_kv_heads * model.head_size
    again = key + query + (model.ffn_size if model.gated else 0)
    every = 2 * query + 2 * key + (3 if model.gated else 2) * model.ffn_size
    return Again(matmul=again / every, passes=1.0)


RECOMPUTE_KINDS: dict[str, RecomputeKind] = {
    "none": RecomputeKind(frees=(), again=_always(Again())),
    # Korthikanti et al., arXiv 2205.05198, section 5; no effect on a fused core without scores.
    "selective": RecomputeKind(frees=("core",), again=_always(Again(unfused_core=1.0))),
    # The attention module as a whole (our executor).
    "attention": RecomputeKind(frees=_ATTENTION, again=_attention_module),
    # NeMo's "mlp": the feed-forward part, including experts.
    "mlp": RecomputeKind(frees=_INNER, again=_always(Again(matmul=0.5, passes=0.5))),
    # Megatron-Core's --recompute-modules: layernorm, moe_act (in forks also activation functions of
    # dense layers), both, and layernorm with moe or mlp. Only outputs are freed.
    "norm": RecomputeKind(frees=("normed",), again=_always(Again(passes=_OF_NORMS))),
    "activation": RecomputeKind(frees=_ACTIVATION, again=_always(Again(passes=_OF_ACTIVATION))),
    "norm-activation": RecomputeKind(
        frees=("normed", *_ACTIVATION), again=_always(Again(passes=_OF_NORMS + _OF_ACTIVATION))
    ),
    "norm-mlp": RecomputeKind(
        frees=("normed", *_INNER), again=_always(Again(matmul=0.5, passes=0.5 + _OF_NORMS))
    ),
    # mla_up_proj: queries, keys and values from their latents.
    "up-projection": RecomputeKind(frees=("projected",), again=_up_projection, latent=True),
    # MaxText's "minimal", which keeps the outputs of matmuls.
    "minimal": RecomputeKind(
        frees=("core", "norm", "normed", *_ACTIVATION), again=_always(Again(passes=1.0))
    ),
    # torchtitan's selective kind, which keeps the output of every second matmul.
    "alternate": RecomputeKind(
        frees=("norm", "normed", "attention-again", "mlp-again", "routing", "shared"),
        again=_every_second_matmul,
    ),
    "full": RecomputeKind(
        frees=("norm", "normed", *_ATTENTION, *_INNER),
        again=_always(Again(matmul=1.0, core=1.0, unfused_core=1.0, passes=1.0)),
    ),
}
"""All kinds, by name (`TrainingRun.recompute`)."""


def recompute_kind(name: str) -> RecomputeKind:
    """The kind with this name; raises UnknownNameError."""
    if name not in RECOMPUTE_KINDS:
        raise UnknownNameError("recompute kind", name, RECOMPUTE_KINDS)
    return RECOMPUTE_KINDS[name]
