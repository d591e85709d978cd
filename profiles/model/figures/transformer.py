"""`Transformer`: a model described by its sizes (layers, widths, heads, experts).

Published runs, hardware comparisons and Megatron-style configurations describe models this way;
models traced from code are in `graph.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from profiles.errors import InputError, UnknownNameError

_RULES = ("ssd", "delta", "scan")


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpace:
    """The recurrence over a state that replaces attention in a layer.

    rule  ssd    Mamba-2 (Dao and Gu, arXiv 2405.21060): a scalar decay per head, computed in
                 chunks by matmuls (section 6)
          delta  gated delta rule (Yang, Kautz and Hatamizadeh, arXiv 2412.06464; Qwen3-Next):
                 like ssd, with keys and queries in place of B and C, and two gates
          scan   Mamba (Gu and Dao, arXiv 2312.00752; Jamba): a decay per channel and state, one
                 fused scan without matmuls
    heads, head_size   their product is the inner width (of `scan`: the number of channels)
    state_size         states per channel
    groups             groups of heads that share B and C; of `delta`, heads of keys and queries
    conv_width         taps of the causal convolution before the recurrence
    chunk              tokens computed together
    step_rank          of `scan`: rank of the projection to step sizes

    Raises InputError for counts below 1, UnknownNameError for another rule.
    """

    heads: int
    head_size: int
    state_size: int
    groups: int = 1
    rule: str = "ssd"
    conv_width: int = 4
    chunk: int = 128
    step_rank: int = 0

    def __post_init__(self) -> None:
        if self.rule not in _RULES:
            raise UnknownNameError("state rule", self.rule, _RULES)
        for name in ("heads", "head_size", "state_size", "groups", "conv_width", "chunk"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.heads % self.groups:
            raise InputError(f"state: {self.groups} groups do not divide {self.heads} heads")

    @property
    def inner_size(self) -> int:
        """Width of the values."""
        return self.heads * self.head_size

    @property
    def shared_size(self) -> int:
        """Width of B and C together (keys and queries)."""
        return 2 * self.groups * self.state_size

    @property
    def gate_size(self) -> int:
        """Outputs of the input projection per head: step sizes; of `delta` decay and strength."""
        return {"ssd": self.heads, "delta": 2 * self.heads, "scan": 0}[self.rule]

    @property
    def input_size(self) -> int:
        """Outputs of the input projection: values, their gate z, B and C, gates. A `scan` computes
        B, C and the step's factor from the values by a separate projection."""
        if self.rule == "scan":
            return 2 * self.inner_size
        return 2 * self.inner_size + self.shared_size + self.gate_size

    @property
    def convolved_size(self) -> int:
        """Channels of the causal convolution."""
        return self.inner_size if self.rule == "scan" else self.inner_size + self.shared_size

    def parameters(self, hidden_size: int) -> int:
        """Weights of one layer's mixer, with its convolution, decays and norm."""
        inner = self.inner_size
        matrices = hidden_size * (self.input_size + inner)
        small = self.convolved_size * self.conv_width
        if self.rule == "scan":
            step = self.step_rank
            matrices += inner * (step + 2 * self.state_size) + step * inner
            return matrices + small + inner * (self.state_size + 2)
        return matrices + small + 3 * self.heads + inner


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
    """A decoder (or encoder) of layers; experts in all but the first `first_dense_layers`, or in
    every `expert_every`-th layer after them.

    ffn_size          inner width of a dense feed-forward; 0 if every layer has experts
    gated             two input projections in the feed-forward (SwiGLU), otherwise one
    learned_positions  number of learned position embeddings, 0 for rotary or ALiBi
    biases            linear layers and norms have biases, as in GPT
    expert_biases     experts' linear layers have biases, as in gpt-oss; not counted as weights
    gated_attention   the attention's output is multiplied by a gate, projected with the queries
                      (Qwen3-Next)
    window            maximum number of keys per query in `window_layers` of the layers with
                      attention; the others have all keys
    state             of `state_layers` layers with a recurrence in place of attention
    attention_layers  layers with attention; 0: all but `state_layers`
    feed_forward_layers   layers with a feed-forward; 0: all. A hybrid may count each block as a
                          layer (Nemotron-H, arXiv 2504.03624, section 2.1), so that a layer has a
                          mixer or a feed-forward
    expert_input      input width of experts, projected from the hidden size and back (LatentMoE,
                      arXiv 2601.18089); 0 for the hidden size
    unfused_gelu      GELU by its tanh approximation, written as several ops (`gelu_new` of
                      transformers), which eager PyTorch runs one by one
    whole_vocabulary   our executor does not split embedding and head, since the loss takes all
                       logits (trace_vocabulary.py)
    whole_tokens       its tensor-parallel ranks cannot share the tokens between their layers
    query_key_norms    the queries and keys of each head are normalised (Qwen3, section 2 of arXiv
                       2505.09388)
    special_parts      parts of a layer that figures do not describe, as text: norms of all queries,
                       scores that are kept
    vector_parameters  average norms and biases per layer, if counted; 0: from `biases`
    predicted_ahead   further tokens predicted by one block of `predicting_layers` layers each, with
                      separate logits (multi-token prediction, DeepSeek-V3, arXiv 2412.19437,
                      section 2.2)
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
    expert_every: int = 1
    learned_positions: int = 0
    biases: bool = False
    expert_biases: bool = False
    latent: LatentAttention | None = None
    window: int = 0
    window_layers: int = 0
    state: StateSpace | None = None
    state_layers: int = 0
    attention_layers: int = 0
    feed_forward_layers: int = 0
    expert_input: int = 0
    vector_parameters: int = 0
    predicted_ahead: int = 0
    predicting_layers: int = 1
    unfused_gelu: bool = False
    gated_attention: bool = False
    whole_vocabulary: bool = False
    whole_tokens: bool = field(default=False, compare=False)
    query_key_norms: bool = False
    special_parts: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        counts = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_size")
        for name in (*counts, "expert_every"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.num_experts and not (0 < self.top_k <= self.num_experts and self.expert_size > 0):
            raise InputError(
                f"{self.num_experts} experts need a top_k of 1 to {self.num_experts} and an expert "
                f"size, got {self.top_k} and {self.expert_size}"
            )
        if bool(self.state_layers) != (self.state is not None):
            raise InputError("state_layers and state are given together or not at all")
        if not 0 <= self.state_layers <= self.num_layers:
            raise InputError(f"state_layers={self.state_layers} of {self.num_layers} layers")
        if not 0 <= self.window_layers <= self.attention_count:
            raise InputError(
                f"{self.window_layers} layers with a window, but {self.attention_count} have "
                "attention"
            )
        if self.window < 0 or (self.window_layers and not self.window):
            raise InputError(f"{self.window_layers} layers need a window of 1 key or more")

    @property
    def uncounted(self) -> str:
        """Parts of its layers that our executor's counts leave out, as text. These counts are of
        Llama, BERT and GPT-2 (profiles/data/frameworks/torch.toml)."""
        parts = [self.special_parts]
        parts += ["experts"] * bool(self.num_experts)
        parts += ["latent attention"] * (self.latent is not None)
        parts += ["a recurrence"] * bool(self.state_layers)
        return ", ".join(filter(None, parts))

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's attention projections, without biases."""
        h, heads = self.hidden_size, self.num_heads
        if self.latent is None:
            queries = heads * (2 if self.gated_attention else 1)
            return h * self.head_size * (queries + heads + 2 * self.num_kv_heads)
        x = self.latent
        query = h * x.query_rank + x.query_rank * heads * (x.nope_size + x.rope_size)
        if not x.query_rank:
            query = h * heads * (x.nope_size + x.rope_size)
        key_value = h * (x.key_value_rank + x.rope_size)
        key_value += x.key_value_rank * heads * (x.nope_size + x.value_size)
        return query + key_value + heads * x.value_size * h

    @property
    def attention_count(self) -> int:
        """Layers with attention."""
        return self.attention_layers or self.num_layers - self.state_layers

    @property
    def feed_forward_count(self) -> int:
        """Layers with a feed-forward, dense or of experts."""
        if not (self.ffn_size or self.num_experts):
            return 0
        return self.feed_forward_layers or self.num_layers

    @property
    def is_even(self) -> bool:
        """True if every layer has attention and a feed-forward."""
        return self.attention_count == self.feed_forward_count == self.num_layers

    @property
    def num_dense_layers(self) -> int:
        """Layers with a dense feed-forward."""
        return self.feed_forward_count - self.num_expert_layers

    @property
    def dense_density(self) -> float:
        """Share of the layers without experts that have a dense feed-forward; below 1 in
        hybrids."""
        others = self.num_layers - self.num_expert_layers
        return self.num_dense_layers / others if others else 1.0

    @property
    def attention_share(self) -> float:
        """Share of the layers with attention."""
        return self.attention_count / self.num_layers

    @property
    def state_share(self) -> float:
        """Share of the layers with a state."""
        return self.state_layers / self.num_layers

    @property
    def blocks_per_layer(self) -> float:
        """Mixers and feed-forwards per layer; below 2 in hybrids."""
        mixers = self.attention_count + self.state_layers
        return (mixers + self.feed_forward_count) / self.num_layers

    @property
    def expert_width(self) -> int:
        """Input width of experts."""
        return self.expert_input or self.hidden_size

    @property
    def mixer_parameters(self) -> float:
        """Weights of the attention or state of an average layer."""
        if self.state is None:
            return self.attention_parameters * self.attention_share
        state = self.state.parameters(self.hidden_size)
        return self.attention_parameters * self.attention_share + state * self.state_share

    @property
    def dense_parameters(self) -> int:
        """Weights of one dense feed-forward."""
        return (3 if self.gated else 2) * self.hidden_size * self.ffn_size

    @property
    def expert_parameters(self) -> int:
        """Weights of one routed expert."""
        return (3 if self.gated else 2) * self.expert_width * self.expert_size

    @property
    def shared_expert_parameters(self) -> int:
        """Weights of the shared experts of one layer, with the full hidden size as input."""
        one = (3 if self.gated else 2) * self.hidden_size * self.expert_size
        return self.num_shared_experts * one

    @property
    def router_parameters(self) -> int:
        """Weights of one layer's router, with the projections to the experts' width and back."""
        return self.hidden_size * (self.num_experts + 2 * self.expert_input)

    @property
    def expert_layer_parameters(self) -> int:
        """Weights of the feed-forward of one layer with experts."""
        routed = self.num_experts * self.expert_parameters
        return routed + self.shared_expert_parameters + self.router_parameters

    @property
    def small_parameters(self) -> int:
        """Norms and biases of one layer (GPT: 13 h with a feed-forward of 4 h)."""
        if self.vector_parameters:
            return self.vector_parameters
        if not self.biases:
            return 2 * self.hidden_size
        widths = self.head_size * (self.num_heads + 2 * self.num_kv_heads)
        return 4 * self.hidden_size + widths + 2 * self.hidden_size + self.ffn_size

    @property
    def num_expert_layers(self) -> int:
        """Layers with experts."""
        if not self.num_experts:
            return 0
        return max(0, self.feed_forward_count - self.first_dense_layers) // self.expert_every

    @property
    def embedding_parameters(self) -> int:
        """The embedding table without padding, and learned positions."""
        return self.hidden_size * (self.vocab_size + self.learned_positions)

    @property
    def parameters(self) -> int:
        """All weights, without those of multi-token prediction."""
        return round(
            self.num_layers * (self.mixer_parameters + self.small_parameters)
            + self.num_dense_layers * self.dense_parameters
            + self.num_expert_layers * self.expert_layer_parameters
            + self.embedding_parameters
            + (0 if self.tied_embeddings else self.hidden_size * self.vocab_size)
            + self.hidden_size * (2 if self.biases else 1)
        )
