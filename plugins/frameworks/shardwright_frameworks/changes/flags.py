"""The option of each framework that makes a change: `--recompute-granularity full -> none`."""

from __future__ import annotations

from shardwright_frameworks.changes.single_change import SingleChange
from shardwright_frameworks.imported_run import ImportedRun

_NEMO = {
    "micro_batch": "micro_batch_size", "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size",
    "ep": "expert_model_parallel_size", "vpp": "virtual_pipeline_model_parallel_size",
    "schedule": "overlap_moe_expert_parallel_comm", "recompute": "recompute_granularity",
    "sequence_parallel": "sequence_parallel", "zero_stage": "use_distributed_optimizer",
    "precision": "precision",
}  # fmt: skip
_MEGATRON = {field: f"--{name.replace('_', '-')}" for field, name in _NEMO.items()} | {
    "vpp": "--num-virtual-stages-per-pipeline-rank", "optimizer_offload": "--optimizer-cpu-offload",
    "precision": "--fp8-format",
}  # fmt: skip
_TRAINER = {
    "micro_batch": "per_device_train_batch_size",
    "recompute": "gradient_checkpointing",
    "zero_stage": "zero_optimization.stage, or the strategy of fsdp",
}
FLAGS: dict[str, dict[str, str]] = {
    "megatron-lm": _MEGATRON,
    "megatron-deepspeed": {
        **_MEGATRON,
        "schedule": "schedule", "recompute": "--checkpoint-activations",
        "zero_stage": "--zero-stage",
    },
    "megatron-bridge": _NEMO,
    "nemo": _NEMO,
    "primus": _NEMO,
    "torchtitan": {
        "micro_batch": "training.local_batch_size", "tp": "parallelism.tensor_parallel_degree",
        "pp": "parallelism.pipeline_parallel_degree", "cp": "parallelism.context_parallel_degree",
        "ep": "parallelism.expert_parallel_degree",
        "vpp": "parallelism.pipeline_parallel_layers_per_stage",
        "recompute": "activation_checkpoint.mode",
        "zero_stage": "parallelism.fsdp_reshard_after_forward",
        "schedule": "parallelism.pipeline_parallel_schedule", "precision": "model.converters",
        "optimizer_offload": "training.enable_cpu_offload",
    },
    "nanotron": {
        "micro_batch": "tokens.micro_batch_size", "tp": "parallelism.tp", "pp": "parallelism.pp",
        "cp": "parallelism.context_parallel_size", "ep": "parallelism.expert_parallel_size",
        "recompute": "parallelism.recompute_layer", "sequence_parallel": "parallelism.tp_mode",
        "zero_stage": "optimizer.zero_stage", "schedule": "parallelism.pp_engine",
    },
    "maxtext": {
        "micro_batch": "per_device_batch_size", "tp": "ici_tensor_parallelism",
        "pp": "ici_pipeline_parallelism", "cp": "ici_context_parallelism",
        "ep": "ici_expert_parallelism", "recompute": "remat_policy", "precision": "quantization",
    },
    "accelerate": {**_TRAINER, "zero_stage": "fsdp_config.fsdp_sharding_strategy"},
    "transformers": _TRAINER,
    "llama-factory": {**_TRAINER, "recompute": "disable_gradient_checkpointing"},
    "axolotl": {**_TRAINER, "micro_batch": "micro_batch_size"},
    "deepspeed": {
        "micro_batch": "train_micro_batch_size_per_gpu", "zero_stage": "zero_optimization.stage",
    },
    "gpt-neox": {
        "micro_batch": "train_micro_batch_size_per_gpu", "tp": "model_parallel_size",
        "pp": "pipe_parallel_size", "recompute": "checkpoint_activations",
        "zero_stage": "zero_optimization.stage", "sequence_parallel": "sequence_parallel",
    },
    "llm-foundry": {
        "micro_batch": "device_train_microbatch_size",
        "recompute": "fsdp_config.activation_checkpointing",
        "zero_stage": "fsdp_config.sharding_strategy",
    },
    "olmo": {
        "micro_batch": "device_train_microbatch_size", "recompute": "activation_checkpointing",
        "zero_stage": "fsdp.sharding_strategy",
    },
    "internevo": {
        "micro_batch": "data.micro_bsz", "tp": "parallel.tensor.size",
        "pp": "parallel.pipeline.size", "vpp": "model.num_chunks", "recompute": "model.checkpoint",
        "zero_stage": "parallel.zero1.size",
    },
}  # fmt: skip


