"""nanotron's YAML as a run (github.com/huggingface/nanotron, src/nanotron/config, v0.4 to main)."""

from __future__ import annotations

from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.keyed_file import KeyedFile
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    collect_keys,
    collect_unknown,
    count_of,
    degree_of,
    dtype_of,
    flash_of,
    if_on,
    recompute_of,
    word_of,
)
from shardwright_frameworks.frameworks.model_config import KEYS as MODEL_KEYS

_DEFAULTS = "nanotron v0.5, src/nanotron/config/parallelism_config.py"


def _engine(value: Any) -> str | None:
    return {"afab": "gpipe", "1f1b": "1f1b"}.get(str(value).lower(), word_of(value))


def _sequence_parallel(value: Any) -> bool | None:
    return {"reduce_scatter": True, "all_reduce": False}.get(str(value).lower())


_KEYS: dict[str, tuple[str, Reader]] = {
    "parallelism.dp": ("dp", degree_of),
    "parallelism.tp": ("tp", degree_of),
    "parallelism.pp": ("pp", degree_of),
    "parallelism.context_parallel_size": ("cp", degree_of),
    "parallelism.cp": ("cp", degree_of),
    "parallelism.expert_parallel_size": ("ep", degree_of),
    "parallelism.pp_engine": ("schedule", _engine),
    "parallelism.tp_mode": ("sequence_parallel", _sequence_parallel),
    "parallelism.recompute_layer": ("recompute", recompute_of),
    "parallelism.recompute_granularity": ("recompute", word_of),
    "tokens.micro_batch_size": ("micro_batch", degree_of),
    "tokens.sequence_length": ("seq_len", degree_of),
    "tokens.batch_accumulation_per_replica": ("gradient_accumulation", degree_of),
    "optimizer.zero_stage": ("zero_stage", count_of),
    "optimizer.optimizer_factory.name": ("optimizer", word_of),
    "optimizer.accumulate_grad_in_fp32": ("gradient_reduction", if_on("fp32")),
    "model.dtype": ("precision", dtype_of),
    "model.model_config._attn_implementation": ("flash_attention", flash_of),
    "model.model_config.num_kv_heads": ("model.num_kv_heads", degree_of),  # of its Starcoder2
    "model.model_config.moe_num_experts": ("model.num_experts", degree_of),
    "model.model_config.d_model": ("model.hidden_size", degree_of),  # of its Mamba
    "model.model_config.moe_config.num_experts": ("model.num_experts", degree_of),
    "model.model_config.moe_config.top_k": ("model.top_k", degree_of),
    "model.model_config.moe_config.enable_shared_expert": ("model.num_shared_experts", if_on(1)),
    "model.model_config.sliding_window_size": ("model.sliding_window", degree_of),
    "model.model_config.moe_config.moe_intermediate_size": ("model.moe_ffn_size", degree_of),
    **{f"model.{key}": entry for key, entry in MODEL_KEYS.items()},  # before its releases
    **{f"model.model_config.{key}": entry for key, entry in MODEL_KEYS.items()},
}


def is_nanotron(file: KeyedFile) -> bool:
    """Whether a YAML file is one of nanotron's."""
    sections = file.sections()
    return {"parallelism", "tokens"} <= sections or {
        "parallelism",
        "optimizer",
        "general",
    } <= sections


def collect_nanotron(file: KeyedFile, collected: Collected) -> None:
    """Collects a configuration."""
    collect_keys(file, collected, _KEYS)
    collect_unknown(file, collected, "nanotron", ("", "parallelism", "tokens"))
    factors = [collected.count(axis) for axis in ("dp", "tp", "pp")]
    if all(factors):
        ranks = collected.count("cp") or 1
        for factor in factors:
            ranks *= factor or 1
        key = ("parallelism", "expert_parallel_size")
        is_old = file.has("model", "model_config", "moe_num_experts")
        if is_old and (collected.count("ep") or 1) > 1:
            # v0.4, src/nanotron/parallel/context.py.
            why = "experts have ranks of their own, with the same sequences: not priced"
            collected.leave_open("ep", ".".join(key), why, file.place(key))
            collected.leave_open("devices")
        else:
            collected.derive("devices", ranks, "the product of the degrees, which nanotron asserts")
    collected.default(
        _DEFAULTS, cp=1, ep=1, sequence_parallel=False, schedule="gpipe", recompute="none",
        zero_stage=0, optimizer="adamw", precision="bf16",
    )  # fmt: skip
