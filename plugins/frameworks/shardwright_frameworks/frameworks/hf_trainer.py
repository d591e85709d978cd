"""The arguments of transformers' Trainer as a run, on a command line or in a YAML or JSON file;
and LLaMA-Factory's and axolotl's names.

Names: transformers v4.30 to v5, training_args.py; examples/pytorch/language-modeling/run_clm.py;
github.com/hiyouga/LLaMA-Factory src/llamafactory/hparams; github.com/axolotl-ai-cloud/axolotl
docs/config-reference.
"""

from __future__ import annotations

import re
from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import Options
from shardwright_frameworks.configs.interpolation import Open
from shardwright_frameworks.configs.keyed_file import KeyedFile
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    count_of,
    degree_of,
    dtype_of,
    flash_of,
    if_on,
    read_by,
    recompute_of,
    text_of,
    truth_of,
    word_of,
)
from shardwright_frameworks.frameworks.accelerate import strategy_stage
from shardwright_frameworks.shell.text_marks import Place

_DEFAULTS = "transformers 4.5x, training_args.py"


def _off(value: Any) -> str | None:
    on = truth_of(value)
    return None if on is None else "none" if on else "full"


def _bits(value: Any) -> str | None:
    return {"4": "nf4", "8": "int8"}.get(str(value))


_STAGES = ("zero_stage", "actor_zero_stage", "deepspeed_stage")
_ATTENTION = ("flash_attn", "attn_implementation", "attn_impl", "use_flash_attn", "flash_attention")
_KEYS: dict[str, tuple[str, Reader]] = {
    **read_by(
        degree_of,
        {"micro_batch": "per_device_train_batch_size micro_batch_size "
         "per_device_training_batch_size",
         "gradient_accumulation": "gradient_accumulation_steps", "global_batch": "train_batch_size",
         "seq_len": "block_size max_seq_length max_seq_len max_length model_max_length cutoff_len "
         "sequence_len seq_length pack_length",
         "model.lora_rank": "lora_rank lora_r lora_dim actor_lora_dim use_llm_lora",
         "cp": "context_parallel_size cp_size sequence_parallel_size",
         "tp": "tensor_parallel_size model_parallel_size",
         "pp": "pipe_parallel_size pipeline_parallel_size", "ep": "ep_size"},
    ),
    "bf16": ("precision", if_on("bf16")),
    "fp16": ("precision", if_on("fp16")),
    "gradient_checkpointing": ("recompute", recompute_of),
    "actor_gradient_checkpointing": ("recompute", recompute_of),  # of DeepSpeed-Chat
    "grad_checkpoint": ("recompute", recompute_of),  # of InternVL
    "disable_gradient_checkpointing": ("recompute", _off),
    "optim": ("optimizer", word_of),
    "optimizer": ("optimizer", word_of),
    "use_muon": ("optimizer", if_on("muon")),
    **dict.fromkeys(_STAGES, ("zero_stage", count_of)),
    # Frozen weights by bitsandbytes, whose 4 bits are NF4 (axolotl, LLaMA-Factory, ms-swift).
    "load_in_4bit": ("base_precision", if_on("nf4")),
    "load_in_8bit": ("base_precision", if_on("int8")),
    **dict.fromkeys(("quantization_bit", "quant_bits"), ("base_precision", _bits)),
    **dict.fromkeys(_ATTENTION, ("flash_attention", flash_of)),
}  # fmt: skip
# Fields that a key sets: without its value they have no default.
_ABOUTS = {key: about for key, (about, _) in _KEYS.items()}
# Published weights in few bits, by their names.
_FEW_BITS = re.compile(r"GPTQ|AWQ|AQLM|HQQ|Int[48]\b|bnb-[48]bit", re.I)
_NONE = ("null", "none")
LENGTHS = (
    ("max_prompt_length", "max_completion_length"),  # of TRL's learning from own answers
    ("max_prompt_seq_len", "max_answer_seq_len"),  # of DeepSpeed-Chat's
    ("prompt_max_len", "generate_max_len"),  # of OpenRLHF's
)
"""Options of the lengths of prompts and answers."""
_NAMES = ("model_name_or_path", "base_model", "config_name", "model", "actor_model_name_or_path")
_ABOUTS |= dict.fromkeys(("torch_dtype", "dtype"), "precision")
_ABOUTS |= dict.fromkeys(("deepspeed", "fsdp"), "zero_stage") | dict.fromkeys(_NAMES, "model.name")
_MARKS = frozenset(
    {"per_device_train_batch_size", "gradient_accumulation_steps", "model_name_or_path",
     "num_train_epochs", "learning_rate", "output_dir", "per_device_eval_batch_size", "save_steps",
     "lr_scheduler_type", "warmup_ratio", "base_model", "cutoff_len", "finetuning_type",
     "micro_batch_size", "sequence_len", "logging_steps", "max_steps", "bf16", "deepspeed",
     "gradient_checkpointing"}
)  # fmt: skip
# Options of programs with another training loop (accelerate's `*_no_trainer.py`, diffusers,
# DeepSpeed's examples, open-instruct) and other defaults.
_OWN_LOOP = frozenset(
    {"with_tracking", "max_train_steps", "num_warmup_steps", "checkpointing_steps", "num_epochs"}
).union(_STAGES)
_SHIPPED = re.compile(r"zero([0-3])(_offload)?")
Given = list[tuple[str, Any, Place, str]]
"""(key, value, place, option as written) of each argument, in order."""


