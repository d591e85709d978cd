"""Buckets of the gradient exchange, and copies after a gather of sharded weights."""

from __future__ import annotations

import functools

from simulator.training_run.framework.blocked_host import collectives_wait
from simulator.training_run.framework.framework import Framework
from simulator.training_run.run.training_run import TrainingRun
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
