"""Smaller families of YAML: GPT-NeoX (github.com/EleutherAI/gpt-neox, megatron/neox_arguments),
Composer's (github.com/mosaicml/llm-foundry scripts/train/yamls, github.com/allenai/OLMo
configs), Levanter (github.com/marin-community/levanter, src/levanter/trainer.py, models)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.keyed_file import KeyedFile
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    collect_keys,
    degree_of,
    dtype_of,
    flash_of,
    opposite_of,
    read_by,
    recompute_of,
    text_of,
    truth_of,
    word_of,
)
from shardwright_frameworks.frameworks.accelerate import strategy_stage
from shardwright_frameworks.frameworks.deepspeed_config import collect_deepspeed

_NEOX_MARKS = frozenset({"pipe_parallel_size", "model_parallel_size"})
_PRECISIONS = {
    "amp_bf16": "bf16", "bf16": "bf16", "bfloat16": "bf16", "amp_fp16": "fp16", "fp16": "fp16",
    "fp32": "fp32", "amp_fp8": "fp8", "pure_bf16": "bf16",
}  # fmt: skip


def _precision(value: Any) -> str | None:
    return _PRECISIONS.get(str(value).lower())


def _stages(value: Any) -> int | None:
    """The number of stages; 0 means no pipeline."""
    return 1 if str(value) == "0" else degree_of(value)


_NEOX: dict[str, tuple[str, Reader]] = {
    "pipe_parallel_size": ("pp", _stages),
    "model_parallel_size": ("tp", degree_of),
    "sequence_parallel": ("sequence_parallel", truth_of),
    "num_layers": ("model.num_layers", degree_of),
    "hidden_size": ("model.hidden_size", degree_of),
    "num_attention_heads": ("model.num_heads", degree_of),
    "num_kv_heads": ("model.num_kv_heads", degree_of),
    "seq_length": ("seq_len", degree_of),
    "max_position_embeddings": ("model.max_positions", degree_of),
    "no_weight_tying": ("model.tied_embeddings", opposite_of),
    "checkpoint_activations": ("recompute", recompute_of),
    "precision": ("precision", _precision),
    "moe_num_experts": ("model.num_experts", degree_of),
    "num_gpus": ("devices_per_node", degree_of),
    "gas": ("gradient_accumulation", degree_of),
}
_COMPOSER: dict[str, tuple[str, Reader]] = {
    **read_by(
        degree_of,
        {"seq_len": "max_seq_len model.max_sequence_length model.max_seq_len",
         "global_batch": "global_train_batch_size", "micro_batch": "device_train_microbatch_size",
         "model.hidden_size": "model.d_model", "model.num_layers": "model.n_layers",
         "model.num_heads": "model.n_heads",
         "model.num_kv_heads": "model.n_kv_heads model.attn_config.kv_n_heads",
         "model.vocab_size": "model.vocab_size", "devices": "gpus compute.gpus"},
    ),
    "optimizer.name": ("optimizer", word_of),
    "fsdp_config.activation_checkpointing": ("recompute", recompute_of),
    "model.weight_tying": ("model.tied_embeddings", truth_of),
    "model.flash_attention": ("flash_attention", truth_of),
    "precision": ("precision", _precision),
    "fsdp_config.sharding_strategy": ("zero_stage", strategy_stage),
    "fsdp.sharding_strategy": ("zero_stage", strategy_stage),
    "model.attn_config.attn_impl": ("flash_attention", flash_of),
    "model.pretrained_model_name_or_path": (
        "model.name",
        text_of,
    ),
}  # fmt: skip


def _compute_type(value: Any) -> str | None:
    """The type of a policy of mixed precision, `p=f32,c=bfloat16` or a word for all of it."""
    found = re.search(r"\bc(?:ompute)?=(\w+)", str(value))
    word = found[1] if found is not None else str(value)
    return {"f32": "fp32", "full": "fp32", "f16": "fp16"}.get(word, dtype_of(word))


_LEVANTER: dict[str, tuple[str, Reader]] = {
    **read_by(
        degree_of,
        {
            "global_batch": "trainer.train_batch_size",
            "micro_batch": "trainer.per_device_parallelism",
            "seq_len": "model.seq_len model.max_seq_len max_seq_len train_seq_len",
            "tp": "trainer.model_axis_size",
            "model.num_layers": "model.num_layers",
            "model.hidden_size": "model.hidden_dim",
            "model.ffn_size": "model.intermediate_dim",
            "model.num_heads": "model.num_heads",
            "model.num_kv_heads": "model.num_kv_heads",
            "model.head_dim": "model.head_dim",
            "model.sliding_window": "model.sliding_window",
            "model.num_experts": "model.n_routed_experts",
            "model.top_k": "model.num_experts_per_tok",
        },
    ),
    "trainer.mp": ("precision", _compute_type),
    "trainer.fsdp_axis": ("zero_stage", lambda value: 3 if value else 0),
    "optimizer.type": ("optimizer", word_of),
    "model.gradient_checkpointing": ("recompute", recompute_of),
    "model.tie_word_embeddings": ("model.tied_embeddings", truth_of),
    "initialize_from_hf": ("model.name", text_of),
    "model_name_or_path": ("model.name", text_of),
}


def is_levanter(file: KeyedFile) -> bool:
    """Whether a file is Levanter's."""
    return file.has("trainer", "train_batch_size") and file.has("trainer", "num_train_steps")


