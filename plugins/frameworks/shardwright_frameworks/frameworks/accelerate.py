"""accelerate's YAML as a run (github.com/huggingface/accelerate, utils/dataclasses.py and
commands/config/config_args.py, v0.20 to v1.12), and options of `accelerate launch`."""

from __future__ import annotations

from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import Options
from shardwright_frameworks.configs.keyed_file import KeyedFile
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    collect_keys,
    collect_unknown,
    count_of,
    degree_of,
    recompute_of,
    truth_of,
    word_of,
)

_DEFAULTS = "accelerate 1.10, utils/dataclasses.py"
_PRECISIONS = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "no": "fp32"}
_STRATEGIES = {
    "full_shard": 3, "1": 3, "shard_grad_op": 2, "2": 2, "no_shard": 0, "3": 0, "hybrid_shard": 3,
    "4": 3, "hybrid_shard_zero2": 2, "_hybrid_shard_zero2": 2, "5": 2,
}  # fmt: skip


def precision_word(value: Any) -> str | None:
    """The precision of a value (`bf16`), also for YAML's boolean `no`."""
    word = "no" if value is False else str(value).lower()
    return _PRECISIONS.get(word)


def strategy_stage(value: Any) -> int | None:
    """The ZeRO stage that corresponds to a sharding strategy of FSDP."""
    return _STRATEGIES.get(str(value).strip().lower())


def _reshards(value: Any) -> int | None:
    """The ZeRO stage of FSDP2's boolean, or of FSDP1's strategy under the same key."""
    if truth_of(value) is not None and str(value) not in ("1", "2", "3", "4", "5"):
        return 3 if truth_of(value) else 2
    return strategy_stage(value)


def _selective(value: Any) -> str | None:
    on = truth_of(value)
    return None if on is None else "selective" if on else "none"


_KEYS: dict[str, tuple[str, Reader]] = {
    "num_machines": ("nodes", degree_of),
    "num_processes": ("devices", degree_of),
    "mixed_precision": ("precision", precision_word),
    "gradient_accumulation_steps": ("gradient_accumulation", degree_of),
    "fsdp_config.fsdp_activation_checkpointing": ("recompute", recompute_of),
    "deepspeed_config.zero_stage": ("zero_stage", count_of),
    "deepspeed_config.gradient_accumulation_steps": ("gradient_accumulation", degree_of),
    "megatron_lm_config.megatron_lm_tp_degree": ("tp", degree_of),
    "megatron_lm_config.megatron_lm_pp_degree": ("pp", degree_of),
    "megatron_lm_config.megatron_lm_recompute_activations": ("recompute", _selective),
    "megatron_lm_config.megatron_lm_sequence_parallelism": ("sequence_parallel", truth_of),
    "megatron_lm_config.megatron_lm_use_distributed_optimizer": (
        "distributed_optimizer", truth_of,
    ),
    "parallelism_config.parallelism_config_tp_size": ("tp", degree_of),
    "parallelism_config.parallelism_config_cp_size": ("cp", degree_of),
}  # fmt: skip
_KINDS = frozenset(
    {"fsdp", "deepspeed", "megatron_lm", "multi_gpu", "no", "multi_cpu", "xla", "tpu"}
)


def is_accelerate(file: KeyedFile) -> bool:
    """Whether a file is a configuration of accelerate."""
    own = {"num_processes", "mixed_precision", "num_machines", "machine_rank"} & file.sections()
    kind = {"distributed_type", "compute_environment"} & file.sections()
    of_kind = {"fsdp_config", "deepspeed_config", *own} & file.sections()
    return len(own) > 1 or bool(kind and of_kind)


def collect_accelerate(file: KeyedFile, collected: Collected) -> str | None:
    """Collects a configuration; returns the DeepSpeed file that it names, if any."""
    collect_keys(file, collected, _KEYS)
    collect_unknown(file, collected, "accelerate", ("", "fsdp_config", "megatron_lm_config"))
    kind = word_of(file.get("distributed_type"))
    place = file.place(("distributed_type",))
    if kind == "fsdp" or (kind is None and file.has("fsdp_config")):
        _collect_fsdp(file, collected)
    if kind in ("multi_gpu", "multi_cpu") and "zero_stage" not in collected.placed:
        collected.set("zero_stage", 0, place, "distributed_type")
    if kind == "megatron_lm" and collected.get("distributed_optimizer"):
        option = "megatron_lm_use_distributed_optimizer"
        where = file.place(("megatron_lm_config", option))
        collected.set("zero_stage", 1, where, option)
    sizes = [
        count_of(file.get("parallelism_config", f"parallelism_config_dp_{kind}_size"))
        for kind in ("replicate", "shard")
    ]
    if any(sizes):
        copies = "parallelism_config_dp_replicate_size"
        collected.use(copies, file.place(("parallelism_config", copies)))
        if min(size or 1 for size in sizes) > 1:
            place = file.place(("parallelism_config", copies))
            collected.set("dp_replicate", sizes[0], place, copies)
        path = ("parallelism_config", "parallelism_config_dp_shard_size")
        collected.set("dp", (sizes[0] or 1) * (sizes[1] or 1), file.place(path), path[-1])
    path = ("parallelism_config", "parallelism_config_sp_size")  # Ulysses, instead of cp
    if (degree_of(file.get(*path)) or 1) > 1:
        collected.placed.pop("cp", None)
        collected.set("cp", degree_of(file.get(*path)), file.place(path), path[-1])
    offload = file.get("deepspeed_config", "offload_optimizer_device")
    if offload in ("cpu", "nvme"):
        path = ("deepspeed_config", "offload_optimizer_device")
        collected.set("optimizer_offload", True, file.place(path), ".".join(path))
    if truth_of(file.get("fsdp_config", "fsdp_offload_params")):
        path = ("fsdp_config", "fsdp_offload_params")
        collected.set("optimizer_offload", True, file.place(path), ".".join(path))
    # Recomputation and passes are the program's, too.
    collected.default(_DEFAULTS, tp=1, pp=1, cp=1, precision="fp32")
    named = file.get("deepspeed_config", "deepspeed_config_file")
    return named if isinstance(named, str) else None


def _collect_fsdp(file: KeyedFile, collected: Collected) -> None:
    version = str(file.get("fsdp_config", "fsdp_version") or "1")
    collected.use("fsdp_version", file.place(("fsdp_config", "fsdp_version")))
    for option in ("fsdp_reshard_after_forward", "fsdp_sharding_strategy"):
        path = ("fsdp_config", option)
        if path not in file.values:
            continue
        value = file.values[path]
        stage = _reshards(value) if option.endswith("forward") else strategy_stage(value)
        if stage is not None:
            collected.set("zero_stage", stage, file.place(path), f"fsdp_config.{option}")
            return
    collected.default(f"{_DEFAULTS} (FSDP {version})", zero_stage=3)


def collect_launch_options(options: Options, collected: Collected) -> None:
    """Collect `accelerate launch --mixed_precision bf16 --use_fsdp --zero_stage 3 ...`."""
    options.collect_counts(
        collected,
        {"zero_stage": "zero_stage", "megatron_lm_tp_degree": "tp", "megatron_lm_pp_degree": "pp",
         "gradient_accumulation_steps": "gradient_accumulation", "num_machines": "nodes"},
    )  # fmt: skip
    options.collect_words(
        collected,
        {"mixed_precision": ("precision", precision_word),
         "fsdp_sharding_strategy": ("zero_stage", strategy_stage),
         "fsdp_activation_checkpointing": ("recompute", recompute_of)},
    )  # fmt: skip
