"""torchtune's recipes as a run: a YAML file, with `key=value` after `tune run`.

Names: github.com/pytorch/torchtune, recipes/configs and recipes/full_finetune_distributed.py (0.6).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import read_pairs
from shardwright_frameworks.configs.interpolation import Open
from shardwright_frameworks.configs.keyed_file import KeyedFile
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    degree_of,
    if_on,
    recompute_of,
    text_of,
    truth_of,
    word_of,
)
from shardwright_frameworks.frameworks.flavors import collect_figures
from shardwright_frameworks.shell.text_marks import Place, UnknownValue, Word

_DEFAULTS = "torchtune 0.6, recipes/full_finetune_distributed.py"
_SHARDING = ("data_parallel_", "fsdp_")
_RECIPE = re.compile(r".*_(distributed|single_device)$")


def _component(value: Any) -> str | None:
    word = word_of(value)
    return None if word is None else word.rpartition(".")[2]


_KEYS: dict[str, tuple[str, Reader]] = {
    "tensor_parallel_dim": ("tp", degree_of),
    "context_parallel_dim": ("cp", degree_of),
    "batch_size": ("micro_batch", degree_of),
    "gradient_accumulation_steps": ("gradient_accumulation", degree_of),
    "tokenizer.max_seq_len": ("seq_len", degree_of),
    "dtype": ("precision", lambda v: {"bf16": "bf16", "fp32": "fp32"}.get(str(v).lower())),
    "enable_activation_checkpointing": ("recompute", recompute_of),
    "fsdp_cpu_offload": ("optimizer_offload", truth_of),
    "optimizer._component_": ("optimizer", _component),
    "model.lora_rank": ("model.lora_rank", degree_of),
    "model.quantize_base": ("base_precision", if_on("nf4")),
    "model._component_": ("model.name", text_of),
}


def is_torchtune(file: KeyedFile) -> bool:
    """Whether a file is one of torchtune's."""
    named = (file.get("model", "_component_"), file.get("tokenizer", "_component_"))
    return any(isinstance(each, str) and each.startswith("torchtune.") for each in named)


def is_recipe(name: str) -> bool:
    """Whether a word after `tune run` is the name of a recipe."""
    return _RECIPE.fullmatch(name) is not None


def collect_torchtune(
    file: KeyedFile | None,
    words: Sequence[Word],
    unknowns: Sequence[UnknownValue],
    collected: Collected,
) -> None:
    """Collects a recipe; `key=value` of the command line override it."""
    values: dict[str, tuple[Any, Place]] = {}
    for path in () if file is None else tuple(file.values):
        assert file is not None
        values[".".join(path)] = (file.open(*path) or file.get(*path), file.place(path))
    for key, value, place in read_pairs(words, unknowns):
        old = values.get(key, (Open(""), place))
        known = not isinstance(value, Open) and not isinstance(old[0], Open)
        if key in _KEYS and known and str(old[0]) != value:
            collected.report_override(_KEYS[key][0], key, old, (str(value), place))
        values[key] = (value, place)
    for key, (value, place) in list(values.items()):
        shards = "dp" if key.startswith("data_parallel_") else "zero_stage"
        about = _KEYS.get(key, (shards if key.startswith(_SHARDING) else "",))[0]
        if about and isinstance(value, Open):
            collected.leave_open(about, key, value.why, place)
            del values[key]
        elif key in _KEYS:
            collected.set(about, _KEYS[key][1](value), place, key)
    if file is not None and file.name.endswith("_single_device.yaml"):
        collected.set("devices", 1, Place(file.name, 1), file.name, over=False)
    _collect_sharding(values, collected)
    _collect_model(values, collected)
    collected.default(
        _DEFAULTS, tp=1, pp=1, cp=1, zero_stage=3, gradient_accumulation=1, recompute="none"
    )


def _collect_sharding(values: dict[str, tuple[Any, Place]], collected: Collected) -> None:
    shard, place = values.get("data_parallel_shard_dim", (None, Place("", 0)))
    copies = degree_of(values.get("data_parallel_replicate_dim", (1, place))[0])
    shards = degree_of(shard)
    if shards and copies and "dp" not in collected.open_keys:
        collected.set("dp", shards * copies, place, "data_parallel_shard_dim")
        if copies > 1 < shards:
            collected.set("dp_replicate", copies, place, "data_parallel_replicate_dim")
    kept, where = values.get("fsdp_reshard_after_forward", (None, place))
    if truth_of(kept) is not None:
        stage = 3 if truth_of(kept) else 2
        collected.set("zero_stage", stage, where, "fsdp_reshard_after_forward")


def _collect_model(values: dict[str, tuple[Any, Place]], collected: Collected) -> None:
    """Collect the model: `torchtune.models.llama3_1.lora_llama3_1_8b` is Llama 3.1 8B."""
    value, place = values.get("model._component_", (None, Place("", 0)))
    if not isinstance(value, str):
        return
    name = value.rpartition(".")[2]
    if name.startswith("qlora_"):
        collected.set("base_precision", "nf4", place, "model._component_")
    name = name.removeprefix("qlora_").removeprefix("lora_")
    known = re.sub(r"^llama3_(\d)_(\d+b)$", r"llama-3.\1-\2", name)
    known = re.sub(r"^llama(\d)_(\d+b)$", r"llama-\1-\2", known)
    collect_figures(known, "", collected, place, "model._component_")
