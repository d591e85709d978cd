"""Python configurations as a run: torchtitan's registry, NeMo's and Megatron-Bridge's recipes,
InternEvo's files; read with `ast` only."""

from __future__ import annotations

import re
from collections.abc import Mapping

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    count_of,
    degree_of,
    read_by,
    recompute_of,
    truth_of,
)
from shardwright_frameworks.configs.python_file import PythonFile
from shardwright_frameworks.configs.python_values import PythonValues
from shardwright_frameworks.frameworks.flavors import collect_figures
from shardwright_frameworks.frameworks.nemo import KEYS as NEMO_KEYS
from shardwright_frameworks.frameworks.nemo import (
    collect_memory,
    collect_nemo,
    is_nemo,
    precision_of,
)
from shardwright_frameworks.frameworks.torchtitan import Values, collect_torchtitan
from shardwright_frameworks.shell.text_marks import Place

_TITAN_SECTIONS = frozenset({"training", "parallelism", "activation_checkpoint", "model_spec"})
_NEMO_MODULES = ("nemo_run", "nemo.collections.llm", "megatron.bridge")
_RECIPE = re.compile(r"(?:.*\.)?(\w+)\.(?:pretrain|finetune)_recipe")
# torchtitan's families by a part of their functions' names, longer ones first.
_FAMILIES = {
    "qwen3_5": "qwen3.5", "qwen35": "qwen3.5", "qwen3": "qwen3", "llama3": "llama3",
    "llama4": "llama4", "flux": "flux", "deepseek_v3": "deepseek_v3", "gpt_oss": "gpt_oss",
}  # fmt: skip
# `deepseek_v3_pretrain_256gpu_gb200_bf16_config` of Megatron-Bridge.
_SCALE = re.compile(r"_(\d+)gpus?_")
_TITAN_RANK = 8  # torchtitan/components/lora.py
_LORA_RANK = 32  # of Megatron-Bridge's adapters (src/megatron/bridge/peft/lora.py)
Keys = tuple[str, ...]
_DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "zero_stage", "sequence_parallel")
_BATCH = ("micro_batch", "global_batch")
# The fields that parts of a configuration decide.
_TITAN_PARTS: Mapping[str, Keys] = {
    "parallelism": _DEGREES,
    "training": (*_BATCH, "seq_len", "precision"),
    "model_spec": ("model.name", "model.flavor"),
    "activation_checkpoint": ("recompute",),
    "optimizer": ("optimizer",),
}
_NEMO_PARTS: Mapping[str, Keys] = {
    "trainer": (*_DEGREES, "devices", "nodes", "devices_per_node", "precision"),
    "strategy": _DEGREES,
    "model": (*_DEGREES, "recompute"),
    "data": (*_BATCH, "seq_len"),
    "train": _BATCH,
    "optim": ("optimizer", "distributed_optimizer", "zero_stage"),
    "optimizer": ("optimizer", "distributed_optimizer", "zero_stage"),
    "ddp": ("distributed_optimizer", "zero_stage", "gradient_reduction"),
    "mixed_precision": ("precision",),
    "plugins": ("precision",),
    "peft": ("model.lora_rank",),
}
# Arguments of NeMo's performance scripts, by the keys that they set.
_PERFORMANCE = {
    "tp_size": "tensor_model_parallel_size", "pp_size": "pipeline_model_parallel_size",
    "cp_size": "context_parallel_size", "vp_size": "virtual_pipeline_model_parallel_size",
    "ep_size": "expert_model_parallel_size", "etp_size": "expert_tensor_parallel_size",
    "mbs": "micro_batch_size", "gbs": "global_batch_size",
}  # fmt: skip
# NeMo's and Megatron-Bridge's classes of models (Llama3Config70B, Qwen3ModelProvider).
_MODEL_CLASS = re.compile(r"\d\w*(Config|Provider)|(Config|Provider)\d")
_TYPES = {"torch.bfloat16": "bf16", "torch.float16": "fp16", "torch.float32": "fp32",
          "torch.tf32": "tf32"}  # fmt: skip
_INTERNEVO: Mapping[str, tuple[str, Reader]] = {
    **read_by(
        degree_of,
        {"seq_len": "data.seq_len", "micro_batch": "data.micro_bsz", "vpp": "model.num_chunks",
         "gradient_accumulation": "data.micro_num", "model.num_layers": "model.num_layers",
         "model.hidden_size": "model.hidden_size", "model.num_heads": "model.num_attention_heads",
         "model.num_kv_heads": "model.num_kv_attention_heads", "model.top_k": "moe.top_k",
         "model.vocab_size": "model.vocab_size", "model.num_experts": "model.num_experts"},
    ),
    "model.use_flash_attn": ("flash_attention", truth_of),
    "model.checkpoint": ("recompute", recompute_of),
    "model.dtype": ("precision", lambda value: _TYPES.get(str(value))),
}  # fmt: skip
_CONVERTERS = {"nvfp4": "nvfp4", "mxfp8": "mx", "float8": "float8"}


