"""Frozen weights that are kept in few bits and widened before every matmul (QLoRA).

A linear layer of n weights in b bytes each becomes a 16-bit copy of itself first, which its matmul
then reads as any other (Dettmers et al., arXiv 2305.14314, section 3, equation 5; bitsandbytes,
autograd/_functions.py, MatMul4Bit): (b + 2) n bytes are read and written, once in the forward, once
in the backward for the gradient of the input, and once more where the forward runs again. `int8`
is taken to be widened likewise, as its backward is (MatMul8bitLt). The copy is gone when its matmul
has run.

Embeddings, head and norms stay in 16 bits, and the adapters' own matmuls are in adapter_work.py.
"""

from __future__ import annotations

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
    """Of a layer and one pass over it; 0 where weights are kept as they are computed with."""
    return _KERNELS[run.frozen_type] * _linears(run) if run.frozen_type else 0.0


def widening_bytes(run: TrainingRun) -> float:
    """Read and written in a layer and one pass over it on one device; 0 likewise."""
    if not run.frozen_type:
        return 0.0
    return (frozen_weight_bytes(run) + _WIDE_BYTES) * layer_parameters(run)


def widened_bytes(run: TrainingRun) -> float:
    """The largest 16-bit copy that is there at a time."""
    if not run.frozen_type:
        return 0.0
    return _WIDE_BYTES * _largest(run.model) / run.degrees.tp


def _linears(run: TrainingRun) -> float:
    """Linear layers of an average layer on a rank: four of the attention, and those of the
    feed-forward or of the rank's experts, all of which are there where tensor parallelism splits
    each."""
    model = run.model
    each = 3.0 if model.gated else 2.0
    share = model.num_expert_layers / model.num_layers
    experts = model.num_experts / max(1, run.degrees.ep) + model.num_shared_experts
    return 4.0 + each * ((1 - share) * model.dense_density + share * experts)


def _largest(model: Transformer) -> int:
    widest = max(model.ffn_size, model.num_heads * model.head_size, model.expert_size)
    return model.hidden_size * widest
