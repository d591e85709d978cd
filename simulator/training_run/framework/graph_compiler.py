"""Devices whose vendor's compiler compiles a whole step into one program: TPUs, Gaudi, Trainium.

XLA, SynapseAI and Neuron fuse elementwise ops, launch no kernel per op and have their own fused
attention (Splash attention of JAX; FusedSDPA of Habana's Megatron-DeepSpeed and of Optimum Habana;
flash attention kernels of neuronx-distributed). There the kernels do not depend on the framework.
"""

from __future__ import annotations

from profiles.hardware.catalogue.catalog import get_device
from simulator.training_run.framework.framework import Framework
from simulator.training_run.run.training_run import TrainingRun


def compiles_graphs(run: TrainingRun) -> bool:
    """Whether a run's device compiles whole steps."""
    return get_device(run.device).type in ("tpu", "accelerator")


def attention_kernel(run: TrainingRun, stack: Framework) -> str:
    """`fused`, `flash-2` or `unfused` (`Framework.attention`).

    The compiler's attention is fused; a framework written for such devices has its own value."""
    return "fused" if compiles_graphs(run) and not stack.devices else stack.attention
