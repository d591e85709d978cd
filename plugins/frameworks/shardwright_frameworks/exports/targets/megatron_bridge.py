"""Megatron-Bridge (NeMo): overrides of a recipe, as YAML and as the words of `run_recipe.py`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from shardwright_frameworks.exports.targets.megatron_settings import megatron_settings
from shardwright_frameworks.exports.values.exported import Exported, ExportedFile
from shardwright_frameworks.exports.values.options import nearest
from shardwright_frameworks.exports.values.planned_run import PlannedRun
from shardwright_frameworks.exports.values.yaml_text import yaml_text

# Recipes of the models that are shipped (github.com/NVIDIA-NeMo/Megatron-Bridge 067f987d,
# 2026-08-22, src/megatron/bridge/recipes).
_RECIPES = {
    "llama-3.1-8b": "llama31_8b_pretrain_config",
    "llama-3.1-70b": "llama31_70b_pretrain_config",
    "llama-3.1-405b": "llama31_405b_pretrain_config",
    "deepseek-v3": "deepseek_v3_pretrain_config",
    "qwen3-235b-a22b": "qwen3_235b_a22b_pretrain_config",
}
_GENERAL = "llama31_8b_pretrain_config"
# Options that its model provider calls otherwise, or derives.
_MODEL_NAMES = {
    "num_experts": "num_moe_experts",
    "norm_epsilon": "layernorm_epsilon",
    "max_position_embeddings": "seq_length",
}
_PRECISIONS = {
    "bf16": "bf16_mixed",
    "fp16": "fp16_mixed",
    "fp8": "bf16_with_fp8_delayed_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed",
    "nvfp4": "bf16_with_nvfp4_mixed",
}
# Options of TransformerConfig among the settings of training; others have separate sections.
_OF_MODEL = (
    "recompute_granularity",
    "recompute_method",
    "recompute_num_layers",
    "recompute_modules",
    "first_last_layers_bf16",
    "num_layers_at_start_in_bf16",
    "num_layers_at_end_in_bf16",
)


def export_megatron_bridge(planned: PlannedRun) -> Exported:
    """`overrides.yaml` and the same as KEY=VALUE; raises the errors of megatron_settings."""
    settings = megatron_settings(planned, "megatron-bridge")
    run = planned.run
    model = _model(settings.model, settings.parallelism)
    model |= {name: v for name, v in settings.training.items() if name in _OF_MODEL}
    if "cpu_offloading_num_layers" in settings.training:
        layers = settings.training["cpu_offloading_num_layers"]
        model |= {"cpu_offloading": True, "cpu_offloading_num_layers": layers}
    overrides: dict[str, dict[str, Any]] = {
        "model": model,
        "train": {
            "micro_batch_size": run.micro_batch,
            "global_batch_size": run.global_batch,
            "train_iters": 100,
        },
        "dataset": {"seq_length": run.seq_len},
        "ddp": _ddp(planned, settings.parallelism),
        "optimizer": _optimizer(settings.parallelism, settings.training),
    }
    if "ckpt_format" in settings.parallelism:
        overrides["checkpoint"] = {"ckpt_format": settings.parallelism["ckpt_format"]}
    why = "megatron-bridge names no recipe of precision in fp32"
    precision, low = nearest("precision", run.precision, {"fp32": "bf16"}, why)
    overrides["mixed_precision"] = {"": _PRECISIONS.get(precision, _PRECISIONS["bf16"])}
    recipe = _RECIPES.get(planned.model, "")
    shown = {section: value.get("", value) for section, value in overrides.items()}
    return Exported(
        program='"${BRIDGE_PATH:?set it to a checkout of Megatron-Bridge}'
        '/scripts/training/run_recipe.py"',
        arguments=(
            f"--recipe {recipe or _GENERAL}",
            "--mode pretrain",
            "--dataset mock",
            *_words(overrides),
        ),
        files=(ExportedFile(path="overrides.yaml", text=yaml_text(shown)),),
        unexpressed=(*settings.unexpressed, *low),
        needs=("Megatron-Bridge 0.5 or later (BRIDGE_PATH) on every node",),
        fill_in=(
            "--dataset mock stands for yours",
            *(
                ()
                if recipe
                else (
                    f"the recipe: {_GENERAL} lends its optimizer and schedule, the overrides give "
                    f"it the figures of {planned.model}",
                )
            ),
        ),
    )


def _model(model: Mapping[str, Any], parallelism: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the model's provider."""
    found: dict[str, Any] = {}
    for name, value in model.items():
        if name in ("group_query_attention", "swiglu", "disable_bias_linear", "squared_relu"):
            continue
        if name == "untie_embeddings_and_output_weights":
            found["share_embeddings_and_output_weights"] = False
        elif name == "window_size":
            found[name] = [int(part) for part in str(value).split(",")]
        elif name == "moe_layer_freq":
            parts = (part.split("*") for part in str(value).strip("()").split("+"))
            found[name] = [place for unit, n in parts for place in json.loads(unit) * int(n)]
        elif _MODEL_NAMES.get(name, name) not in found:
            found[_MODEL_NAMES.get(name, name)] = value
    if model.get("swiglu"):
        found["gated_linear_unit"] = True
    found["add_bias_linear"] = not model.get("disable_bias_linear", False)
    for name in (
        "tensor_model_parallel_size",
        "pipeline_model_parallel_size",
        "pipeline_model_parallel_layout",
        "context_parallel_size",
        "cp_comm_type",
        "expert_model_parallel_size",
        "expert_tensor_parallel_size",
        "sequence_parallel",
        "overlap_moe_expert_parallel_comm",
    ):
        if name in parallelism:
            found[name] = parallelism[name]
    if "num_virtual_stages_per_pipeline_rank" in parallelism:
        chunks = parallelism["num_virtual_stages_per_pipeline_rank"]
        found["virtual_pipeline_model_parallel_size"] = chunks
    return found


def _ddp(planned: PlannedRun, parallelism: Mapping[str, Any]) -> dict[str, Any]:
    found = {
        "use_distributed_optimizer": bool(parallelism.get("use_distributed_optimizer")),
        "overlap_grad_reduce": bool(parallelism.get("overlap_grad_reduce")),
        "overlap_param_gather": bool(parallelism.get("overlap_param_gather")),
        "grad_reduce_in_fp32": planned.run.gradient_reduction != "bf16",
    }
    if parallelism.get("use_megatron_fsdp"):
        strategy = parallelism["data_parallel_sharding_strategy"]
        found |= {"use_megatron_fsdp": True, "data_parallel_sharding_strategy": strategy}
    return found


def _optimizer(parallelism: Mapping[str, Any], training: Mapping[str, Any]) -> dict[str, Any]:
    found = {"use_distributed_optimizer": bool(parallelism.get("use_distributed_optimizer"))}
    for name in ("optimizer_cpu_offload", "optimizer_offload_fraction"):
        if name in training:
            found[name] = training[name]
    if training.get("use_precision_aware_optimizer"):
        found["use_precision_aware_optimizer"] = True
    return found


def _words(overrides: Mapping[str, Mapping[str, object]]) -> list[str]:
    """`model.tensor_model_parallel_size=8` and so on, quoted for a shell."""
    found = []
    for section, values in overrides.items():
        for name, value in values.items():
            key = f"{section}.{name}" if name else section
            found.append(shlex.quote(f"{key}={_plain(value)}"))
    return found


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ",".join(_plain(item) for item in value) + "]"
    if isinstance(value, str) and not value.replace("_", "").isalnum():
        return f"'{value}'"
    return str(value)
