"""Matmuls, attention and passes of one device in a micro-batch of a run.

The forward matmuls of a layer on one of tp ranks are those of Megatron-LM (Shoeybi et al., arXiv
1909.08053, section 3): queries, keys and values together, the output projection, and the
feed-forward's two (three weights if gated). Each has two in the backward, for its input and for its
weights. Every rank has num_experts / ep experts, and runs each on a balanced share of the tokens of
ep ranks (a load imbalance multiplies the tokens of the fullest rank).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.device import PRECISION_TYPES
from profiles.model.figures.transformer import Transformer
from simulator.training_run.framework.framework import Framework
from simulator.training_run.framework.run_conditions import attention_kernel
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.matmul import Matmul, cast_bytes
from simulator.training_run.work.state_work import StateWork, state_work


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """One call of a fused attention kernel; `count` of them (rings of context parallelism).

    newest   False for FlashAttention-2, which uses Ampere's instructions
    window   most keys per query, 0 for all
    """

    batch: float
    seq: float
    heads: float
    kv_heads: float
    head_size: int
    dtype: str
    count: float = 1.0
    newest: bool = True
    window: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWork:
    """One layer, or the head, on one device and micro-batch.

    matmuls       forward matmuls
    attention     calls of the fused attention core
    grouped       forward matmuls of experts, run as a group
    frozen        whether weights have no gradients
    score_matmuls  matmuls of unfused attention, each with two in the backward
    state         the recurrence of a state
    forward_pass_bytes, backward_pass_bytes   moved by elementwise ops
    forward_cast_bytes, backward_cast_bytes   moved by casts to fewer bits (matmul.py)
    score_bytes   moved by the unfused core's softmax and dropout, forward (backward: 1.5 times)
    """

    matmuls: tuple[Matmul, ...]
    grouped: tuple[Matmul, ...] = ()
    frozen: bool = False
    attention: tuple[Attention, ...] = ()
    score_matmuls: tuple[Matmul, ...] = ()
    forward_pass_bytes: float = 0.0
    backward_pass_bytes: float = 0.0
    forward_cast_bytes: float = 0.0
    backward_cast_bytes: float = 0.0
    score_bytes: float = 0.0
    state: StateWork = field(default_factory=StateWork)


def matmul_type(run: TrainingRun) -> str:
    """torch's name of the data type of a run's layer matmuls."""
    return _fp32_type(run) if run.precision == "fp32" else PRECISION_TYPES[run.precision]


def wide_type(run: TrainingRun) -> str:
    """torch's name of the 16-bit type of attention and head, which are not computed in 8 bits or
    less (Transformer Engine's recipes leave both in bf16); for fp32 runs, the type of fp32
    matmuls."""
    if run.precision == "fp32":
        return _fp32_type(run)
    return PRECISION_TYPES["fp16" if run.precision == "fp16" else "bf16"]


def _fp32_type(run: TrainingRun) -> str:
    """TF32 on devices that support it, otherwise float32 (`complete_words` lists this as a
    default)."""
    return "tf32" if "tf32" in get_device(run.device).peak_flop_per_s else "float32"


def element_bytes(run: TrainingRun) -> float:
    """Bytes per activation element, in memory and in messages: 2, or 4 for runs in fp32."""
    return 4.0 if run.precision == "fp32" else 2.0


def vocabulary_share(run: TrainingRun, stack: Framework) -> float:
    """Rows of a table, or logits of a token, on one rank."""
    model, tp = run.model, run.degrees.tp
    return stack.padded_vocabulary(model, tp) / stack.vocabulary_ranks(model, tp)


def layer_work(
    run: TrainingRun, stack: Framework, *, experts: bool, imbalance: float = 1.0
) -> LayerWork:
    """One transformer layer; `experts` chooses the feed-forward, imbalance >= 1 loads the fullest
    expert rank."""
    degrees = run.degrees
    model, tokens, dtype = run.model, run.tokens, matmul_type(run)
    width = element_bytes(run)
    h = model.hidden_size
    matmuls, grouped = layer_products(
        model,
        experts=experts,
        tokens=tokens,
        tp=degrees.tp,
        ep=max(1, degrees.ep),
        dtype=dtype,
        wide=wide_type(run),
        imbalance=imbalance,
    )
    routed = tokens / degrees.tp * model.top_k * imbalance
    if experts:
        inner = routed * model.expert_size
        inner += tokens * model.expert_size * model.num_shared_experts / degrees.tp
    else:
        inner = model.dense_density * tokens * model.ffn_size / degrees.tp
    # Norms, residuals and dropout run whole on every tp rank unless the sequence is split.
    counts, share = stack.layer_counts(model), tokens / degrees.tp
    rows = share if run.sequence_parallel else tokens
    blocks = 0.5 * model.blocks_per_layer
    norms = blocks * ((counts.norm_passes - counts.head_passes) * rows + counts.head_passes * share)
    passes = width * (norms * h + counts.activation_passes * inner)
    summed = width * blocks * counts.sum_passes * (tokens - rows) * h
    if model.query_key_norms:
        heads = model.attention_share * (model.num_heads + model.num_kv_heads) / degrees.tp
        passes += width * stack.query_key_passes * tokens * heads * model.head_size
    if experts:
        # Sorting tokens by expert and back: read and write, twice.
        passes += width * 4 * tokens / degrees.tp * model.top_k * model.expert_width
        if model.expert_biases:
            passes += width * stack.expert_bias_passes * routed * model.expert_width
    attention, scores, score_bytes = _attention(run, stack)
    casts = cast_bytes(run.precision, (*matmuls, *grouped))
    return LayerWork(
        matmuls=tuple(matmuls),
        grouped=tuple(grouped),
        frozen=run.lora,
        attention=attention,
        score_matmuls=scores,
        forward_pass_bytes=passes,
        backward_pass_bytes=passes * counts.backward_passes + summed,
        forward_cast_bytes=casts[0],
        backward_cast_bytes=casts[1],
        score_bytes=score_bytes,
        state=state_work(model, tokens, run.seq_len, degrees.tp, wide_type(run), width),
    )


def layer_products(
    model: Transformer,
    *,
    experts: bool,
    tokens: float,
    tp: int,
    ep: int,
    dtype: str,
    wide: str,
    imbalance: float = 1.0,
) -> tuple[list[Matmul], list[Matmul]]:
    """The forward matmuls of a layer's weights [n, k] on one rank, and those of its experts.

    dtype  of linear layers;  wide  of the router
    """
    h = model.hidden_size
    matmuls = [*_projections(model, tokens, tp, dtype)]
    if not experts:
        if share := model.dense_density:
            matmuls += _feed_forward(model, tokens, h, model.ffn_size, tp, dtype, share)
        return matmuls, []
    # Ranks of tp have the same tokens (or a tp-th each) and share the work of their experts.
    routed = tokens / tp * model.top_k * imbalance
    # With expert parallelism, tensor parallelism inside experts is off (Megatron-Core's advice).
    per_expert = max(1.0, routed * ep / model.num_experts)
    taken, local = model.expert_width, model.num_experts / ep
    grouped = _feed_forward(model, per_expert, taken, model.expert_size, 1, dtype, local)
    matmuls.append(Matmul(tokens, model.num_experts, h, dtype=wide))
    if model.expert_input:
        # To the experts' width and back, on a tp-th of the tokens each.
        matmuls.append(Matmul(tokens / tp, taken, h, dtype=dtype))
        matmuls.append(Matmul(tokens / tp, h, taken, dtype=dtype))
    if model.num_shared_experts:
        size = model.expert_size * model.num_shared_experts
        matmuls += _feed_forward(model, tokens, h, size, tp, dtype, 1.0)
    return matmuls, grouped


def head_work(run: TrainingRun, stack: Framework) -> LayerWork:
    """The work of the logits and their loss."""
    vocabulary = vocabulary_share(run, stack)
    logits = Matmul(run.tokens, vocabulary, run.model.hidden_size, dtype=wide_type(run))
    moved = stack.loss_bytes * run.tokens * vocabulary
    return LayerWork(
        matmuls=(logits,),
        frozen=run.lora,
        forward_pass_bytes=0.5 * moved,
        backward_pass_bytes=0.5 * moved,
    )


def _projections(model: Transformer, tokens: float, tp: int, dtype: str) -> Iterator[Matmul]:
    """Forward matmuls of the average layer's attention and state."""
    h, heads = model.hidden_size, model.num_heads
    if model.state is not None:
        state, share = model.state, model.state_share
        size = state.input_size / tp
        yield Matmul(tokens, size, h, dtype=dtype, count=share)
        if state.rule == "scan":
            made = state.step_rank + 2 * state.state_size
            inner = state.inner_size / tp
            yield Matmul(tokens, made, inner, dtype=dtype, count=share)
            yield Matmul(tokens, inner, state.step_rank, dtype=dtype, count=share)
        yield Matmul(tokens, h, state.inner_size / tp, dtype=dtype, count=share)
    share = model.attention_share
    if not share:
        return
    if model.latent is None:
        kv = max(model.num_kv_heads, tp)  # a rank has at least one head of keys and values
        gate = heads if model.gated_attention else 0
        size = model.head_size * (heads + gate + 2 * kv) / tp
        yield Matmul(tokens, size, h, dtype=dtype, count=share)
        yield Matmul(tokens, h, model.head_size * heads / tp, dtype=dtype, count=share)
        return
    x = model.latent
    if x.query_rank:
        yield Matmul(tokens, x.query_rank, h, dtype=dtype, count=share)
    key = x.nope_size + x.rope_size
    queries = heads * key / tp
    yield Matmul(tokens, queries, x.query_rank or h, dtype=dtype, count=share)
    yield Matmul(tokens, x.key_value_rank + x.rope_size, h, dtype=dtype, count=share)
    size = heads * (x.nope_size + x.value_size) / tp
    yield Matmul(tokens, size, x.key_value_rank, dtype=dtype, count=share)
    yield Matmul(tokens, h, heads * x.value_size / tp, dtype=dtype, count=share)


def _feed_forward(
    model: Transformer, tokens: float, h: int, inner: float, tp: int, dtype: str, count: float
) -> list[Matmul]:
    ways = 2 if model.gated else 1
    return [
        Matmul(tokens, ways * inner / tp, h, dtype=dtype, count=count),
        Matmul(tokens, h, inner / tp, dtype=dtype, count=count),
    ]


def _attention(
    run: TrainingRun, stack: Framework
) -> tuple[tuple[Attention, ...], tuple[Matmul, ...], float]:
    degrees = run.degrees
    model, dtype = run.model, wide_type(run)
    heads = model.num_heads / degrees.tp
    size = model.head_size
    if model.latent is not None:
        # Scores have the width of keys, outputs the width of values; a core of the mean width has
        # equally many operations.
        x = model.latent
        size = round((x.nope_size + x.rope_size + x.value_size) / 2)
    kernel = attention_kernel(run, stack)
    if kernel != "unfused":
        attended = run.attended_length
        windowed = model.window_layers if model.window < attended else 0
        calls = tuple(
            Attention(
                batch=run.micro_batch * run.seq_len / attended,
                seq=attended,
                heads=heads,
                kv_heads=max(1.0, model.num_kv_heads / degrees.tp),
                head_size=size,
                dtype=dtype,
                # A ring, an all-gather or an all-to-all over cp ranks shares the scores evenly.
                count=layers / model.num_layers / degrees.cp,
                newest=kernel == "fused",
                window=window,
            )
            for layers, window in (
                (model.attention_count - windowed, 0),
                (windowed, model.window),
            )
            if layers
        )
        return calls, (), 0.0
    # Unfused scores are computed completely and then masked, with and without a window.
    count = run.micro_batch * heads / degrees.cp * model.attention_share
    scores = Matmul(run.seq_len, run.seq_len, size, dtype=dtype, count=count)
    values = Matmul(run.seq_len, size, run.seq_len, dtype=dtype, count=count)
    # Scores: written, read and written by mask and softmax, read and written with a byte of mask
    # by dropout, read again (arXiv 2205.05198, section 4.1: 5 a s^2 b bytes of them are kept).
    moved = count * run.seq_len**2 * (2 * 4 + 2 * 2 + 1)
    return (), (scores, values), moved
