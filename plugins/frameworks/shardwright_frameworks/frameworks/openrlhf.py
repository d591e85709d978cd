"""OpenRLHF's arguments as a run (github.com/OpenRLHF/OpenRLHF, openrlhf/cli, v0.5 and 2026). It
trains with DeepSpeed; its micro-batch is `--micro_train_batch_size` or
`--train.micro_batch_size`."""

from __future__ import annotations

import re

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import Options
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    count_of,
    degree_of,
    dtype_of,
    flash_of,
    read_by,
    text_of,
)
from shardwright_frameworks.frameworks.hf_trainer import LENGTHS
from shardwright_frameworks.frameworks.objectives import report_objective
from shardwright_frameworks.imported_run import Value
from shardwright_frameworks.shell.text_marks import Place

_KEYS: dict[str, tuple[str, Reader]] = {
    **read_by(
        degree_of,
        {"micro_batch": "micro_train_batch_size train.micro_batch_size",
         "global_batch": "train_batch_size train.batch_size", "seq_len": "max_len data.max_len",
         "tp": "ds_tensor_parallel_size ds.tensor_parallel_size",
         "cp": "ring_attn_size ds.ring_attn_size", "model.lora_rank": "lora_rank model.lora_rank",
         "nodes": "actor.num_nodes actor_num_nodes",
         "devices_per_node": "actor.num_gpus_per_node actor_num_gpus_per_node"},
    ),
    "zero_stage": ("zero_stage", count_of),
    "ds.zero_stage": ("zero_stage", count_of),
    **read_by(
        text_of,
        {"model.name": "pretrain model_name_or_path model.model_name_or_path "
         "actor.model_name_or_path"},
    ),
    **dict.fromkeys(("param_dtype", "ds.param_dtype"), ("precision", dtype_of)),
    "ds.attn_implementation": ("flash_attention", flash_of),
    "actor.optim": ("optimizer", {"adam": "adamw", "muon": "muon"}.get),
    "model.optim": ("optimizer", {"adam": "adamw", "muon": "muon"}.get),
}  # fmt: skip
_FLAGS: dict[str, tuple[str, Value, Value]] = {
    "bf16": ("precision", "bf16", None),
    "gradient_checkpointing": ("recompute", "full", "none"),
    "model.gradient_checkpointing_enable": ("recompute", "full", "none"),
    "actor.gradient_checkpointing_enable": ("recompute", "full", "none"),
    "adam_offload": ("optimizer_offload", True, False),
    "ds.adam_offload": ("optimizer_offload", True, False),
    "flash_attn": ("flash_attention", True, False),
}


def collect_openrlhf(options: Options, collected: Collected, program: str, place: Place) -> None:
    """Collects the arguments of a trainer of one model (SFT), or of PPO's actor. Other models of a
    trainer (a reference, rewards, samples) are reported as unresolved."""
    word = re.search(r"train_(ppo\w*|dpo|kto|rm|kd|prm)\b", program)
    if word is not None and word[1].startswith("ppo"):
        why = "only the actor is read: critic, reference, rewards and generation are not counted"
        collected.report_unresolved(program, why, place)
        if "ray" in word[1]:
            collected.forget_ranks()
            source = "OpenRLHF, openrlhf/cli/train_ppo_ray.py"
            collected.default(source, nodes=1, devices_per_node=8)
    elif word is not None:
        report_objective(word[1], program, place, collected)
    options.collect_flags(collected, _FLAGS)
    options.collect_words(collected, _KEYS)
    for prompt, answer in LENGTHS:
        tokens, last = [options.number(key) for key in (prompt, answer)], options.last(answer)
        if last is not None and tokens[0] and tokens[1]:
            collected.set("seq_len", tokens[0] + tokens[1], last.place, f"{prompt} + {answer}")
    for option in options.of("train.dynamic_batch_enable", "use_dynamic_batch"):
        why = "micro-batches are filled up to a number of tokens"
        collected.leave_open("micro_batch", option.name, why, option.place)
    collected.default("OpenRLHF, openrlhf/utils/deepspeed.py", tp=1, pp=1, cp=1, optimizer="adamw")