_SWITCH: dict[object, str] = {True: "given", False: "left out"}  # and of 1 and 0
_HIDES: dict[object, str] = {"interleaved-overlap": "true", "interleaved": "false"}
_WHOLE_LAYERS: dict[object, str] = {"full": "true", "none": "false"}
# A framework's words for a value, if they are not the value itself.
_WORDS: dict[tuple[str, str], dict[object, str]] = {
    ("megatron-lm", "recompute"): {"none": "left out"},
    ("megatron-lm", "schedule"): {"interleaved-overlap": "given", "interleaved": "left out"},
    ("megatron-lm", "sequence_parallel"): _SWITCH,
    ("megatron-lm", "zero_stage"): _SWITCH,
    ("megatron-lm", "optimizer_offload"): _SWITCH,
    ("megatron-deepspeed", "recompute"): {"full": "given", "none": "left out"},
    ("megatron-deepspeed", "sequence_parallel"): _SWITCH,
    ("megatron-bridge", "recompute"): {"none": "null"},
    ("nemo", "recompute"): {"none": "null"},
    **{(name, "schedule"): _HIDES for name in ("megatron-bridge", "nemo", "primus")},
    ("nanotron", "recompute"): _WHOLE_LAYERS,
    ("nanotron", "sequence_parallel"): {True: "REDUCE_SCATTER", False: "ALL_REDUCE"},
    ("nanotron", "schedule"): {"gpipe": "afab"},
    ("torchtitan", "zero_stage"): {3: "always", 2: "never"},
    ("torchtitan", "recompute"): {"alternate": "selective"},
    ("transformers", "recompute"): _WHOLE_LAYERS,
    ("accelerate", "recompute"): _WHOLE_LAYERS,
    ("llama-factory", "recompute"): {"full": "false", "none": "true"},
    ("axolotl", "recompute"): _WHOLE_LAYERS,
    ("gpt-neox", "recompute"): _WHOLE_LAYERS,
    ("llm-foundry", "recompute"): _WHOLE_LAYERS,
    ("internevo", "recompute"): _WHOLE_LAYERS,
}


def values_of(framework: str | None, change: SingleChange) -> tuple[str, str]:
    """The old and the new value as the framework writes them; `left out` for a flag not given."""
    words = _WORDS.get((framework or "", change.setting), {})
    old, new = (words.get(value, str(value)) for value in (change.old, change.new))
    return old.lower() if old in ("True", "False") else old, (
        new.lower() if new in ("True", "False") else new
    )


def change_words(run: ImportedRun, change: SingleChange) -> str:
    """The change in the file's own words: `--micro_batch_size: 16 -> 8`.

    The framework's option, otherwise the one that the file has for the setting.
    """
    name = flag_of(run.framework, change)
    if name == change.setting:
        name = run.options.get(name, name).partition(" (")[0]
    return f"{name}: {' -> '.join(values_of(run.framework, change))}"


def flag_of(framework: str | None, change: SingleChange) -> str:
    """The framework's option, or the setting's name if it has no known option.

    A changed degree changes dp with it, which every framework computes itself but nanotron.
    """
    flag = FLAGS.get(framework or "", {}).get(change.setting, change.setting)
    if framework == "nanotron" and change.setting in ("tp", "pp", "cp"):
        return f"{flag}, parallelism.dp"
    return flag
