"""Bytes and traffic of the gradient exchange: reduction precision, compression, local steps.

All three change the numerics of training, which is the user's decision; this file has their cost.

Compression. PowerSGD of rank r (Vogels, Karimireddy and Jaggi, arXiv 1905.13727, algorithm 1) sends
the factors P [n, r] and Q [m, r] of an n x m matrix M, all-reduced one after the other. It computes
M Q, M^T P and P Q^T; vectors are sent whole. Top-k (Lin et al., Deep Gradient Compression, arXiv
1712.01887, section 3) sends a share of the entries as value and index, gathered from every replica
because their indices differ. Both add the unsent part to the next step's gradient.

Local steps. Replicas form `local_workers` groups. Each takes `local_steps` steps, then all are
averaged: Lin et al., arXiv 1808.07217 (post-local SGD), Douillard et al., arXiv 2311.08105 (DiLoCo:
the average is an outer gradient for a Nesterov step). The exchange has the size of the weights in
fp32 and no overlap. The outer momentum and the last common weights are in host memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InputError
from simulator.training_run.run.compression import compression_of
from simulator.training_run.run.training_run import TrainingRun

REDUCTION_BYTES = {"fp32": 4.0, "bf16": 2.0}
_FACTOR_BYTES = 4.0  # PowerSGD's factors and top-k's values are sent and summed in fp32
_INDEX_BYTES = 4.0
# Reads and writes per fp32 entry. PowerSGD: add the residual (2 reads, 1 write), read M for M Q and
# for M^T P, write P Q^T and subtract it from the residual (2 reads, 2 writes). Top-k: add the
# residual (3), compare with a threshold (1), clear sent entries (1), add gathered ones (1).
_POWERSGD_PASSES = 9.0
_TOPK_PASSES = 6.0
# The outer Nesterov step: gradient, weights and momentum read, weights and momentum written.
_OUTER_PASSES = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientMessage:
    """A collective of the gradient exchange, and the memory traffic of preparing it, in bytes."""

    operation: str
    size_bytes: float
    pass_bytes: float = 0.0


def gradient_bytes(run: TrainingRun, of_stack: float) -> float:
    """Bytes per gradient in the reduction between replicas. fp16 training of 2021 reduced 16-bit
    gradients; bf16 training uses the framework's type, unless another is requested."""
    if run.gradient_reduction:
        return REDUCTION_BYTES[run.gradient_reduction]
    return 2.0 if run.precision == "fp16" else of_stack


def compressed(run: TrainingRun, count: float, sides: float, ranks: int) -> GradientMessage:
    """Compressed message for `count` gradients; raises InputError for a run without compression.

    sides  sum of the matrices' rows and columns
    """
    how = compression_of(run.compression)
    if how is None:
        raise InputError(f"{run.id} has no gradient compression")
    if how.kind == "powersgd":
        # A rank above the matrix's own sends no more than the matrix.
        size = min(how.rank * sides, count) * _FACTOR_BYTES
        moved = _POWERSGD_PASSES * count * 4.0 + 2 * how.rank * sides * 4.0
        return GradientMessage(operation="all_reduce", size_bytes=size, pass_bytes=moved)
    size = ranks * how.share * count * (_FACTOR_BYTES + _INDEX_BYTES)
    return GradientMessage(
        operation="all_gather", size_bytes=size, pass_bytes=_TOPK_PASSES * count * 4.0
    )


def shared_sides(run: TrainingRun) -> float:
    """Sum of rows and columns of an average layer's matrices on one tp rank, except experts."""
    model = run.model
    h, tp = model.hidden_size, run.degrees.tp
    core = model.num_heads * model.head_size / tp
    keys = 2 * model.num_kv_heads * model.head_size / tp
    expert_share = model.num_expert_layers / model.num_layers
    sides = (h + core + keys) + (core + h)
    sides += (1 - expert_share) * _feed_forward_sides(run, model.ffn_size / tp)
    shared = model.num_shared_experts * model.expert_size / tp
    return sides + expert_share * (_feed_forward_sides(run, shared) if shared else 0.0)


def expert_sides(run: TrainingRun, expert_ranks: int) -> float:
    """Sum of rows and columns of an average layer's expert matrices on one rank."""
    model = run.model
    if not model.num_experts:
        return 0.0
    share = model.num_expert_layers / model.num_layers
    if run.degrees.ep > 1:
        here, size = model.num_experts / expert_ranks, float(model.expert_size)
    else:
        here, size = float(model.num_experts), model.expert_size / run.degrees.tp
    return share * here * _feed_forward_sides(run, size)


def _feed_forward_sides(run: TrainingRun, inner: float) -> float:
    inputs = 2 if run.model.gated else 1
    return (run.model.hidden_size + inputs * inner) + (inner + run.model.hidden_size)


def outer_pass_bytes(run: TrainingRun, count: float) -> float:
    """Traffic per step of the outer optimizer of local steps for `count` weights, in bytes."""
    if run.local_workers < 2:
        return 0.0
    return _OUTER_PASSES * 4.0 * count / run.local_steps
