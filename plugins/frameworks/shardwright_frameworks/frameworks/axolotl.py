"""axolotl's YAML as a run (github.com/axolotl-ai-cloud/axolotl, docs/config-reference and
docs/nd_parallelism, 0.12)."""

from __future__ import annotations

from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.keyed_file import KeyedFile
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    collect_keys,
    count_of,
    degree_of,
    if_on,
    truth_of,
    word_of,
)
from shardwright_frameworks.frameworks.accelerate import strategy_stage
from shardwright_frameworks.frameworks.hf_trainer import (
    collect_trainer,
    drop_adapter,
    given_by_file,
)
from shardwright_frameworks.frameworks.objectives import report_objective

_DEFAULTS = "axolotl 0.12, utils/schemas/config.py"
_FSDP_RECOMPUTE = ("activation_checkpointing", "fsdp_activation_checkpointing")


def _offloaded(value: Any) -> float | None:
    """1 for activations in host memory, from a boolean or a method's name (`legacy`, `disk`)."""
    return 1.0 if truth_of(value) or word_of(value) in ("legacy", "disk", "hidden_states") else None


_KEYS: dict[str, tuple[str, Reader]] = {
    "sequence_parallel_degree": ("cp", degree_of),  # before context_parallel_size
    "expert_parallel_size": ("ep", degree_of),
    "fsdp_config.offload_params": ("optimizer_offload", truth_of),
    "fsdp_config.fsdp_offload_params": ("optimizer_offload", truth_of),
    **{f"fsdp_config.{key}": ("recompute", if_on("full")) for key in _FSDP_RECOMPUTE},
    "activation_offloading": ("activation_offload", _offloaded),
}
_STRATEGY = ("sharding_strategy", "fsdp_sharding_strategy")
_RESHARD = ("reshard_after_forward", "fsdp_reshard_after_forward")


def is_axolotl(file: KeyedFile) -> bool:
    """Whether a file is one of axolotl's."""
    keys = file.sections()
    return "base_model" in keys and bool({"micro_batch_size", "datasets", "sequence_len"} & keys)


def _is_set(file: KeyedFile, *key: str) -> bool:
    """Whether a key has a value, or a section has keys."""
    return file.get(*key) is not None or bool(file.sections(*key))


def collect_axolotl(file: KeyedFile, collected: Collected) -> str | None:
    """Collects a configuration; returns the DeepSpeed file that it names, if any."""
    given = [each for each in given_by_file(file, collected) if each[0] != "fsdp_config"]
    deepspeed = collect_trainer(given, collected, defaults=False)
    if any(truth_of(file.get("fsdp_config", key)) for key in _FSDP_RECOMPUTE):
        collected.placed.pop("recompute", None)  # it replaces `gradient_checkpointing`
    if str(file.get("adapter")).lower() not in ("lora", "qlora"):
        drop_adapter(collected)
    collect_keys(file, collected, _KEYS)
    report_objective(word_of(file.get("rl")), "rl", file.place(("rl",)), collected)
    if "cut_cross_entropy" in str(file.get("plugins")):
        place = file.place(("plugins",))
        collected.report_unused("plugins", place, "a loss without logits in memory is not priced")
    whole, micro = degree_of(file.get("batch_size")), collected.count("micro_batch")
    if whole and micro:  # of one device (utils/config/__init__.py)
        passes, place = max(1, whole // micro), file.place(("batch_size",))
        collected.set("gradient_accumulation", passes, place, "batch_size", over=False)
    _collect_sharding(file, collected)
    _collect_mesh(file, collected)
    # `full`: weights and states too; `auto`: where the device has bf16 (utils/config/__init__.py).
    if str(file.get("bf16")).lower() in ("full", "auto"):
        collected.set("precision", "bf16", file.place(("bf16",)), "bf16")
    if str(file.get("bf16")).lower() == "auto":
        collected.default("axolotl's auto: bf16 where the device has it", precision="bf16")
    if truth_of(file.get("fp8")):  # the matmuls alone
        collected.placed.pop("precision", None)
        collected.set("precision", "fp8", file.place(("fp8",)), "fp8")
    if str(file.get("gradient_checkpointing")).lower() in ("offload", "offload_disk", "unsloth"):
        key = "gradient_checkpointing"  # activations are in host memory
        collected.set("recompute", "full", file.place((key,)), key)
    collected.default(
        _DEFAULTS, tp=1, pp=1, cp=1, ep=1, gradient_accumulation=1, micro_batch=1, recompute="none"
    )
    collected.default(_DEFAULTS, optimizer="adamw_torch_fused")
    if not deepspeed and not any(
        key.startswith("fsdp") and _is_set(file, key) for key in file.sections()
    ):
        collected.default(_DEFAULTS, zero_stage=0)
    return deepspeed


def _collect_sharding(file: KeyedFile, collected: Collected) -> None:
    """Collect the sharding: FSDP 2 uses `reshard_after_forward`, FSDP 1 a strategy."""
    version = file.get("fsdp_version") or file.get("fsdp_config", "fsdp_version")
    is_second = str(version) == "2"
    names = _RESHARD if is_second else _STRATEGY
    for name in names:
        path = ("fsdp_config", name)
        if path in file.values:
            value = file.get(*path)
            on = truth_of(value)
            stage = strategy_stage(value) if not is_second else None if on is None else 2 + on
            collected.set("zero_stage", stage, file.place(path), ".".join(path))
    for key in ("fsdp_version", "fsdp_config.fsdp_version", "fsdp_config"):
        place = file.place(tuple(key.split(".")))
        if _is_set(file, *key.split(".")):
            collected.use(key, place)
            collected.set_first("zero_stage", 3, place, key)


def _collect_mesh(file: KeyedFile, collected: Collected) -> None:
    """Collect the mesh. Replicas are `dp_replicate_size` x `dp_shard_size` x
    `expert_parallel_size`, as experts have a separate axis."""
    shard, path = count_of(file.get("dp_shard_size")), ("dp_shard_size",)
    if not shard:
        return
    copies = degree_of(file.get("dp_replicate_size")) or 1
    collected.use("dp_replicate_size", file.place(("dp_replicate_size",)))
    if copies > 1 < shard:
        place = file.place(("dp_replicate_size",))
        collected.set("dp_replicate", copies, place, "dp_replicate_size")
    replicas = shard * copies * (collected.count("ep") or 1)
    collected.set("dp", replicas, file.place(path), path[-1])
    if shard == 1 and not (_is_set(file, "fsdp_config") or _is_set(file, "fsdp_version")):
        collected.set_first("zero_stage", 0, file.place(path), path[-1])
