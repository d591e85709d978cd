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

import functools
from dataclasses import dataclass

from profiles.errors import InputError
from simulator.training_run.framework.blocked_host import collectives_wait
from simulator.training_run.framework.framework import Framework
from simulator.training_run.run.training_run import TrainingRun, compression_of
from simulator.training_run.work.layer_work import element_bytes, vocabulary_share
from simulator.training_run.work.stage_layers import stage_layers

_FIRST_BUCKET_BYTES = 2.0**20  # kDefaultFirstBucketBytes, torch/csrc/distributed/c10d/reducer.hpp


def gradient_buckets(run: TrainingRun, stack: Framework) -> float:
    """Buckets per step on the rank with the most layers; 1 if all are exchanged at once."""
    if not stack.bucket_bytes:
        return 1.0
    layers, _ = stage_layers(run)
    table = vocabulary_share(run, stack) * run.model.hidden_size
    head = table if run.degrees.pp == 1 and not run.model.tied_embeddings else 0.0
    width = element_bytes(run)
    limits = (_FIRST_BUCKET_BYTES / width, stack.bucket_bytes / width)
    return float(_buckets(_matrix_sizes(run), round(layers), head, table, limits))


def waiting_buckets(run: TrainingRun, stack: Framework) -> float:
    """Buckets times ranks of their all-reduces, if collectives wait for the host; otherwise 0."""
    if not stack.bucket_bytes or run.zero_stage > 0 or run.sharing_ranks == 1:
        return 0.0
    if not collectives_wait(run, stack):
        return 0.0
    return gradient_buckets(run, stack) * run.sharing_ranks


def copied_slices(run: TrainingRun, stack: Framework) -> float:
    """Slices per step that a rank copies after ZeRO 1 gathers weights: tensors times ranks,
    including the vocabulary table."""
    if run.zero_stage != 1 or run.sharing_ranks == 1 or not stack.copied_tensors:
        return 0.0
    layers, _ = stage_layers(run)
    return (stack.copied_tensors * layers + 1.0) * run.sharing_ranks


@functools.cache
def _buckets(
    layer: tuple[float, ...], layers: int, head: float, table: float, limits: tuple[float, float]
) -> int:
    """Buckets of DistributedDataParallel, which closes a bucket at the tensor that reaches the
    limit (`compute_bucket_assignment_by_size`, torch/csrc/distributed/c10d/reducer.cpp).
    Gradients arrive in the order of the backward: head, layers, embedding.

    limits  weights that close the first bucket, and each later one
    """
    count, held = 0, 0.0
    for size in (head, *layer * layers, table):
        held += size
        if held >= limits[count > 0]:
            count, held = count + 1, 0.0
    return count + (held > 0)


def _matrix_sizes(run: TrainingRun) -> tuple[float, ...]:
    """Weights per matrix of a layer on one tp rank, in the order of the backward.

    Query, key and value are one matrix, as are gate and up. Norms are negligible."""
    model = run.model
    core = model.num_heads * model.head_size
    keys_values = 2 * model.num_kv_heads * model.head_size
    inputs = 2 if model.gated else 1
    widths = (model.ffn_size, inputs * model.ffn_size, core, core + keys_values)
    return tuple(model.hidden_size * width / run.degrees.tp for width in widths)


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
    pass_bytes: float


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
