"""Framework versions whose code has read the exported files (tests/frameworks of this plug-in,
run by `make frameworks`)."""

from __future__ import annotations

from collections.abc import Mapping

TESTED_ON = "2026-11-22"
TESTED_VERSIONS: Mapping[str, tuple[str, ...]] = {
    "megatron": (
        "megatron-core 0.19.2 (megatron.training's parser and checks, TransformerConfig)",
    ),
    "megatron-bridge": ("megatron-bridge 0.6.2 (its dataclasses; not its launcher)",),
    "torchtitan": (
        "torchtitan 0.2.2 (config manager, pipeline splitter, two steps on CPUs)",
        "torchtitan 0.3.0 (config manager, the model on shapes; not trained)",
    ),
    "deepspeed": (
        "deepspeed 0.19.8 (DeepSpeedConfig, two steps on CPUs; not Megatron-DeepSpeed's arguments)",
    ),
    "accelerate": ("accelerate 1.15.0 (launcher, two steps of FSDP2 on CPUs)",),
    "hf-trainer": ("transformers 5.23.0 (TrainingArguments)",),
    "nanotron": ("nanotron 2411b022 of 2026-04-07 (get_config_from_file, from its sources)",),
    "maxtext": ("maxtext 0.2.5 (pyconfig)",),
    "torchrun": ("torch 2.13.0 (two steps on CPUs)",),
    "slurm": ("slurm 22.05 (sbatch --test-only, without a controller)",),
    "kubernetes": (
        "kubernetes 37.0.2 (its models of pods)",
        "kubeflow-training 1.9.4, kubeflow-trainer-api 2.3.0 (models of PyTorchJob and TrainJob)",
    ),
    "skypilot": ("skypilot 0.14.1 (Task.from_yaml)",),
    "ray": ("ray 2.60.0 (the driver's tasks; not a cluster)",),
}
"""Target or launcher -> `package version`, and its part that has read the files."""


def version_words(name: str) -> str:
    """One line on the tested versions."""
    found = TESTED_VERSIONS.get(name, ())
    if not found:
        return "Not read by the target's own code here: written from its sources."
    return f"Read by {', '.join(found)} on {TESTED_ON}; other versions may name options otherwise."
