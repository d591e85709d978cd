"""verl's trainers as a run (github.com/volcengine/verl, verl/trainer/config): the actor's degrees,
never those of the rollout or of the reference."""

from __future__ import annotations

from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.interpolation import Open
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    degree_of,
    text_of,
    truth_of,
    word_of,
)
from shardwright_frameworks.frameworks.flavors import collect_figures
from shardwright_frameworks.frameworks.nemo import Values
from shardwright_frameworks.shell.text_marks import Place

_DEFAULTS = "verl, trainer/config/ppo_trainer.yaml"
_ACTOR = "actor_rollout_ref.actor."
_KEYS: dict[str, tuple[str, Reader]] = {
    "trainer.n_gpus_per_node": ("devices_per_node", degree_of),
    "trainer.nnodes": ("nodes", degree_of),
    "actor_rollout_ref.model.lora_rank": ("model.lora_rank", degree_of),
    f"{_ACTOR}ulysses_sequence_parallel_size": ("cp", degree_of),
    f"{_ACTOR}fsdp_config.optimizer_offload": ("optimizer_offload", truth_of),
    f"{_ACTOR}megatron.tensor_model_parallel_size": ("tp", degree_of),
    f"{_ACTOR}megatron.pipeline_model_parallel_size": ("pp", degree_of),
    f"{_ACTOR}megatron.virtual_pipeline_model_parallel_size": ("vpp", degree_of),
    f"{_ACTOR}megatron.context_parallel_size": ("cp", degree_of),
    f"{_ACTOR}megatron.expert_model_parallel_size": ("ep", degree_of),
    f"{_ACTOR}megatron.expert_tensor_parallel_size": ("etp", degree_of),
    f"{_ACTOR}megatron.optimizer_offload": ("optimizer_offload", truth_of),
    f"{_ACTOR}megatron.override_transformer_config.recompute_granularity": ("recompute", word_of),
    f"{_ACTOR}ppo_micro_batch_size_per_gpu": ("micro_batch", degree_of),
}


def is_verl(values: Values) -> bool:
    """Whether the keys are verl's."""
    return any(path[0] == "actor_rollout_ref" for path in values)


def collect_verl(values: Values, collected: Collected) -> None:
    """Collects Hydra's overrides of a trainer.

    With `use_dynamic_bsz` a micro-batch is a budget of tokens: it has no number of sequences.
    """
    named = {".".join(path): given for path, given in values.items()}
    for name, (about, reader) in _KEYS.items():
        if name not in named:
            continue
        value, place = named[name]
        if isinstance(value, Open):
            collected.leave_open(about, name, value.why, place)
        else:
            collected.set(about, reader(value), place, name)
    if truth_of(named.get(f"{_ACTOR}use_dynamic_bsz", ("", None))[0]):
        key = f"{_ACTOR}use_dynamic_bsz"
        why = "with use_dynamic_bsz a micro-batch is a budget of tokens, not of sequences"
        collected.leave_open("micro_batch", key, why, named[key][1])
    _length(named, collected)
    _batch(named, collected)
    _model(named, collected)
    by_megatron = any(name.startswith(f"{_ACTOR}megatron.") for name in named)
    # Its distributed optimizer, or FSDP over layers that are run again.
    stage, again = (1, "none") if by_megatron else (3, "full")
    collected.default(
        _DEFAULTS, tp=1, pp=1, cp=1, ep=1, nodes=1, devices_per_node=8, zero_stage=stage,
        precision="bf16", recompute=again,
    )  # fmt: skip


def _length(named: dict[str, tuple[Any, Place]], collected: Collected) -> None:
    """Prompt and response are one sequence."""
    keys = ("data.max_prompt_length", "data.max_response_length")
    parts = [degree_of(named[key][0]) for key in keys if key in named]
    if len(parts) == 2 and all(parts):
        for key in keys:
            collected.use(key, named[key][1])
        total = sum(part or 0 for part in parts)
        collected.derive("seq_len", total, " + ".join(keys))


def _batch(named: dict[str, tuple[Any, Place]], collected: Collected) -> None:
    """A mini-batch of prompts, each with `rollout.n` responses, is a step of the optimizer."""
    keys = (f"{_ACTOR}ppo_mini_batch_size", "actor_rollout_ref.rollout.n")
    prompts = degree_of(named[keys[0]][0]) if keys[0] in named else None
    responses = degree_of(named[keys[1]][0]) if keys[1] in named else 1
    if prompts and responses:
        collected.derive("global_batch", prompts * responses, " x ".join(keys))


def _model(named: dict[str, tuple[Any, Place]], collected: Collected) -> None:
    key = "actor_rollout_ref.model.path"
    if key in named and not isinstance(named[key][0], Open):
        value, place = named[key]
        name = text_of(value)
        collected.set("model.name", name, place, key)
        if name:
            collect_figures(name, "", collected, place, key)
    key = "actor_rollout_ref.model.enable_gradient_checkpointing"
    if key in named and truth_of(named[key][0]) is not None:
        value, place = named[key]
        collected.set("recompute", "full" if truth_of(value) else "none", place, key)
