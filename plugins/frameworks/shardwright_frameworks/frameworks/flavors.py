"""The public figures of a model that a framework names by a flavor: `llama3` `8B` of torchtitan."""

from __future__ import annotations

import re

from profiles.published.known_models import known_model
from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.shell.text_marks import Place

# Flavors of torchtitan (github.com/pytorch/torchtitan, torchtitan/models) whose name with their
# model's is not that of the published model.
_NAMES = {
    ("llama3", "405b"): "llama-3.1-405b",
    ("llama4", "17bx16e"): "llama-4-scout",
    ("llama4", "17bx128e"): "llama-4-maverick",
    ("deepseek_v3", "671b"): "deepseek-v3",
    ("deepseek_v3", "236b"): "deepseek-v2",
    ("deepseek_v3", "16b"): "deepseek-v2-lite",
    ("gpt_oss", "120b"): "gpt-oss-120b",
    ("gpt_oss", "20b"): "gpt-oss-20b",
}


def collect_figures(
    name: str, flavor: str, collected: Collected, place: Place, option: str
) -> None:
    """Sets the figures of a known model, which the file's figures override; none if no
    model of that name is known."""
    requested = _NAMES.get((name.lower(), flavor.lower()), f"{name}-{flavor}" if flavor else name)
    plain = re.sub(r"^.*/", "", requested).replace("_", "-")
    plain = re.sub(r"(?i)^llama3([123])-", r"llama-3.\1-", plain)
    known = known_model(re.sub(r"(?i)^meta-", "", plain))
    if known is None or known.figures is None:
        return
    figures = known.figures
    pairs = {
        "num_layers": figures.num_layers,
        "hidden_size": figures.hidden_size,
        "ffn_size": figures.ffn_size or None,
        "num_heads": figures.num_heads,
        "num_kv_heads": figures.num_kv_heads,
        "head_dim": figures.head_size if figures.latent is None else None,
        "vocab_size": figures.vocab_size,
        "gated_mlp": figures.gated,
        "tied_embeddings": figures.tied_embeddings,
        "num_experts": figures.num_experts or None,
        "top_k": figures.top_k or None,
        "moe_ffn_size": figures.expert_size or None,
        "num_shared_experts": figures.num_shared_experts or None,
        "first_dense_layers": figures.first_dense_layers or None,
    }
    for key, value in pairs.items():
        if f"model.{key}" not in collected.placed:
            collected.set(f"model.{key}", value, place, option)
    collected.set("model.figures_of", f"{known.name} ({known.source})", place, option, over=False)
