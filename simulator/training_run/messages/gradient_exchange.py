"""What the exchange of gradients moves and computes: reduction precision, compression, local steps.

All three change the numerics of training, which is the user's decision; here is what they cost.

Compression. PowerSGD of rank r (Vogels, Karimireddy and Jaggi, arXiv 1905.13727, algorithm 1) sends
for a matrix n x m its factors P [n, r] and Q [m, r], all-reduced one after the other, and computes
M Q, M^T P and P Q^T; vectors go whole. Top-k (Lin et al., Deep Gradient Compression, arXiv
1712.01887, section 3) sends a share of the entries, value and index, gathered from every replica,
since their places differ. Both keep what was not sent and add it to the next step's gradient.

Local steps. Replicas in `local_workers` parts take `local_steps` steps each and then average: Lin
et al., arXiv 1808.07217 (post-local SGD), Douillard et al., arXiv 2311.08105 (DiLoCo: the average
is an outer gradient for a Nesterov step). What is exchanged is as large as the weights, in fp32, at
once and with nothing to hide it; the outer momentum and the last common weights are in host memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InputError
from simulator.training_run.run.compression import compression_of
from simulator.training_run.run.training_run import TrainingRun

REDUCTION_BYTES = {"fp32": 4.0, "bf16": 2.0}
_FACTOR_BYTES = 4.0  # PowerSGD's factors and top-k's values are sent as they are summed, in fp32
_INDEX_BYTES = 4.0
# How often an fp32 entry is read or written. PowerSGD: the residual is added (2 reads, 1 write),
# M is read for M Q and for M^T P, and P Q^T is written and taken off the residual (2 reads, 2
# writes). Top-k: residual added (3), compared with a threshold (1), sent entries cleared (1) and
# the gathered ones added (1).
_POWERSGD_PASSES = 9.0
_TOPK_PASSES = 6.0
# The outer Nesterov step: gradient, weights and momentum read, weights and momentum written.
_OUTER_PASSES = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientMessage:
    """A collective of the gradients' exchange, and the bytes that making it moves on the device."""

    operation: str
    size_bytes: float
    pass_bytes: float = 0.0


def gradient_bytes(run: TrainingRun, of_stack: float) -> float:
    """Bytes per gradient between replicas. fp16 training of 2021 reduced its 16-bit gradients; bf16
    is reduced in fp32 where the stack does so and nothing else is asked."""
    if run.gradient_reduction:
        return REDUCTION_BYTES[run.gradient_reduction]
    return 2.0 if run.precision == "fp16" else of_stack


def compressed(run: TrainingRun, count: float, sides: float, ranks: int) -> GradientMessage:
    """The message of `count` gradients in matrices whose rows and columns add up to `sides`.

    Raises InputError where nothing is compressed.
    """
    how = compression_of(run.compression)
    if how is None:
        raise InputError(f"{run.id} compresses nothing")
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
    """Rows and columns of an average layer's matrices on one tp rank, but for routed experts'."""
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
    """Rows and columns of an average layer's expert matrices on one rank."""
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
    ways = 2 if run.model.gated else 1
    return (run.model.hidden_size + ways * inner) + (inner + run.model.hidden_size)


def outer_pass_bytes(run: TrainingRun, count: float) -> float:
    """Bytes per step that the outer optimizer of local steps moves for `count` weights."""
    if run.local_workers < 2:
        return 0.0
    return _OUTER_PASSES * 4.0 * count / run.local_steps
