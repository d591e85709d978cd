"""NeMo Automodel's YAML as a run (github.com/NVIDIA-NeMo/Automodel, nemo_automodel/recipes and
components/distributed/config.py, 2026-11)."""

from __future__ import annotations

import math
from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.interpolation import Key
from shardwright_frameworks.configs.keyed_file import KeyedFile
from shardwright_frameworks.configs.keyed_values import (
    Reader,
    collect_keys,
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
from shardwright_frameworks.frameworks.flavors import collect_figures

_SOURCE = "NeMo Automodel 2026-11, components/distributed/config.py"
_STAGES = {"fsdp2": 3, "megatron_fsdp": 3, "ddp": 0}
_CLASSES = {"FSDP2Manager": "fsdp2", "MegatronFSDPManager": "megatron_fsdp", "DDPManager": "ddp"}


def _recompute(value: Any) -> str | None:
    return value if value in ("full", "selective") else recompute_of(value)


def class_of(value: Any) -> str | None:
    """The last part of a class's path, in lower case (`torch.optim.AdamW`)."""
    word = text_of(value)
    return word.rpartition(".")[2].lower() if word else None


_KEYS: dict[str, tuple[str, Reader]] = {
    **read_by(
        degree_of,
        {"dp": "distributed.dp_size", "tp": "distributed.tp_size", "cp": "distributed.cp_size",
         "pp": "distributed.pp_size", "ep": "distributed.ep_size",
         "zero_stage": "distributed.zero_dp_strategy",
         "global_batch": "step_scheduler.global_batch_size",
         "micro_batch": "step_scheduler.local_batch_size", "model.lora_rank": "peft.dim",
         "seq_len": "dataset.seq_len dataset.seq_length dataset.max_length "
         "dataloader.collate_fn.max_length",
         "nodes": "benchmark.num_nodes ci.nodes slurm.nodes",
         "devices_per_node": "ci.nproc_per_node slurm.ntasks_per_node"},
    ),
    "distributed.sequence_parallel": ("sequence_parallel", truth_of),
    "model.pretrained_model_name_or_path": ("model.name", text_of),
    "model.config.pretrained_model_name_or_path": ("model.name", text_of),
    "distributed.activation_checkpointing": ("recompute", _recompute),
    "model.torch_dtype": ("precision", dtype_of),
    "model.config.torch_dtype": ("precision", dtype_of),
    "model.attn_implementation": ("flash_attention", flash_of),
    "quantization.load_in_4bit": ("base_precision", if_on("nf4")),
    "quantization.load_in_8bit": ("base_precision", if_on("int8")),
    "optimizer._target_": ("optimizer", class_of),
}  # fmt: skip


def is_automodel(file: KeyedFile) -> bool:
    """Whether a file is one of Automodel's recipes."""
    return "step_scheduler" in file.sections() and file.has("model", "_target_")


def collect_automodel(file: KeyedFile, collected: Collected) -> None:
    """Collects a recipe."""
    collect_keys(file, collected, _KEYS)
    path = ("fp8", "enabled")
    if truth_of(file.get(*path)):
        collected.placed.pop("precision", None)
        collected.set("precision", "fp8", file.place(path), "fp8.enabled")
    for key in ("packed_sequence_size", "pack_size"):  # sequences are filled up to it
        packed = ("packed_sequence", key)
        if length := degree_of(file.get(*packed)):
            collected.placed.pop("seq_len", None)
            collected.set("seq_len", length, file.place(packed), ".".join(packed))
    if (placed := collected.placed.get("model.name")) is not None:
        collect_figures(str(placed.value), "", collected, placed.place, placed.option)
    _collect_pipeline(file, collected)
    _collect_sharding(file, collected)
    collected.default(_SOURCE, tp=1, pp=1, cp=1, ep=1, precision="bf16", recompute="none",
                      sequence_parallel=False)  # fmt: skip


def _collect_pipeline(file: KeyedFile, collected: Collected) -> None:
    """Collect the pipeline, which splits the local batch into micro-batches."""
    keys = ("distributed", "pipeline"), ("autopipeline",)
    if (collected.count("pp") or 1) == 1:
        for key in keys:
            for name in file.sections(*key):
                collected.use(name, file.place((*key, name)))
        return
    for key in keys:
        path = (*key, "pp_microbatch_size")
        if path in file.values:
            collected.placed.pop("micro_batch", None)
            number = degree_of(file.get(*path))
            collected.set("micro_batch", number, file.place(path), ".".join(path))
        path = (*key, "layers_per_stage")
        if path in file.values:
            _collect_chunks(path, file, collected)
        path = (*key, "pp_schedule")
        if path in file.values:
            word = word_of(file.get(*path)) or ""
            kind = "interleaved" if word.startswith("interleaved") else word
            if kind == "interleaved" and (*key, "layers_per_stage") not in file.values:
                collected.default(_SOURCE, vpp=2)
            collected.set("schedule", kind, file.place(path), ".".join(path))


def _collect_chunks(path: Key, file: KeyedFile, collected: Collected) -> None:
    """Collect the chunks of a rank from the layers per chunk, rounded as the file specifies
    (components/distributed/pipelining/functional.py)."""
    layers, each = collected.count("model.num_layers"), degree_of(file.get(*path))
    ranks = collected.count("pp") or 1
    rounding = (*path[:-1], "round_virtual_stages_to_pp_multiple")
    collected.use(rounding[-1], file.place(rounding))
    if not layers or not each:
        collected.leave_open("vpp", ".".join(path), "the layers are not known", file.place(path))
        return
    chunks = math.ceil(layers / each)
    down = word_of(file.get(*rounding)) == "down"
    per_rank = chunks // ranks if down else math.ceil(chunks / ranks)
    collected.set("vpp", per_rank or None, file.place(path), ".".join(path))


def _collect_sharding(file: KeyedFile, collected: Collected) -> None:
    """Collect the sharding. FSDP 2 gathers weights again in the backward, but keeps them in a
    pipeline (components/distributed/parallelizer.py); `reshard_after_forward` overrides both."""
    path = ("distributed", "strategy")
    if (unknown := file.open(*path)) is not None:
        collected.leave_open("zero_stage", ".".join(path), unknown.why, file.place(path))
    strategy = word_of(file.get(*path))
    if strategy is None and file.has("distributed", "_target_"):
        path = ("distributed", "_target_")
        strategy = _CLASSES.get(str(file.get(*path)).rpartition(".")[2])
    stage = _STAGES.get(strategy or "fsdp2")
    if strategy == "fsdp2" and (collected.count("pp") or 1) > 1:
        stage = 2
    keeps = ("distributed", "reshard_after_forward")
    if (again := truth_of(file.get(*keeps))) is not None:
        collected.set("zero_stage", 3 if again else 2, file.place(keeps), ".".join(keeps))
    elif strategy is not None:
        collected.set_first("zero_stage", stage, file.place(path), ".".join(path))
    else:
        collected.default(_SOURCE, zero_stage=stage)
    copies = ("distributed", "dp_replicate_size")
    collected.use(copies[-1], file.place(copies))
    if (groups := degree_of(file.get(*copies)) or 1) > 1:
        collected.set("dp_replicate", groups, file.place(copies), ".".join(copies))
    offload = ("distributed", "offload_policy")
    if file.has(*offload) and file.get(*offload) is None and file.has(*offload, "_target_"):
        place = file.place((*offload, "_target_"))
        collected.set("optimizer_offload", True, place, "distributed.offload_policy")
