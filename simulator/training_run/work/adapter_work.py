"""Kernels and passes that low-rank adapters add to a layer with frozen weights.

An adapter of a linear layer y = W x adds B A x (Hu et al., arXiv 2106.09685, section 4.1): two
matmuls of rank r, a scale and an addition. r is 8 to 64, so that its matmuls take the time of the
bytes that they read and write. Per linear layer of n inputs and m outputs, in 16 bits:

    forward    A reads n; B writes m; the addition reads 2 m and writes m
    backward   gradients of B and of its input read m each, of A reads n; the gradient of x is
               added: 2 n read, n written

Adapters are taken to be on the linear layers of the attention, as in the paper's experiments and in
MLPerf's rules (llama2_70b_lora).

Frozen weights in few bits are widened on every pass (frozen_weights.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.model.figures.transformer import Transformer
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.frozen_weights import widening_bytes, widening_kernels

# Kernels that an adapter adds to those of its layer: forward two matmuls, scale and addition;
# backward four matmuls, scale and addition (peft, tuners/lora/layer.py, Linear.forward).
_FORWARD_KERNELS, _BACKWARD_KERNELS = 4.0, 6.0
_WIDTH_BYTES = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterWork:
    """Of a layer and micro-batch on one device."""

    kernels_forward: float = 0.0
    kernels_backward: float = 0.0
    forward_pass_bytes: float = 0.0
    backward_pass_bytes: float = 0.0


def adapter_work(run: TrainingRun) -> AdapterWork:
    """Nothing where all weights are trained."""
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
    """Trained weights of a layer: A [in, r] and B [r, out] for the attention's two matmuls, that of
    queries, keys and values and that of the output."""
    query = model.num_heads * model.head_size
    both = query + 2 * model.num_kv_heads * model.head_size
    return rank * ((model.hidden_size + both) + (query + model.hidden_size))
