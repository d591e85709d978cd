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
    "data-parallel",
    "pipeline",
    "no-pipeline",
    "unsharded-states",
    "fp8",
    "no-fp8",
    "trained-weights",
    "dense-layers-here",
    "expert-layers-here",
    "later-rank",
)
LOW_PRECISIONS = ("fp8", "mxfp8", "nvfp4")


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
        "data-parallel": run.dp * run.cp > 1,
        "pipeline": run.pp > 1,
        "no-pipeline": run.pp == 1,
        "unsharded-states": run.zero_stage == 0,
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
