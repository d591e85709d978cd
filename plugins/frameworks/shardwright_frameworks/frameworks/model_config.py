"""A Hugging Face configuration in the folder of a run: the figures of the run's model."""

from __future__ import annotations

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.keyed_file import KeyedFile
from shardwright_frameworks.configs.keyed_values import Reader, collect_keys, degree_of, truth_of

KEYS: dict[str, tuple[str, Reader]] = {
    "num_hidden_layers": ("model.num_layers", degree_of),
    "n_layer": ("model.num_layers", degree_of),
    "hidden_size": ("model.hidden_size", degree_of),
    "n_embd": ("model.hidden_size", degree_of),
    "intermediate_size": ("model.ffn_size", degree_of),
    "num_attention_heads": ("model.num_heads", degree_of),
    "n_head": ("model.num_heads", degree_of),
    "num_key_value_heads": ("model.num_kv_heads", degree_of),
    "head_dim": ("model.head_dim", degree_of),
    "vocab_size": ("model.vocab_size", degree_of),
    "max_position_embeddings": ("model.max_positions", degree_of),
    "tie_word_embeddings": ("model.tied_embeddings", truth_of),
    "num_local_experts": ("model.num_experts", degree_of),
    "num_experts": ("model.num_experts", degree_of),
    "n_routed_experts": ("model.num_experts", degree_of),
    "num_experts_per_tok": ("model.top_k", degree_of),
    "moe_intermediate_size": ("model.moe_ffn_size", degree_of),
    "n_shared_experts": ("model.num_shared_experts", degree_of),
    "first_k_dense_replace": ("model.first_dense_layers", degree_of),
    "sliding_window": ("model.sliding_window", degree_of),
}


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
