"""Kernels and passes that low-rank adapters add to a layer with frozen weights.

An adapter of a linear layer y = W x adds B A x (Hu et al., arXiv 2106.09685, section 4.1): two
matmuls of rank r, a scale and an addition. r is 8 to 64, so the matmuls are memory-bound. Per
linear layer of n inputs and m outputs, in 16 bits:

    forward    A reads n; B writes m; the addition reads 2 m and writes m
    backward   gradients of B and of its input read m each, of A reads n; the gradient of x is
               added: 2 n read, n written

Adapters are assumed on the linear layers of the attention, as in the paper's experiments and in
MLPerf's rules (llama2_70b_lora).

Low-bit frozen weights are widened before every matmul (QLoRA). A linear layer of n weights of b
bytes is copied to 16 bits, and its matmul reads the copy (Dettmers et al., arXiv 2305.14314,
section 3, equation 5; bitsandbytes, autograd/_functions.py, MatMul4Bit): (b + 2) n bytes are read
and written, once in the forward, once in the backward for the gradient of the input, and once in a
recomputed forward. `int8` is assumed to be widened in the same way, as it is in its backward
(MatMul8bitLt). The copy is freed after its matmul. Embeddings, head and norms stay in 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.model.figures.transformer import Transformer
from simulator.training_run.run.low_bits import frozen_bytes
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.rank_parameters import layer_parameters

_WIDE_BYTES = 2.0
# Per linear layer: `nf4` widens its scales, adds their mean and widens the weights (bitsandbytes,
# functional.py, dequantize_4bit), `int8` casts and scales.
_KERNELS = {"nf4": 3.0, "int8": 2.0}


def frozen_weight_bytes(run: TrainingRun) -> float:
    """Bytes per frozen weight of a linear layer."""
    return frozen_bytes(run.frozen_type, run.model.hidden_size)


def widening_kernels(run: TrainingRun) -> float:
    """Kernels that widen frozen low-bit weights, per layer and pass; 0 for 16-bit weights."""
    return _KERNELS[run.frozen_type] * _linears(run) if run.frozen_type else 0.0


def widening_bytes(run: TrainingRun) -> float:
    """Bytes that these kernels read and write on one device; 0 for 16-bit weights."""
    if not run.frozen_type:
        return 0.0
    return (frozen_weight_bytes(run) + _WIDE_BYTES) * layer_parameters(run)


def widened_bytes(run: TrainingRun) -> float:
    """Bytes of the largest 16-bit copy of a weight: one exists at a time."""
    if not run.frozen_type:
        return 0.0
    return _WIDE_BYTES * _largest(run.model) / run.degrees.tp


def _linears(run: TrainingRun) -> float:
    """Number of linear layers of an average layer on a rank: four of the attention, and those of
    the feed-forward or of the rank's experts; all experts, if tensor parallelism splits each."""
    model = run.model
    each = 3.0 if model.gated else 2.0
    share = model.num_expert_layers / model.num_layers
    experts = model.num_experts / max(1, run.degrees.ep) + model.num_shared_experts
    return 4.0 + each * ((1 - share) * model.dense_density + share * experts)


def _largest(model: Transformer) -> int:
    widest = max(model.ffn_size, model.num_heads * model.head_size, model.expert_size)
    return model.hidden_size * widest


# Kernels that an adapter adds to those of its layer: forward two matmuls, scale and addition;
# backward four matmuls, scale and addition (peft, tuners/lora/layer.py, Linear.forward).
_FORWARD_KERNELS, _BACKWARD_KERNELS = 4.0, 6.0
_WIDTH_BYTES = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterWork:
    """Added kernels and bytes, per layer and micro-batch on one device."""

    kernels_forward: float = 0.0
    kernels_backward: float = 0.0
    forward_pass_bytes: float = 0.0
    backward_pass_bytes: float = 0.0


def adapter_work(run: TrainingRun) -> AdapterWork:
    """The work that adapters add to a layer; zero if all weights are trained."""
    if not run.lora:
        return AdapterWork()
    model = run.model
    kernels, moved = widening_kernels(run), widening_bytes(run)
    h, core = model.hidden_size, model.num_heads * model.head_size
    keys = 2 * model.num_kv_heads * model.head_size
    inputs, outputs, linears = h + core, core + keys + h, 4
    width = _WIDTH_BYTES * run.tokens / run.degrees.tp
    return AdapterWork(
        kernels_forward=_FORWARD_KERNELS * linears + kernels,
        kernels_backward=_BACKWARD_KERNELS * linears + kernels,
        forward_pass_bytes=width * (inputs + 4.0 * outputs) + moved,
        backward_pass_bytes=width * (2.0 * outputs + 4.0 * inputs) + moved,
    )


def adapter_parameters(model: Transformer, rank: int) -> int:
    """Trained weights of a layer: A [in, r] and B [r, out] for each of the attention's two matmuls
    (queries, keys and values; output)."""
    query = model.num_heads * model.head_size
    both = query + 2 * model.num_kv_heads * model.head_size
    return rank * ((model.hidden_size + both) + (query + model.hidden_size))
