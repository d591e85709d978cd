"""The public figures of a model named by a framework and a flavor: `llama3` `8B` of torchtitan."""

from __future__ import annotations

import re

from profiles.model.figures.figures_from_config import CONFIG_KINDS, figures_of_config, model_type
from profiles.model.figures.transformer import Transformer
from profiles.model.loaders import model_named, resolve_model
from shardwright.runs.known_models import known_model, names_another
from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.requests.table_row import SHIPPED
from shardwright_frameworks.shell.text_marks import Place

# Flavors of torchtitan (github.com/pytorch/torchtitan, torchtitan/models) whose published model has
# another name.
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
    """Set the figures of a known model, which the file's figures override; nothing for an unknown
    name or flavor (`deepseek_v3` `debugmodel`)."""
    head, _, tail = name.lower().rpartition("_")
    pair = (name.lower(), flavor.lower()) if flavor else (head, tail)
    requested = _NAMES.get(pair, f"{name}-{flavor}" if flavor else name)
    plain = re.sub(r"^.*/", "", requested).replace("_", "-")
    plain = re.sub(r"^([A-Z]\w*)Config(\d\w*)$", r"\1-\2", plain)  # NeMo's classes
    plain = re.sub(r"(?i)^llama3([123])-", r"llama-3.\1-", plain)
    found = _figures_of(re.sub(r"(?i)^meta-", "", plain))
    if found is None or (
        flavor and requested == f"{name}-{flavor}" and found == _figures_of(name.replace("_", "-"))
    ):
        return
    figures, source = found
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
        if f"model.{key}" not in {*collected.placed, *collected.open_keys}:
            collected.set(f"model.{key}", value, place, option)
    collected.set("model.figures_of", source, place, option, over=False)


def _figures_of(name: str) -> tuple[Transformer, str] | None:
    """The figures of a published name and their source: from the known models, or from the shipped
    model whose name is a prefix (`qwen3.5-35b-a3b-instruct`)."""
    known = known_model(name)
    if known is not None and known.figures is not None:
        return known.figures, f"{known.name} ({known.source})"
    words = name.lower().split("-")
    for count in range(len(words), 0, -1):
        shipped = model_named("-".join(words[:count]))
        if shipped is None or names_another("-".join(["", *words[count:]])):
            continue
        config = resolve_model(shipped).config
        if model_type(config) in CONFIG_KINDS:
            return figures_of_config(config, shipped), f"{shipped} ({SHIPPED}"
    return None
