"""Conditions of a run under which a framework keeps a tensor. stage_share.py has the conditions of
a pipeline rank."""

from __future__ import annotations

from itertools import compress

from simulator.training_run.framework.blocked_host import is_host_ahead
from simulator.training_run.framework.framework import Framework
from simulator.training_run.run.training_run import TrainingRun

LOW_PRECISIONS = ("fp8", "int8", "mxfp8", "nvfp4")
# One scale per 32 or 16 elements instead of one per tensor.
BLOCK_SCALED = ("mxfp8", "nvfp4")


def run_conditions(run: TrainingRun, framework: Framework) -> frozenset[str]:
    """Conditions true on every rank. `trained-weights` is false if only adapters are trained;
    `host-ahead` is true if most jobs of this layout run ahead (framework/blocked_host.py)."""
    degrees = run.degrees
    low = run.precision in LOW_PRECISIONS
    held = {
        "gated": run.model.gated,
        "plain": not run.model.gated,
        "latent": run.model.latent is not None,
        "layer-norm": run.model.biases,
        "no-layer-norm": not run.model.biases,
        "unfused-gelu": run.model.unfused_gelu,
        "context-parallel": degrees.cp > 1,
        "tensor-parallel": degrees.tp > 1,
        "host-ahead": is_host_ahead(run, framework),
        "data-parallel": degrees.dp * degrees.cp > 1,
        "several-micro-batches": run.global_batch > degrees.dp * run.micro_batch,
        "unsharded-states": run.zero_stage == 0,
        "sharded-parameters": run.zero_stage >= 3,
        "fp8": low,
        "no-fp8": not low,
        "eager": bool(framework.compiled_name),
        "compiled": not framework.compiled_name,
        "alternate": run.recompute == "alternate",
        "trained-weights": not run.lora,
    }
    return frozenset(compress(held, held.values()))
