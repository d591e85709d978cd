"""A Hugging Face configuration in the folder of a run: the figures of the run's model."""

from __future__ import annotations

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.keyed_file import KeyedFile
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    collect_keys,
    degree_of,
    read_by,
    truth_of,
)

KEYS: dict[str, tuple[str, Reader]] = {
    **read_by(
        degree_of,
        {"model.num_layers": "num_hidden_layers n_layer", "model.hidden_size": "hidden_size n_embd",
         "model.ffn_size": "intermediate_size n_inner", "model.head_dim": "head_dim",
         "model.num_heads": "num_attention_heads n_head",
         "model.num_kv_heads": "num_key_value_heads",
         "model.vocab_size": "vocab_size", "model.max_positions": "max_position_embeddings",
         "model.num_experts": "num_local_experts num_experts n_routed_experts",
         "model.top_k": "num_experts_per_tok", "model.moe_ffn_size": "moe_intermediate_size",
         "model.num_shared_experts": "n_shared_experts",
         "model.first_dense_layers": "first_k_dense_replace",
         "model.sliding_window": "sliding_window"},
    ),
    "tie_word_embeddings": ("model.tied_embeddings", truth_of),
}  # fmt: skip


def is_model_config(file: KeyedFile) -> bool:
    """Whether a file is a model's configuration of transformers."""
    return ("model_type",) in file.values or ("architectures",) in file.values


def collect_model_config(file: KeyedFile, collected: Collected) -> None:
    """Collects the figures of a configuration; those of the run's files override them."""
    of_config = Collected()
    collect_keys(file, of_config, KEYS)
    for key, placed in of_config.placed.items():
        collected.set(key, placed.value, placed.place, placed.option, over=False)
    if of_config.placed:
        where = file.place(())
        collected.set("model.figures_of", file.name, where, file.name, over=False)
