"""The second form of LLaMA-Factory's YAML as a run (github.com/hiyouga/LLaMA-Factory,
src/llamafactory/v1/config/training_args.py and plugins/trainer_plugins/distributed, 2026-08).

The first form is that of transformers' Trainer (hf_trainer.py), with more keys and other defaults
(src/llamafactory/hparams).
"""

from __future__ import annotations

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.keyed_file import KeyedFile
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    collect_keys,
    degree_of,
    recompute_of,
    text_of,
    truth_of,
    word_of,
)
from shardwright_frameworks.frameworks.hf_trainer import drop_adapter
from shardwright_frameworks.frameworks.objectives import report_objective

_SOURCE = "LLaMA-Factory v1, src/llamafactory/v1/config/training_args.py"
_FIRST = "LLaMA-Factory, src/llamafactory/hparams/model_args.py: disable_gradient_checkpointing"
_LORA_RANK = 8  # hparams/finetuning_args.py
_KEYS: dict[str, tuple[str, Reader]] = {
    "global_batch_size": ("global_batch", degree_of),
    "enable_activation_checkpointing": ("recompute", recompute_of),
    "optim_config.name": ("optimizer", word_of),
}
_LORA: dict[str, tuple[str, Reader]] = {"peft_config.r": ("model.lora_rank", degree_of)}
# Only this form has these keys.
_MARKS = frozenset({"dist_config", "model_class", "kernel_config", "optim_config", "train_dataset"})


def is_second(file: KeyedFile) -> bool:
    """Whether a file has the second form."""
    return len(file.sections() & _MARKS) >= 2


def collect_first(file: KeyedFile, collected: Collected, *, is_megatron: bool) -> None:
    """Collects keys of the first form that transformers' Trainer does not have, and its defaults.

    is_megatron  whether the Megatron adapter is used, which has other keys for recomputation
    """
    if truth_of(file.get("pure_bf16")):
        collected.set("precision", "bf16", file.place(("pure_bf16",)), "pure_bf16")
    if truth_of(file.get("fp8")):
        collected.placed.pop("precision", None)
        collected.set("precision", "fp8", file.place(("fp8",)), "fp8")
    collect_keys(file, collected, {"ray_num_workers": ("devices", degree_of)})
    report_objective(word_of(file.get("stage")), "stage", file.place(("stage",)), collected)
    if truth_of(file.get("use_asft_loss")):
        report_objective("asft", "use_asft_loss", file.place(("use_asft_loss",)), collected)
    kind, place = str(file.get("finetuning_type") or "lora"), file.place(("finetuning_type",))
    if kind == "lora" and "model.lora_rank" not in collected.open_keys:
        collected.set_first("model.lora_rank", _LORA_RANK, place, "finetuning_type")
    elif kind == "full":
        drop_adapter(collected)
    _leave_partial_open(kind, "finetuning_type", file, collected)
    if any(
        truth_of(file.get(f"use_{name}")) for name in ("badam", "galore", "apollo", "adam_mini")
    ):
        collected.leave_open("optimizer")  # the key is listed: its states are not priced
    # Without a type it is that of the checkpoint or of the device (model/model_utils/misc.py).
    collected.defaults.pop("precision", None)
    if not is_megatron:
        collected.defaults.pop("recompute", None)
        collected.default(_FIRST, recompute="full")


def _leave_partial_open(kind: str | None, key: str, file: KeyedFile, collected: Collected) -> None:
    """Leaves the adapter open where another part of the weights is trained (`freeze`, `oft`)."""
    if kind not in (None, "lora", "full", "none"):
        why = f"{kind}: part of the weights is trained, which is not priced"
        place = file.place(tuple(key.split(".")))
        collected.leave_open("model.lora_rank", key, why, place)


def collect_llama_factory(file: KeyedFile, collected: Collected) -> str | None:
    """Collects the keys that transformers' Trainer does not have, and the defaults of this form;
    returns the DeepSpeed file that they name."""
    tuner = word_of(file.get("peft_config", "name"))
    collect_keys(file, collected, _KEYS | (_LORA if tuner == "lora" else {}))
    _leave_partial_open(tuner, "peft_config.name", file, collected)
    name = str(file.get("dist_config", "name") or "")
    if name.startswith("fsdp"):
        keeps = truth_of(file.get("dist_config", "reshard_after_forward")) is False
        path = ("dist_config", "reshard_after_forward" if keeps else "name")
        collected.set("zero_stage", 2 if keeps else 3, file.place(path), ".".join(path))
    collected.default(
        _SOURCE, tp=1, pp=1, cp=1, precision="bf16", recompute="full", micro_batch=1, seq_len=2048,
        optimizer="adamw",
    )  # fmt: skip
    return text_of(file.get("dist_config", "config_file")) if name == "deepspeed" else None
