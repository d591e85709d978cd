"""`TARGETS`: the frameworks to which a plan can be exported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from profiles.errors import UnknownNameError
from shardwright_frameworks.exports.targets.accelerate import export_accelerate
from shardwright_frameworks.exports.targets.deepspeed import export_deepspeed
from shardwright_frameworks.exports.targets.executor import export_executor
from shardwright_frameworks.exports.targets.hf_trainer import export_hf_trainer
from shardwright_frameworks.exports.targets.maxtext import export_maxtext
from shardwright_frameworks.exports.targets.megatron import export_megatron
from shardwright_frameworks.exports.targets.megatron_bridge import export_megatron_bridge
from shardwright_frameworks.exports.targets.nanotron import export_nanotron
from shardwright_frameworks.exports.targets.torchtitan import export_torchtitan
from shardwright_frameworks.exports.values.exported import Exported
from shardwright_frameworks.exports.values.planned_run import PlannedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One framework.

    words   its name in prose
    export  the plan in its options; raises InputError for a plan that it cannot run
    config  the file of the folder that `check` reads first
    """

    words: str
    export: Callable[[PlannedRun], Exported]
    config: str


TARGETS: dict[str, Target] = {
    "megatron": Target(words="Megatron-LM", export=export_megatron, config="run.sh"),
    "megatron-bridge": Target(
        words="Megatron-Bridge (NeMo)", export=export_megatron_bridge, config="overrides.yaml"
    ),
    "torchtitan": Target(words="torchtitan", export=export_torchtitan, config="train.toml"),
    "deepspeed": Target(words="DeepSpeed", export=export_deepspeed, config="ds_config.json"),
    "accelerate": Target(
        words="accelerate (FSDP2)", export=export_accelerate, config="accelerate.yaml"
    ),
    "nanotron": Target(words="nanotron", export=export_nanotron, config="config.yaml"),
    "maxtext": Target(words="MaxText", export=export_maxtext, config="maxtext.yml"),
    "hf-trainer": Target(
        words="transformers' Trainer", export=export_hf_trainer, config="training_args.json"
    ),
    "torchrun": Target(words="our own executor", export=export_executor, config="plan.json"),
}
"""The targets by their name in `--to`."""


# Names of --stack whose target has another name.
_STACKS = {"megatron-core": "megatron", "transformers": "hf-trainer", "torch": "torchrun"}


def target_name(name: str) -> str:
    """The target of a name in TARGETS, or of a plan's framework; raises UnknownNameError."""
    found = _STACKS.get(name, name)
    if found not in TARGETS:
        raise UnknownNameError("target", name, tuple(TARGETS), where="--to")
    return found