def python_framework(file: PythonFile) -> str | None:
    """The framework of a Python configuration; None for other programs."""
    keys = file.keys().union(*map(file.keys, file.functions))
    calls = file.calls()
    if any(name.endswith("model_registry") for name in calls) or {
        "training", "parallelism"
    } <= keys:  # fmt: skip
        return "torchtitan"
    nanotron = any(module.partition(".")[0] == "nanotron" for module in file.modules)
    if nanotron and {"parallelism", "tokens"} <= keys:
        return "nanotron"
    top = file.keys()
    if {"parallel", "data"} <= top and top & {"micro_bsz", "micro_num"}:
        return "internevo"
    imported = any(module.startswith(_NEMO_MODULES) for module in file.modules)
    given = keys & (NEMO_KEYS.keys() | _PERFORMANCE.keys())
    if (imported and (given or any(map(file.changes_another, file.functions)))) or is_nemo(
        [(key,) for key in keys]
    ):
        bridge = any("bridge" in name.lower() for name in (*calls, *file.modules))
        return "megatron-bridge" if bridge else "nemo"
    return None


def chosen_function(file: PythonFile, requested: str | None) -> tuple[str | None, tuple[str, ...]]:
    """The function that returns the configuration, and the names of all such functions; None if
    there are several and none is requested."""
    is_titan = python_framework(file) == "torchtitan"
    marks = _TITAN_SECTIONS if is_titan else NEMO_KEYS.keys() | _TITAN_SECTIONS
    names = tuple(
        name for name in file.functions if file.keys(name) & marks or file.changes_another(name)
    )
    if requested is not None and requested in file.functions:
        return requested, (requested,)
    return (names[0], names) if len(names) == 1 else (None, names)


def _leave_parts_open(
    result: PythonValues, parts: Mapping[str, Keys], collected: Collected
) -> None:
    """Leave open the fields determined by unknown parts of a configuration."""
    for path, (call, why, place) in result.opened.items():
        if not path:
            collected.report_missing(call or result.name or "configuration", why, place)
        for key in parts.get(path[-1], ()) if path else ():
            collected.leave_open(key, ".".join(path), why, place)


def collect_python_torchtitan(
    found: PythonValues, overrides: list[Values], collected: Collected
) -> None:
    """Collect a function of torchtitan's registry, with overrides of the command line."""
    # A run of reinforcement learning has a trainer, and a generator of texts.
    values = {
        path: given
        for path, given in found.values.items()
        if path[0] not in ("generator", "inference")
    }
    prompts, samples = (
        values.get(("async_loop", key))
        for key in ("num_prompts_per_train_step", "num_samples_per_prompt")
    )
    if prompts is not None and samples is not None:
        size = degree_of(prompts[0]), degree_of(samples[0])
        total = size[0] * size[1] if size[0] and size[1] else None
        collected.set("global_batch", total, prompts[1], "num_prompts_per_train_step")
    none, place = values.get(("activation_checkpoint",), ("", Place("", 0)))
    if none is None:
        values[("activation_checkpoint", "mode")] = ("none", place)
    for path, name, arguments, place in found.calls:
        plain = name.rsplit(".", 2)
        kind = plain[-2] if plain[-1] == "Config" and len(plain) > 1 else plain[-1]
        if kind.endswith("model_registry") and arguments:
            values[("model", "flavor")] = (arguments[0], place)
            values[("model", "name")] = (_family(found.name, str(arguments[0])), place)
            if (layers := found.values.get((*path, "num_mtp_layers"))) is not None:
                collected.set("model.mtp_layers", degree_of(layers[0]), layers[1], "num_mtp_layers")
            found.opened.pop(path, None)
        elif kind in ("FullAC", "SelectiveAC", "NoAC", "MemoryBudgetAC"):
            mode = {"FullAC": "full", "NoAC": "none"}.get(kind, "selective")
            values[("activation_checkpoint", "mode")] = (mode, place)
        elif path == ("optimizer",) and (kind == "default_adamw" or "muon" in kind.lower()):
            values[("optimizer", "name")] = ("AdamW" if kind == "default_adamw" else "muon", place)
            found.opened.pop(path, None)
        elif kind == "LoRAConverter":
            rank, where = found.values.get((*path, "rank"), (_TITAN_RANK, place))
            collected.set("model.lora_rank", degree_of(rank), where, "rank")
        elif kind.endswith("Converter"):
            for word, converter in _CONVERTERS.items():
                if word in kind.lower():
                    values[("model", "converters")] = ([converter], place)
    if ("hf_model",) in values:  # of its backend for models of transformers
        values[("model", "name")] = values[("hf_model",)]
        values.pop(("model", "flavor"), None)
    _leave_parts_open(found, _TITAN_PARTS, collected)
    collect_torchtitan([values, *overrides], collected, check=False)


