"""Model FLOP utilization (MFU): its one definition, and the model FLOPs that it counts.

    MFU = model FLOPs of a step / (step time x dense peak of the devices)
    model FLOPs per token = 6 N + 12 L H Q T

with N parameters, L layers, H heads of size Q and sequences of T tokens (PaLM, arXiv 2204.02311,
appendix B). Attention counts the full score matrix, even if causal; recomputation does not count.
With adapters (LoRA, arXiv 2106.09685) the weights are frozen and have no gradients, so only the
input half of the backward runs: 4 N; the adapters' own FLOPs do not count. The peak is that of the
plan's precision.
"""

from __future__ import annotations

import functools

from profiles.errors import InputError
from profiles.model.figures.figures_from_trace import figures_of_trace
from profiles.model.figures.transformer import Transformer
from profiles.model.graph import Block, ModelGraph
from simulator.values.prediction import Interval

MODEL_FLOP = (
    "6 FLOP per active parameter and token (4 if adapters freeze it), and 12 per head, head size "
    "and key of the attention "
    "(PaLM, arXiv 2204.02311, appendix B)"
)
MFU_DEFINITION = (
    f"MFU: {MODEL_FLOP}, the full score matrix counted and nothing computed again, over the dense "
    "peak of the devices in the plan's precision; modules that are no transformers count the FLOPs "
    "of their own products, convolutions and attention"
)


def mfu(work_flop: float, step_s: Interval, peak_flop_per_s: float) -> Interval:
    """The MFU of a step.

    work_flop        model FLOPs of the whole step (`model_flop_per_token`, `graph_model_flop`)
    peak_flop_per_s  of all devices in use together
    """
    return Interval(
        value=work_flop / (step_s.value * peak_flop_per_s),
        low=work_flop / (step_s.high * peak_flop_per_s),
        high=work_flop / (max(step_s.low, 1e-12) * peak_flop_per_s),
    )


def model_flop_per_token(model: Transformer, seq_len: float, *, adapters: bool = False) -> float:
    """Model FLOPs of forward and backward per token.

    adapters  only adapters are trained, the model's own weights are frozen

    N excludes the embedding table and a token's unused experts. T is the number of keys in layers
    with a window, and the mean document length for packed documents
    (simulator/training_run/run/training_run.py). Arithmetic of a recurrent state does not count.
    """
    idle = (model.num_experts - model.top_k) * model.expert_parameters * model.num_expert_layers
    used = model.parameters - idle - model.hidden_size * model.learned_positions
    if not model.tied_embeddings:
        used -= model.hidden_size * model.vocab_size
    near = model.window_layers * min(model.window, seq_len)
    keys = (model.attention_count - model.window_layers) * seq_len + near
    per_weight = 4 if adapters else 6
    return float(per_weight * used + 12 * model.num_heads * model.head_size * keys)


@functools.lru_cache(maxsize=1024)
def graph_model_flop(graph: ModelGraph) -> float:
    """Model FLOPs of forward and backward of one micro-batch of a model traced at tp = 1.

    A transformer is counted by `model_flop_per_token`. Other modules count their traced products
    and convolutions, and attention with the full score matrix; the backward is twice the forward.
    """
    try:
        found = figures_of_trace(graph)
    except InputError:
        return float(sum(_block_flop(block) for block in graph.blocks))
    tokens = graph.micro_batch * found.sequence_length
    return tokens * model_flop_per_token(found.figures, found.sequence_length)


def _block_flop(block: Block) -> int:
    ops = (*block.forward_ops, *block.backward_ops)
    products = sum(op.work_flop for op in ops if op.attention is None)
    attention = sum(
        op.work_flop * (2 if op.attention.causal else 1)
        for op in block.forward_ops
        if op.attention is not None
    )
    trained = any(op.attention is not None for op in block.backward_ops)
    return products + attention * (3 if trained else 1)