def collect_levanter(file: KeyedFile, collected: Collected) -> None:
    """Collect a configuration of Levanter; devices are those of its program."""
    collect_keys(file, collected, _LEVANTER)
    kind, place = file.get("model", "type"), file.place(("model", "type"))
    if isinstance(kind, str):
        collected.set("model.gated_mlp", kind not in ("gpt2", "mpt"), place, "model.type")
    axes = ("trainer", "tensor_parallel_axes")  # of models, sharded by `model_axis_size`
    collected.use(".".join(axes), file.place(axes))
    collected.default(
        "Levanter 1.2, trainer.py and models",
        tp=1,
        pp=1,
        cp=1,
        zero_stage=3,
        optimizer="adam",
        recompute="full",
        precision="fp32",
    )


def hyphens_replaced(file: KeyedFile) -> KeyedFile:
    """The file with underscores in its keys, as GPT-NeoX reads them."""

    def key(path: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(part.replace("-", "_") for part in path)

    return replace(
        file,
        values={key(path): value for path, value in file.values.items()},
        lines={key(path): line for path, line in file.lines.items()},
        places={key(path): place for path, place in file.places.items()},
    )


def is_neox(file: KeyedFile) -> bool:
    """Whether a file is GPT-NeoX's."""
    return len(hyphens_replaced(file).sections() & _NEOX_MARKS) == 2


def collect_neox(file: KeyedFile, collected: Collected) -> None:
    """Collects a configuration of GPT-NeoX, with DeepSpeed's keys in it."""
    plain = hyphens_replaced(file)
    collect_keys(plain, collected, _NEOX)
    collect_deepspeed(plain, collected, check=False)
    collected.use("fp16", plain.place(("fp16", "fp16")))  # `enabled` has the same meaning
    gated = str(plain.get("activation")).lower() in ("swiglu", "geglu")
    width = plain.get("intermediate_size")
    if plain.has("activation"):
        collected.set("model.gated_mlp", gated, plain.place(("activation",)), "activation")
    if isinstance(width, int) and (not gated or width % 3 == 0):
        # Two thirds of it are computed, half of which are the gate (model/transformer.py).
        ffn = width // 3 if gated else width
        collected.set(
            "model.ffn_size", ffn, plain.place(("intermediate_size",)), "intermediate_size"
        )
    lists = [v for path, v in plain.values.items() if path[0] == "attention_config"]
    kinds = {kind for each in lists if isinstance(each, list) for kind in each}
    if others := {str(kind) for kind in kinds} - {"global", "flash"}:
        why = f"blocks of {', '.join(sorted(others))} are read as those of full attention"
        place = plain.place(("attention_config",))
        collected.report_unresolved("attention_config", why, place)
    collected.default("GPT-NeoX 2.0, megatron/neox_arguments", recompute="none", cp=1)


def _collect_gated(file: KeyedFile, collected: Collected) -> None:
    """Collect the widths of the embedding and the feed-forward; OLMo's counts both halves of a
    gated one (olmo/model.py, SwiGLU)."""
    gated = file.get("model", "activation_type") in ("swiglu", "geglu")
    place = file.place(("model", "activation_type"))
    if file.has("model", "activation_type"):
        collected.set("model.gated_mlp", gated, place, "model.activation_type")
    width, ratio = file.get("model", "mlp_hidden_size"), file.get("model", "mlp_ratio")
    hidden = collected.count("model.hidden_size")
    if not isinstance(width, int) and hidden and isinstance(ratio, int):
        width = hidden * ratio
    rows = ("model", "embedding_size")  # of the table, the vocabulary padded
    if file.get(*rows):
        collected.forget("model.vocab_size")
        collected.set(
            "model.vocab_size", degree_of(file.get(*rows)), file.place(rows), ".".join(rows)
        )
    expansion = file.get("model", "expansion_ratio")
    if isinstance(expansion, int) and hidden and file.get("model", "name") == "mpt_causal_lm":
        collected.derive("model.ffn_size", hidden * expansion, "d_model x expansion_ratio")
    option = "model.mlp_hidden_size" if file.has("model", "mlp_hidden_size") else "model.mlp_ratio"
    if isinstance(width, int) and file.has("model", "activation_type"):
        half = width // 2 if gated else width
        collected.set("model.ffn_size", half, file.place(tuple(option.split("."))), option)


def is_olmo(file: KeyedFile) -> bool:
    """Whether a file of Composer's form is OLMo's."""
    return file.has("model", "max_sequence_length") or file.has("model", "activation_type")


def is_composer(file: KeyedFile) -> bool:
    """Whether a file is one of llm-foundry's or OLMo's."""
    return {"global_train_batch_size", "model"} <= file.sections()


def collect_composer(file: KeyedFile, collected: Collected) -> None:
    """Collects a configuration of Composer's form."""
    collect_keys(file, collected, _COMPOSER)
    _collect_gated(file, collected)
    if file.get("distributed_strategy") in ("ddp", "single"):
        place = file.place(("distributed_strategy",))
        collected.set("zero_stage", 0, place, "distributed_strategy")
    kind = file.get("activation_checkpointing")
    if isinstance(kind, str):
        word = "full" if kind == "whole_layer" else None
        collected.set("recompute", word, file.place(("activation_checkpointing",)),
                     "activation_checkpointing")  # fmt: skip
    collected.default("Composer's FSDP", tp=1, pp=1, cp=1, zero_stage=3, recompute="none")