def field_of(key: str) -> str | None:
    """The field that an argument decides."""
    return _ABOUTS.get(key)


def is_trainer(keys: set[str]) -> bool:
    """Whether keys are a Trainer's arguments."""
    return len(keys & _MARKS) >= 3 and bool(
        keys & {"per_device_train_batch_size", "model_name_or_path", "base_model", "output_dir"}
    )


def names_model_or_batch(keys: set[str]) -> bool:
    """Whether keys are a Trainer's arguments, with its model or batch."""
    return is_trainer(keys) and bool(keys & {"per_device_train_batch_size", "model_name_or_path"})


def has_trainers_defaults(keys: set[str], program: str) -> bool:
    """Whether a program with these options is a Trainer's, with its defaults."""
    other = has_own_loop(keys) or "no_trainer" in program
    return names_model_or_batch(keys) and not other


def has_own_loop(keys: set[str]) -> bool:
    """Whether a program with some of these keys has another training loop than the Trainer's."""
    return bool(keys & _OWN_LOOP)


def given_by_options(options: Options, collected: Collected) -> Given:
    """The options of a command line; a flag without a value is true."""
    found: Given = []
    for option in options.given:
        if not option.name.startswith("--"):
            continue
        if not option.values:
            found.append((option.key, True, option.place, option.name))
            continue
        written = options.value_of(option, collected)
        if written is None:
            if option.key in _ABOUTS:
                collected.leave_open(_ABOUTS[option.key])
        else:
            many = " ".join(word.plain for word in option.values)
            value = many if option.key == "fsdp" else written
            found.append((option.key, value, option.place, option.name))
    return found


def given_by_file(file: KeyedFile, collected: Collected) -> Given:
    """The top-level keys of a file, and those of `dist_config` and `fsdp_config`. A list of words
    becomes one text."""
    found: Given = []
    for path, value in file.values.items():
        if len(path) == 1 or path[0] in ("dist_config", "fsdp_config"):
            known = " ".join(map(str, value)) if isinstance(value, list) else file.get(*path)
            found.append((path[-1], file.open(*path) or known, file.place(path), ".".join(path)))
    return found


