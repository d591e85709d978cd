"""`Transformer`: a transformer's figures, where a model is named by numbers and not by code.

Published runs, hardware comparisons and Megatron-style configurations describe a model by its
widths. What is traced from code goes through `graph.py`; this is the other door.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): its ranks and head
    sizes."""

    query_rank: int
    key_value_rank: int
    nope_size: int
    rope_size: int
    value_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformer:
    """A decoder (or encoder) of equal layers; experts in all but the first `first_dense_layers`.

    ffn_size          inner width of a dense feed-forward; 0 where every layer has experts
    gated             two input projections in the feed-forward (SwiGLU), else one
    learned_positions  number of learned position embeddings, 0 for rotary or ALiBi
    biases            linear layers and norms have biases, as GPT's
    """

    num_layers: int
    hidden_size: int
    ffn_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    gated: bool
    tied_embeddings: bool
    num_experts: int = 0
    top_k: int = 0
    expert_size: int = 0
    num_shared_experts: int = 0
    first_dense_layers: int = 0
    learned_positions: int = 0
    biases: bool = False
    latent: LatentAttention | None = None

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.num_experts and not (0 < self.top_k <= self.num_experts and self.expert_size > 0):
            raise InputError(
                f"{self.num_experts} experts need a top_k of 1 to {self.num_experts} and an expert "
                f"size, got {self.top_k} and {self.expert_size}"
            )

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention projections, without biases."""
        h, heads = self.hidden_size, self.num_heads
        if self.latent is None:
            return h * self.head_size * (2 * heads + 2 * self.num_kv_heads)
        x = self.latent
        query = h * x.query_rank + x.query_rank * heads * (x.nope_size + x.rope_size)
        if not x.query_rank:
            query = h * heads * (x.nope_size + x.rope_size)
        key_value = h * (x.key_value_rank + x.rope_size)
        key_value += x.key_value_rank * heads * (x.nope_size + x.value_size)
        return query + key_value + heads * x.value_size * h

    @property
    def dense_parameters(self) -> int:
        """Weights of one dense feed-forward."""
        return (3 if self.gated else 2) * self.hidden_size * self.ffn_size

    @property
    def expert_parameters(self) -> int:
        """Weights of one expert."""
        return (3 if self.gated else 2) * self.hidden_size * self.expert_size

    @property
    def router_parameters(self) -> int:
        """Of one layer of experts."""
        return self.hidden_size * self.num_experts

    @property
    def small_parameters(self) -> int:
        """Norms and biases of one layer (GPT: 13 h with a feed-forward of 4 h)."""
        if not self.biases:
            return 2 * self.hidden_size
        widths = self.head_size * (self.num_heads + 2 * self.num_kv_heads)
        return 4 * self.hidden_size + widths + 2 * self.hidden_size + self.ffn_size

    @property
    def num_expert_layers(self) -> int:
        """Layers with experts."""
        return max(0, self.num_layers - self.first_dense_layers) if self.num_experts else 0

    @property
    def embedding_parameters(self) -> int:
        """One table of tokens, not padded, with learned positions."""
        return self.hidden_size * (self.vocab_size + self.learned_positions)

    @property
    def parameters(self) -> int:
        """All weights."""
        layer = self.attention_parameters + self.small_parameters
        experts = self.num_experts + self.num_shared_experts
        return (
            self.num_layers * layer
            + (self.num_layers - self.num_expert_layers) * self.dense_parameters
            + self.num_expert_layers * (experts * self.expert_parameters + self.router_parameters)
            + self.embedding_parameters
            + (0 if self.tied_embeddings else self.hidden_size * self.vocab_size)
            + self.hidden_size * (2 if self.biases else 1)
        )
