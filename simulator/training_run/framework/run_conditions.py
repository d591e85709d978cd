"""Conditions of a run under which a framework keeps a tensor. stage_share.py evaluates those of a
pipeline rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from profiles.hardware.catalogue.catalog import get_device
from simulator.training_run.framework.blocked_host import is_host_ahead
from simulator.training_run.run.training_run import TrainingRun

if TYPE_CHECKING:  # framework.py imports this file indirectly
    from simulator.training_run.framework.framework import Framework

LOW_PRECISIONS = ("fp8", "int8", "mxfp8", "nvfp4")
# One scale per 32 or 16 elements instead of one per tensor.
BLOCK_SCALED = ("mxfp8", "nvfp4")

CONDITIONS: Mapping[str, Callable[[TrainingRun, Framework], bool]] = {
    "gated": lambda run, _: run.model.gated,
    "plain": lambda run, _: not run.model.gated,
    "layer-norm": lambda run, _: run.model.biases,
    "no-layer-norm": lambda run, _: not run.model.biases,
    "unfused-gelu": lambda run, _: run.model.unfused_gelu,
    "query-key-norms": lambda run, _: run.model.query_key_norms,
    "context-parallel": lambda run, _: run.degrees.cp > 1,
    "pipeline-parallel": lambda run, _: run.degrees.pp > 1,
    "no-pipeline-parallel": lambda run, _: run.degrees.pp == 1,
    "tensor-parallel": lambda run, _: run.degrees.tp > 1,
    "sequence-parallel": lambda run, _: run.sequence_parallel,
    "no-sequence-parallel": lambda run, _: not run.sequence_parallel,
    "split-vocabulary": lambda run, framework: (
        framework.vocabulary_ranks(run.model, run.degrees.tp) > 1
    ),
    "whole-vocabulary": lambda run, framework: (
        framework.vocabulary_ranks(run.model, run.degrees.tp) == 1
    ),
    "host-ahead": is_host_ahead,
    "data-parallel": lambda run, _: run.degrees.dp * run.degrees.cp > 1,
    "several-micro-batches": lambda run, _: run.global_batch > run.degrees.dp * run.micro_batch,
    "unsharded-states": lambda run, _: run.zero_stage == 0,
    "sharded-parameters": lambda run, _: run.zero_stage >= 3,
    "fp8": lambda run, _: run.precision in LOW_PRECISIONS,
    "no-fp8": lambda run, _: run.precision not in LOW_PRECISIONS,
    "eager": lambda _, framework: bool(framework.compiled_name),
    "compiled": lambda _, framework: not framework.compiled_name,
    "alternate": lambda run, _: run.recompute == "alternate",
    "trained-weights": lambda run, _: not run.lora,
}
"""Name -> whether it is true on every rank. `trained-weights` is false if only adapters are
trained; `host-ahead` is true if most jobs of this layout run ahead (framework/blocked_host.py)."""
RANK_CONDITIONS = ("dense-layers-here", "expert-layers-here", "later-rank")


def run_conditions(run: TrainingRun, framework: Framework) -> frozenset[str]:
    """The conditions that are true on every rank."""
    return frozenset(name for name, holds in CONDITIONS.items() if holds(run, framework))


def compiles_graphs(run: TrainingRun) -> bool:
    """Whether a run's device compiles whole steps into one program: TPUs, Gaudi, Trainium.

    XLA, SynapseAI and Neuron fuse elementwise ops, launch no kernel per op and have their own fused
    attention (Splash attention of JAX; FusedSDPA of Habana's Megatron-DeepSpeed and of Optimum
    Habana; flash attention kernels of neuronx-distributed). There the kernels do not depend on the
    framework.
    """
    return get_device(run.device).type in ("tpu", "accelerator")


def attention_kernel(run: TrainingRun, stack: Framework) -> str:
    """`fused`, `flash-2` or `unfused` (`Framework.attention`).

    The compiler's attention is fused; a framework written for such devices has its own value."""
    return "fused" if compiles_graphs(run) and not stack.devices else stack.attention
