"""Conditions on which a stack keeps a tensor: facts of a run, and of one pipeline rank."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.training_run.stage_share import StageShare
from simulator.training_run.training_run import TrainingRun

CONDITIONS = (
    "gated",
    "plain",
    "latent",
    "context-parallel",
    "tensor-parallel",
    "tensor-parallel-in-node",
    "tensor-parallel-across-nodes",
    "tensor-parallel-across-two-nodes",
    "data-parallel",
    "pipeline",
    "no-pipeline",
    "two-ranks-deep",
    "four-ranks-deep",
    "in-32-nodes",
    "several-micro-batches",
    "long-layers",
    "short-messages",
    "unsharded-states",
    "sharded-parameters",
    "fp8",
    "no-fp8",
    "trained-weights",
    "dense-layers-here",
    "expert-layers-here",
    "later-rank",
)
LOW_PRECISIONS = ("fp8", "mxfp8", "nvfp4")
# Where a device computes so long on a layer, forward and backward, that the host runs ahead of it
# in a pipeline, and gathered sequences in bf16 that are short. Between neighbouring values of the
# Ultra-Scale sweep (847 rows; a host that launches a layer with tp in 20 ms and devices that reach
# 200 to 400 TFLOP/s agree with the first).
LONG_LAYER_FLOP = 4.0e12
SHORT_MESSAGE_BYTES = 128 * 2.0**20


def run_conditions(run: TrainingRun) -> frozenset[str]:
    """Those that hold for every rank; `trained-weights` fails where only adapters are trained."""
    low = run.precision in LOW_PRECISIONS
    held = {
        "gated": run.model.gated,
        "plain": not run.model.gated,
        "latent": run.model.latent is not None,
        "context-parallel": run.cp > 1,
        "tensor-parallel": run.tp > 1,
        "tensor-parallel-in-node": 1 < run.tp <= run.node_devices,
        "tensor-parallel-across-nodes": run.tp > run.node_devices,
        "tensor-parallel-across-two-nodes": run.node_devices < run.tp <= 2 * run.node_devices,
        "data-parallel": run.dp * run.cp > 1,
        "pipeline": run.pp > 1,
        "no-pipeline": run.pp == 1,
        "two-ranks-deep": run.pp == 2,
        "four-ranks-deep": run.pp >= 4,
        "in-32-nodes": run.num_nodes <= 32,
        "several-micro-batches": run.num_microbatches > 1,
        "long-layers": _layer_flop(run) >= LONG_LAYER_FLOP,
        "short-messages": 2.0 * run.tokens * run.model.hidden_size <= SHORT_MESSAGE_BYTES,
        "unsharded-states": run.zero_stage == 0,
        "sharded-parameters": run.zero_stage >= 3,
        "fp8": low,
        "no-fp8": not low,
        "trained-weights": not run.lora,
    }
    return frozenset(name for name, holds in held.items() if holds)


def rank_conditions(rank: int, shares: Sequence[StageShare]) -> frozenset[str]:
    """Those that depend on the virtual stages of a pipeline rank."""
    held = {
        "dense-layers-here": any(share.dense_layers for share in shares),
        "expert-layers-here": any(share.expert_layers for share in shares),
        "later-rank": rank > 0,
    }
    return frozenset(name for name, holds in held.items() if holds)


def _layer_flop(run: TrainingRun) -> float:
    """Of the matmuls of a dense layer on one device, for a micro-batch: 6 per weight and token."""
    weights = run.model.attention_parameters + run.model.dense_parameters
    return 6.0 * run.tokens * weights / run.tp
