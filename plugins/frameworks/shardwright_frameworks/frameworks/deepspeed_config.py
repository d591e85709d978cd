"""DeepSpeed's JSON as a run (https://www.deepspeed.ai/docs/config-json/, DeepSpeed 0.5 to 0.18)."""

from __future__ import annotations

import re

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.keyed_file import KeyedFile
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    collect_keys,
    collect_unknown,
    count_of,
    degree_of,
    truth_of,
    word_of,
)

_DEFAULTS = "DeepSpeed 0.17, runtime/config.py"
_KEYS: dict[str, tuple[str, Reader]] = {
    "train_batch_size": ("global_batch", degree_of),
    "train_micro_batch_size_per_gpu": ("micro_batch", degree_of),
    "gradient_accumulation_steps": ("gradient_accumulation", degree_of),
    "zero_optimization.stage": ("zero_stage", count_of),
    "optimizer.type": ("optimizer", word_of),
    "tensor_parallel.autotp_size": ("tp", degree_of),
    "pipeline.stages": ("pp", degree_of),
    "sequence_parallel_size": ("cp", degree_of),
}
_SHIPPED = re.compile(
    r"examples/deepspeed/ds_z([0-3])\w*_config\.json$|deepspeed_configs/zero([1-3])\w*\.json$"
)
_MARKS = frozenset(
    {"train_batch_size", "train_micro_batch_size_per_gpu", "zero_optimization", "fp16", "bf16",
     "gradient_accumulation_steps", "steps_per_print", "wall_clock_breakdown", "gradient_clipping",
     "zero_allow_untested_optimizer", "bfloat16", "amp"}
)  # fmt: skip


def collect_shipped(name: str, collected: Collected) -> None:
    """Collect the ZeRO stage from the name of a file shipped with LLaMA-Factory or axolotl."""
    found = _SHIPPED.search(name)
    if found is not None:
        how = f"the name of {name}, which its framework ships"
        collected.derive("zero_stage", int(found[1] or found[2]), how)
        if "offload" in name:
            collected.derive("optimizer_offload", True, how)


def is_deepspeed(file: KeyedFile) -> bool:
    """Whether a file is a configuration of DeepSpeed."""
    return len(file.sections() & _MARKS) >= 2


def collect_deepspeed(file: KeyedFile, collected: Collected, *, check: bool = True) -> None:
    """Collects a configuration of DeepSpeed; `auto` gives no value.

    check  whether to report keys that no version has
    """
    if check:
        collect_unknown(file, collected, "deepspeed", ("", "zero_optimization"))
    collect_keys(file, collected, _KEYS)
    for section, precision in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16")):
        enabled = file.get(section, "enabled")
        if truth_of(enabled):
            collected.set(
                "precision", precision, file.place((section, "enabled")), f"{section}.enabled"
            )
    offload = file.get("zero_optimization", "offload_optimizer", "device")
    if offload in ("cpu", "nvme"):
        path = ("zero_optimization", "offload_optimizer", "device")
        collected.set("optimizer_offload", True, file.place(path), ".".join(path))
    elif truth_of(file.get("zero_optimization", "cpu_offload")):
        old = ("zero_optimization", "cpu_offload")
        collected.set("optimizer_offload", True, file.place(old), ".".join(old))
    collected.default(_DEFAULTS, zero_stage=0, tp=1, pp=1, cp=1)
    # `auto`: the program fills it in.
    if "auto" not in (file.get("bf16", "enabled"), file.get("fp16", "enabled")):
        collected.default(_DEFAULTS, precision="fp32")
    if file.get("gradient_accumulation_steps") != "auto":
        collected.default(_DEFAULTS, gradient_accumulation=1)
