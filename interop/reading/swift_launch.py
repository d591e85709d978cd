"""ms-swift's commands (github.com/modelscope/ms-swift, swift/cli/utils.py): `swift sft` on the
Trainer, `megatron sft` with Megatron's names."""

from __future__ import annotations

from interop.configs.findings import Findings
from interop.configs.known_options import is_known
from interop.configs.option_words import Options, option_key
from interop.frameworks import hf_trainer, megatron
from interop.reading.launch import Launch
from interop.reading.read_file import say_deepspeed_file
from interop.shell.config_folder import ConfigFolder

_TUNED = ("train_type", "tuner_type", "sft_type")  # of 3.x, 4.x and 2.x


def say_swift_launch(
    launch: Launch, options: Options, folder: ConfigFolder, findings: Findings
) -> str:
    """What a command says; NPROC_PER_NODE and NNODES (1) stand for torchrun's."""
    findings.default("ms-swift 3.x, swift/cli/utils.py", nodes=1)
    if launch.program == "megatron":
        megatron.say_megatron(options, findings)
        # Its own options stand beside Megatron's.
        findings.unknown = [
            each for each in findings.unknown if not is_known("ms-swift", option_key(each.option))
        ]
        options.say_counts(findings, {"max_length": "seq_len", "lora_rank": "model.lora_rank"})
        for option in options.of("model"):
            findings.say("model.name", options.told(option, findings), option.place, option.name)
        return "ms-swift"
    given = hf_trainer.given_by_options(options, findings)
    named = hf_trainer.say_trainer(given, findings, defaults=False)
    options.say_counts(findings, {"sequence_parallel_size": "cp"})
    findings.default("ms-swift 3.x on transformers' Trainer, one rank a copy", tp=1, pp=1, cp=1)
    for option in options.of("torch_dtype"):
        told = options.told(option, findings) or ""
        kind = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(told)
        findings.say("precision", kind, option.place, option.name)
    _say_tuner(launch, options, findings)
    if named:
        say_deepspeed_file(named, folder, findings, launch.place, launch.command.script)
    return "ms-swift"


def _say_tuner(launch: Launch, options: Options, findings: Findings) -> None:
    """All parameters are trained where the command says `full`; else an adapter (lora where it
    says nothing: swift.readthedocs.io, Command-line parameters)."""
    named = options.last(*_TUNED)
    told = None if named is None else options.text(*_TUNED)
    if told == "full":
        findings.said.pop("model.lora_rank", None)
    elif findings.count("model.lora_rank") is None:
        option, place = (named.name, named.place) if named else ("--train_type", launch.place)
        why = "lora by default" if named is None else "not full" if told is None else f"{told!r}"
        findings.leave_open(
            "model.lora_rank", option, f"{why}: the rank of the adapter is not told", place
        )
