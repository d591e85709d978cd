"""ms-swift's commands (github.com/modelscope/ms-swift, swift/cli/utils.py): `swift sft` on the
Trainer, `megatron sft` with Megatron's names."""

from __future__ import annotations

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import Options
from shardwright_frameworks.frameworks import hf_trainer, ms_swift
from shardwright_frameworks.reading.keyed_frameworks import collect_deepspeed_file
from shardwright_frameworks.reading.launch import Launch
from shardwright_frameworks.shell.config_folder import ConfigFolder

_LORA_RANK = 8  # swift.readthedocs.io, Command-line parameters
_TUNED = ("train_type", "tuner_type", "sft_type")  # of 3.x, 4.x and 2.x


def collect_swift_launch(
    launch: Launch, options: Options, folder: ConfigFolder, collected: Collected
) -> str:
    """The values of a command; NPROC_PER_NODE and NNODES (default 1) replace torchrun's options."""
    collected.default("ms-swift 3.x, swift/cli/utils.py", nodes=1)
    if launch.program == "megatron":
        ms_swift.collect_megatron(options, collected)
        return "ms-swift"
    given = hf_trainer.given_by_options(options, collected)
    deepspeed = hf_trainer.collect_trainer(given, collected, defaults=False)
    options.collect_counts(collected, {"sequence_parallel_size": "cp"})
    collected.default(
        "ms-swift 3.x on transformers' Trainer, one rank a copy", tp=1, pp=1, cp=1,
        recompute="full", devices_per_node=1,
    )  # fmt: skip
    if not deepspeed and "fsdp" not in options:
        collected.default("ms-swift 3.x on transformers' Trainer, every rank whole", zero_stage=0)
    for option in options.of("torch_dtype"):
        written = options.value_of(option, collected) or ""
        kind = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(written)
        collected.set("precision", kind, option.place, option.name)
    _collect_tuner(launch, options, collected)
    if deepspeed:
        collect_deepspeed_file(deepspeed, folder, collected, launch.place, launch.command.script)
    return "ms-swift"


def _collect_tuner(launch: Launch, options: Options, collected: Collected) -> None:
    """All parameters are trained with `full`, otherwise an adapter (lora by
    default: swift.readthedocs.io, Command-line parameters)."""
    named = options.last(*_TUNED)
    written = None if named is None else options.text(*_TUNED)
    if written == "full":
        collected.placed.pop("model.lora_rank", None)
    elif collected.count("model.lora_rank") is None:
        option, place = (named.name, named.place) if named else ("--train_type", launch.place)
        if written == "lora":
            collected.set("model.lora_rank", _LORA_RANK, place, option)
            return
        adapter = "not full" if written is None else repr(written)
        why = "lora by default" if named is None else adapter
        collected.leave_open(
            "model.lora_rank", option, f"{why}: the rank of the adapter is not given", place
        )
