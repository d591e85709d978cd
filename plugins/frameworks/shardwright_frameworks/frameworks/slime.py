"""slime's command as a run: Megatron-Core's options, with those of reinforcement learning
(github.com/THUDM/slime, slime/utils/arguments.py, backends/megatron_utils/arguments.py, 2026-08).
Devices and degrees of generation are not read."""

from __future__ import annotations

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import Options, whole
from shardwright_frameworks.frameworks import megatron

_SOURCE = "slime, backends/megatron_utils/arguments.py"
_FSDP = "slime, backends/fsdp_utils/actor.py"


def is_slime(options: Options) -> bool:
    """Whether options are slime's."""
    return "actor_num_nodes" in options and "rollout_batch_size" in options


def collect_slime(options: Options, collected: Collected) -> None:
    """Collect the trainer's options of a command."""
    collected.forget_ranks()
    collected.default(_SOURCE, precision="bf16", devices_per_node=8)
    if options.text("train_backend") == "fsdp":
        collected.default(_FSDP, zero_stage=3)
        options.collect_flags(
            collected,
            {"gradient_checkpointing": ("recompute", "full", "none"),
             "fsdp_cpu_offload": ("optimizer_offload", True, False)},
        )  # fmt: skip
    else:  # its trainer always shards the optimizer's states
        collected.default(_SOURCE, distributed_optimizer=True, zero_stage=1)
    megatron.collect_megatron(options, collected)
    if options.text("train_backend") == "fsdp":
        del collected.defaults["distributed_optimizer"]
    options.collect_words(collected, {"hf_checkpoint": ("model.name", str)})
    collected.unknown.clear()  # options of reinforcement learning and SGLang
    options.collect_counts(
        collected, {"actor_num_nodes": "nodes", "actor_num_gpus_per_node": "devices_per_node"}
    )
    _collect_batch(options, collected)
    length = options.last("rollout_max_response_len")
    if length is not None and "seq_len" not in collected.placed:
        why = "responses of any length up to it, behind prompts, are packed"
        collected.leave_open("seq_len", length.name, why, length.place)
    dynamic = options.last("use_dynamic_batch_size")
    if dynamic is not None:
        why = "micro-batches are filled up to a number of tokens"
        collected.leave_open("micro_batch", dynamic.name, why, dynamic.place)


def _collect_batch(options: Options, collected: Collected) -> None:
    """Collect the batch; the default is `rollout_batch_size x n_samples_per_prompt /
    num_steps_per_rollout`."""
    steps = options.last("num_steps_per_rollout")
    if steps is None or "global_batch_size" in options:
        return
    names = ("rollout_batch_size", "n_samples_per_prompt", "num_steps_per_rollout")
    counts = [whole(options.text(name) or "1") for name in names]
    prompts, samples, parts = (count or 0 for count in counts)
    if prompts * samples and parts and prompts * samples % parts == 0:
        collected.set("global_batch", prompts * samples // parts, steps.place, steps.name)
    else:
        collected.leave_open("global_batch", steps.name, "it divides no batch", steps.place)
