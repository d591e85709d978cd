"""Megatron-LM: the arguments of `pretrain_gpt.py`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from shardwright_frameworks.exports.targets.megatron_settings import megatron_settings
from shardwright_frameworks.exports.values.exported import Exported
from shardwright_frameworks.exports.values.planned_run import PlannedRun

# Options that every pretraining script needs and no plan has; the user replaces them.
_DATA = {
    "mock_data": True,
    "tokenizer_type": "NullTokenizer",
    "split": "99,1,0",
    "train_iters": 100,
    "lr": 1e-4,
    "lr_decay_style": "constant",
    "clip_grad": 1.0,
    "weight_decay": 0.1,
    "eval_iters": 0,
    "log_interval": 1,
    "log_throughput": True,
}


def export_megatron(planned: PlannedRun) -> Exported:
    """The arguments, in groups; raises the errors of megatron_settings."""
    settings = megatron_settings(planned, "megatron")
    model = {**settings.model, "vocab_size": planned.run.model.vocab_size}
    groups = (
        ("model", model),
        ("parallelism", settings.parallelism),
        ("batch, precision, recomputation", settings.training),
        ("data and optimizer: yours", _DATA),
    )
    lines: list[str] = []
    for title, options in groups:
        lines.append(f"# {title}")
        lines += megatron_flags(options)
    environment = {}
    overlaps = "overlap_moe_expert_parallel_comm" in settings.parallelism
    if overlaps:
        # arguments.py: all-to-alls that run while others compute need more than one.
        environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
    elif (planned.run.degrees.tp > 1 or planned.run.degrees.cp > 1) and planned.run.zero_stage < 2:
        # arguments.py asserts it below Blackwell: messages start in the order of their launches.
        environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    return Exported(
        program='"${MEGATRON_PATH:?set it to a checkout of Megatron-LM}/pretrain_gpt.py"',
        arguments=tuple(lines),
        unexpressed=settings.unexpressed,
        needs=(
            "Megatron-LM (MEGATRON_PATH) with Transformer Engine on every node",
            "a version that has --overlap-moe-expert-parallel-comm (core_v0.14 or later)"
            if overlaps
            else "a version that has --pipeline-model-parallel-layout (core_v0.13 or later)"
            if "pipeline_model_parallel_layout" in settings.parallelism
            else "core_v0.12 or later",
        ),
        fill_in=(
            "data: --mock-data, --tokenizer-type and --split stand for yours (--data-path, "
            "--tokenizer-model)",
            "--lr, --train-iters and what else the plan does not decide",
        ),
        environment=environment,
    )


def megatron_flags(options: Mapping[str, object]) -> list[str]:
    """`--name value` of every option; True is a flag alone.

    >>> megatron_flags({"bf16": True, "num_layers": 2, "recompute_modules": ["mlp", "moe"]})
    ['--bf16', '--num-layers 2', '--recompute-modules mlp moe']
    """
    found = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is True:
            found.append(flag)
            continue
        values = value if isinstance(value, list) else [value]
        found.append(" ".join([flag, *(shlex.quote(str(item)) for item in values)]))
    return found