def _family(function: str, flavor: str) -> str:
    """The model family of a function of the registry: a known family in its name (`rl_grpo_qwen3`),
    or the part before the flavor (`llama3_8b`)."""
    name = function.lower().removeprefix("graph_trainer_")
    family = next((words for words in _FAMILIES if words in name), "")
    if family:
        return _FAMILIES[family]
    return name.replace(flavor.lower(), "|").split("|")[0].strip("_") or function


def collect_python_nemo(found: PythonValues, overrides: list[Values], collected: Collected) -> None:
    """Collect a recipe of NeMo or Megatron-Bridge, with overrides of the command line."""
    values, published = dict(found.values), None
    adapters: tuple[str, Place] | None = None
    for path, name, arguments, place in found.calls:
        kind = name.rsplit(".", 1)[-1]
        if kind in ("from_hf_pretrained", "from_hf_config") and arguments:
            collected.set("model.name", str(arguments[0]), place, kind)
            published = (str(arguments[0]), place, kind)
        if path and path[-1] in ("precision", "plugins", "mixed_precision", "precision_config"):
            word = next((str(a) for a in arguments if isinstance(a, str)), kind)
            if precision_of(word) is not None:
                values[("trainer", "precision")] = (word, place)
                found.opened.pop(path, None)
        if (recipe := _RECIPE.fullmatch(name)) is not None:
            # The recipe that it changes is a file of the framework.
            collected.report_missing(
                name, "the recipe that it begins with is not in the folder", place
            )
            collected.set("model.name", recipe[1], place, name)
            found.opened.pop(path, None)
        if kind == "set_primary_perf_configs":  # scripts/performance/helpers.py of NeMo
            for short, key in _PERFORMANCE.items():
                if (*path, short) in values:
                    values[(*path, key)] = values.pop((*path, short))
                    collected.use(short, values[(*path, key)][1])
        is_adapter = kind == "default_peft_config" and str(arguments[:1]) not in ("()", "(None,)")
        if is_adapter or (path == ("peft",) and kind.endswith(("LoRA", "DoRA"))):
            adapters = (name, place)
            found.opened.pop(path, None)
        if path[-2:] in (("model",), ("model", "config")) and _MODEL_CLASS.search(kind):
            collected.set("model.name", kind, place, kind, over=False)
    parts = dict(_NEMO_PARTS)
    if any(path[:1] == ("trainer",) for path in values):
        del parts["model"]  # NeMo's strategy has the degrees
    _leave_parts_open(found, parts, collected)
    collect_nemo([values, *overrides], collected)
    if not collected.is_incomplete:
        collected.default("Megatron-Core v0.14, transformer_config.py", recompute="none")
    for path, (value, place) in found.defaults.items():
        about, reader = NEMO_KEYS.get(path[-1], ("", degree_of))
        if about.startswith("model.") and about not in collected.open_keys:
            collected.set_first(about, reader(value), place, ".".join(path))
    if adapters is not None and values.get(("peft",), ("",))[0] is not None:
        collected.set_first("model.lora_rank", _LORA_RANK, adapters[1], adapters[0])
    if published is not None:  # the recipe's own figures come before those of the publication
        collect_figures(published[0], "", collected, *published[1:])
        whole = {path: value for each in (values, *overrides) for path, value in each.items()}
        collect_memory(whole, collected)  # shares of its layers
    if (scale := _SCALE.search(found.name)) is not None:
        collected.derive("devices", int(scale[1]), f"the recipe's name {found.name}")


def collect_internevo(top: PythonValues, collected: Collected) -> None:
    """Collect InternEvo's configuration file (github.com/InternLM/InternEvo, configs/7B_sft.py and
    doc/en/usage.md)."""
    mode, place = top.values.get(("parallel", "tensor", "mode"), (None, Place("", 0)))
    if mode in ("mtp", "msp", "fsp"):
        collected.set("sequence_parallel", mode != "mtp", place, "parallel.tensor.mode")
    # In mode isp the group splits sequences, and weights have a separate one.
    sizes = (("pipeline", "pp"),) if mode == "isp" else (("pipeline", "pp"), ("tensor", "tp"))
    for section, key in sizes:
        for path in (("parallel", section), ("parallel", section, "size")):
            if path in top.values:
                value, place = top.values[path]
                collected.set(key, degree_of(value), place, ".".join(path))
    for name, (about, reader) in _INTERNEVO.items():
        if (value := top.values.get(tuple(name.split(".")))) is not None:
            collected.set(about, reader(value[0]), value[1], name)
    weight = degree_of(top.values.get(("parallel", "weight", "size"), (1, None))[0]) or 1
    for path in (("parallel", "zero1", "size"), ("parallel", "zero1")) if weight == 1 else ():
        if path in top.values:
            value, place = top.values[path]
            size = count_of(value)
            # 1 switches it off; 0 and less is a group of all replicas, more is one of that size.
            stage = None if size is None and str(value) != "-1" else 0 if size == 1 else 1
            collected.set("zero_stage", stage, place, ".".join(path))