def collect_trainer(given: Given, collected: Collected, *, defaults: bool = True) -> str | None:
    """Collects the arguments; returns the DeepSpeed file that they name, if any.

    defaults  whether to use transformers' defaults
    """
    deepspeed = None
    for key, value, place, option in given:
        if isinstance(value, Open) and key in _ABOUTS:
            collected.leave_open(_ABOUTS[key], option, value.why, place)
    given = [each for each in given if not isinstance(each[1], Open)]
    by_key = {key: (value, place, option) for key, value, place, option in given}
    fsdp = any(key == "fsdp" and value for key, value, _, _ in given)
    for key, value, place, option in given:
        if key in _KEYS:
            about, reader = _KEYS[key]
            collected.set(about, reader(value), place, option)
        elif key == "fsdp" and isinstance(value, str):
            _collect_fsdp(value, place, option, collected)
        elif key in ("reshard_after_forward", "fsdp_reshard_after_forward") and fsdp:
            reshards = truth_of(value)
            if reshards is not None:  # of FSDP2; FSDP1 has a word for its strategy
                collected.placed.pop("zero_stage", None)
                collected.set("zero_stage", 3 if reshards else 2, place, option)
        elif key == "activation_checkpointing" and truth_of(value):
            collected.placed.pop("recompute", None)  # FSDP's own, or a program's
            collected.set("recompute", "full", place, option)
        elif key in ("deepspeed", "deepspeed_config", "deepspeed_config_file"):
            deepspeed = text_of(value) if str(value).lower() not in _NONE else None
            if deepspeed is not None and (stage := _SHIPPED.fullmatch(deepspeed)):
                # ms-swift's files by name.
                collected.set("zero_stage", int(stage[1]), place, option)
                collected.set("optimizer_offload", bool(stage[2]) or None, place, option)
                deepspeed = None
        elif key in _NAMES and isinstance(value, str) and value:
            collected.set("model.name", value, place, option)
            found = _FEW_BITS.search(value)
            if found is not None and "base_precision" not in collected.placed:
                why = f"{found[0]}: the model's weights are in few bits, whose type is not given"
                collected.leave_open("base_precision", option, why, place)
    named = by_key.get("model_name", ("",))  # of some programs; of others a nickname
    if "/" in str(named[0]) and not by_key.keys() & _NAMES:
        collected.set("model.name", *named)
    if truth_of(by_key.get("use_peft", (None,))[0]) is False:
        drop_adapter(collected)
    for key in {"torch_dtype", "dtype"} & by_key.keys():
        value, place, option = by_key[key]  # of the weights, without mixed precision
        if (word := dtype_of(value)) not in (None, "fp32"):
            collected.use(option, place)
            collected.set_first("precision", word, place, option)
    for prompt, answer in LENGTHS:
        tokens = [degree_of(by_key.get(key, (None,))[0]) for key in (prompt, answer)]
        if tokens[0] and tokens[1]:
            collected.placed.pop("seq_len", None)
            collected.use(*by_key[prompt][:0:-1])
            collected.set("seq_len", tokens[0] + tokens[1], *by_key[answer][1:])
    if defaults and deepspeed is None and not fsdp:
        collected.default(_DEFAULTS, zero_stage=0)
    if defaults:
        collected.default(
            _DEFAULTS, tp=1, pp=1, cp=1, gradient_accumulation=1, precision="fp32",
            recompute="none", optimizer="adamw_torch", micro_batch=8,
        )  # fmt: skip
    return deepspeed


def drop_adapter(collected: Collected) -> None:
    """Drop the rank of an adapter that the file does not enable."""
    rank = collected.placed.pop("model.lora_rank", None)
    if rank is not None:
        collected.report_unused(rank.option, rank.place, "no effect without an adapter")


def _collect_fsdp(value: str, place: Place, option: str, collected: Collected) -> None:
    words = re.split(r"[\s,]+", value.strip().strip("\"'[]"))
    stages = [strategy_stage(word) for word in words]
    found = next((stage for stage in stages if stage is not None), None if value.strip() else 0)
    if found is not None:
        collected.set("zero_stage", found, place, option)
    if "offload" in words:
        collected.set("optimizer_offload", True, place, option)
