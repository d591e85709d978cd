"""Devices whose vendor's compiler makes one program of a whole step: TPUs, Gaudi, Trainium.

XLA, SynapseAI and Neuron fuse what is elementwise, launch no kernel per op and bring their own
fused attention (Splash attention of JAX; FusedSDPA of Habana's Megatron-DeepSpeed and of Optimum
Habana; flash attention kernels of neuronx-distributed): there the framework writes the model, not
the kernels.
"""

from __future__ import annotations

from profiles.hardware.catalogue.catalog import get_device
from simulator.training_run.framework.framework import Framework
from simulator.training_run.run.training_run import TrainingRun


def compiles_graphs(run: TrainingRun) -> bool:
    """Whether a run's device is one of them."""
    return get_device(run.device).type in ("tpu", "accelerator")


def attention_kernel(run: TrainingRun, stack: Framework) -> str:
    """`fused`, `flash-2` or `unfused` (`Framework.attention`): what the compiler's own library has,
    unless the framework was written for such devices and says otherwise."""
    return "fused" if compiles_graphs(run) and not stack.devices else stack.attention
