"""NeMo Automodel's YAML as a run (github.com/NVIDIA-NeMo/Automodel, nemo_automodel/components/
distributed/config.py and recipes/_dist_utils.py, 2026-08)."""

from __future__ import annotations

from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.keyed_file import KeyedFile
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    collect_keys,
    degree_of,
    if_on,
    recompute_of,
    text_of,
    truth_of,
    word_of,
)
from shardwright_frameworks.frameworks.flavors import collect_figures

_DEFAULTS = "NeMo Automodel 2026-08, nemo_automodel/components/distributed/config.py"
_SCHEDULES = {"1f1b": "1f1b", "interleaved1f1b": "interleaved-1f1b", "gpipe": "gpipe"}
_STAGES = {"ddp": 0, "fsdp2": 3, "megatron_fsdp": 3}


def _component(value: Any) -> str | None:
    word = word_of(value)
    return None if word is None else word.rpartition(".")[2]


def _schedule(value: Any) -> str | None:
    word = word_of(value)
    return _SCHEDULES.get(word or "", word)


def _recompute(value: Any) -> str | None:
    word = word_of(value)
    return word if word in ("selective", "full") else recompute_of(value)


_KEYS: dict[str, tuple[str, Reader]] = {
    "distributed.tp_size": ("tp", degree_of),
    "distributed.pp_size": ("pp", degree_of),
    "distributed.cp_size": ("cp", degree_of),
    "distributed.ep_size": ("ep", degree_of),
    "distributed.dp_size": ("dp", degree_of),
    "distributed.sequence_parallel": ("sequence_parallel", truth_of),
    "distributed.activation_checkpointing": ("recompute", _recompute),
    "distributed.pipeline.pp_schedule": ("schedule", _schedule),
    "distributed.strategy": ("zero_stage", lambda value: _STAGES.get(str(value).lower())),
    "step_scheduler.global_batch_size": ("global_batch", degree_of),
    "step_scheduler.local_batch_size": ("micro_batch", degree_of),
    # Packed sequences have their own length.
    "dataset.seq_length": ("seq_len", degree_of),
    "dataset.seq_len": ("seq_len", degree_of),
    "dataset.max_length": ("seq_len", degree_of),
    "optimizer._target_": ("optimizer", _component),
    "peft.dim": ("model.lora_rank", degree_of),
    "fp8.enabled": ("precision", if_on("fp8")),
    "model.pretrained_model_name_or_path": ("model.name", text_of),
    "model.config": ("model.name", text_of),
    "model.config.pretrained_model_name_or_path": ("model.name", text_of),
}


def is_automodel(file: KeyedFile) -> bool:
    """Whether a file is one of NeMo Automodel's: it names classes of `nemo_automodel`."""
    return {"model", "step_scheduler"} <= file.sections() and any(
        path[-1] == "_target_" and str(value).startswith("nemo_automodel.")
        for path, value in file.values.items()
        if path
    )


def collect_automodel(file: KeyedFile, collected: Collected) -> None:
    """Collects a recipe. Without a section `distributed` every rank has a copy."""
    collect_keys(file, collected, _KEYS)
    packed = ("packed_sequence", "packed_sequence_size")
    if (length := degree_of(file.get(*packed))) is not None:
        collected.placed.pop("seq_len", None)
        collected.set("seq_len", length, file.place(packed), ".".join(packed))
    _collect_pipeline(file, collected)
    if (name := collected.placed.get("model.name")) is not None:
        collect_figures(str(name.value), "", collected, name.place, name.option)
    collected.default(
        _DEFAULTS, tp=1, pp=1, cp=1, ep=1, precision="bf16", recompute="none",
        sequence_parallel=False, zero_stage=3 if file.has("distributed") else 0,
    )  # fmt: skip


def _collect_pipeline(file: KeyedFile, collected: Collected) -> None:
    """With a pipeline the local batch is cut into micro-batches. By default, gathered weights
    are then kept until the backward pass."""
    if (collected.count("pp") or 1) == 1:
        return
    micro = ("distributed", "pipeline", "pp_microbatch_size")
    if (size := degree_of(file.get(*micro))) is not None:
        collected.placed.pop("micro_batch", None)
        collected.set("micro_batch", size, file.place(micro), ".".join(micro))
    reshards = ("distributed", "reshard_after_forward")
    if collected.get("zero_stage") == 3 and not truth_of(file.get(*reshards)):
        collected.placed.pop("zero_stage")
        collected.default(_DEFAULTS, zero_stage=2)
