"""`row_of_import`: converts an imported run to a row of a table of runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_cluster
from shardwright.runs.complete_model import CATALOG
from shardwright.runs.predict_runs import PredictedRow, predict_runs
from shardwright.runs.run import PublishedRun
from shardwright_frameworks.imported_run import MODEL_FIGURES, ImportedRun, need_possible

# Framework files (profiles/data/frameworks) of the frameworks that are imported.
STACKS = {
    "megatron-lm": "megatron-core",
    "megatron-deepspeed": "megatron-deepspeed",
    "megatron-bridge": "megatron-bridge",
    "nemo": "megatron-core",
    "primus": "megatron-core",
    "gpt-neox": "megatron-deepspeed",
    "torchtitan": "torchtitan",
    "nanotron": "nanotron",
    "maxtext": "maxtext",
    "llm-foundry": "torch-fsdp",
    "olmo": "torch-fsdp",
    "internevo": "internevo",
    "deepspeed": "transformers",
    "transformers": "transformers",
    "accelerate": "transformers",
}
# Frameworks over Megatron-Core or transformers' Trainer, which has no such optimizer.
_TWO_TRAINERS = ("ms-swift", "llama-factory")
SHIPPED = "shardwright catalog)"
"""Suffix of the source of figures from a shipped model."""
_NOT_COLUMNS = ("max_positions", "mtp_layers", "lora_rank")


def row_of_import(
    run: ImportedRun,
    *,
    id: str = "imported",
    device: str = "",
    devices: int | None = None,
) -> PublishedRun:
    """The run as a row. Missing values are the framework's defaults from the import, then those of
    all rows (shardwright/runs).

    device, devices  of the run, if the files do not name them
    """
    figures = {name: getattr(run.model, name) for name in MODEL_FIGURES if name not in _NOT_COLUMNS}
    count = devices or run.devices
    axes = {name: _whole(run.answer(name)) for name in ("tp", "pp", "vpp", "cp", "ep")}
    dp = run.dp
    if devices is not None and devices != run.devices:
        dp = None
    if run.model.num_experts is None:
        axes["ep"] = None
    stack = STACKS.get(run.framework or "", run.framework or "")
    is_sharded = run.zero_stage is not None and run.framework in ("accelerate", "transformers")
    if is_sharded and not any("deepspeed" in name for name in run.files):
        stack = "torch-fsdp"
    if run.framework in _TWO_TRAINERS and run.answer("distributed_optimizer") is not None:
        stack = "megatron-core"
    precision = run.precision or run.answer("precision")
    recompute = run.answer("recompute")
    return PublishedRun(
        row=1,
        id=id,
        source="",  # files of a user: nothing of them is corrected
        model=_model_name(run),
        family="lora" if run.model.lora_rank else "moe" if run.model.num_experts else "",
        device=device or run.device or "",
        num_devices=count,
        devices_per_node=run.devices_per_node,
        dp=dp,
        tp=axes["tp"],
        pp=axes["pp"],
        vpp=axes["vpp"],
        cp=axes["cp"],
        ep=axes["ep"],
        sequence_parallel=_truth(run.answer("sequence_parallel")),
        zero_stage=_whole(run.answer("zero_stage")) if run.zero_stage is None else run.zero_stage,
        recompute=str(recompute) if recompute else "",
        recompute_layers=run.recompute_layers,
        pipeline_layout=run.pipeline_layout or "",
        micro_batch=_whole(run.answer("micro_batch")),
        global_batch=_whole(run.answer("global_batch")),
        seq_len=run.seq_len,
        precision=str(precision) if precision else "",
        schedule=str(run.answer("schedule") or "") if (run.answer("pp") or 1) != 1 else "",
        framework=stack,
        optimizer_offload=run.optimizer_offload,
        activation_offload=run.activation_offload,
        base_precision=run.base_precision or "",
        reduce=run.gradient_reduction or "",
        dp_replicate=run.dp_replicate,
        mtp_layers=run.model.mtp_layers,
        lora_rank=run.model.lora_rank,
        **figures,
    )


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _model_name(run: ImportedRun) -> str:
    shipped, _, source = run.model.figures_of.partition(" (")
    if source == SHIPPED:
        return f"{CATALOG}{shipped}"  # with its parts that an import has no key for
    name = (run.model.name or "").rstrip("/").rsplit("/", 1)[-1]
    if name and run.model.flavor and not run.model.figures_of:
        return f"{run.model.flavor} of {name}"  # its family's figures are not those of the flavor
    return f"{name} {run.model.flavor}" if name and run.model.flavor else name


def imported_row(run: ImportedRun, path: Path, on: str) -> PublishedRun:
    """The run on the cluster or device `on`; "" for the devices in its files.

    path  of its file, for messages and the row's id

    Raises InputError if the device or the number of devices is missing.
    """
    device, devices = on, None
    if not on or not (on[0].isdigit() or on.endswith((".toml", ".json"))):
        need_possible(run, str(path))
    else:
        cluster = get_cluster(on)
        kinds = {group.device.name for group in cluster.groups}
        if len(kinds) > 1:
            raise InputError(f"{on}: an imported run needs devices of one type")
        device, devices = kinds.pop(), cluster.num_devices
    if not device and not run.device:
        raise InputError(
            f"{path}: the configuration names no device; name the devices (--on, in Python on=): "
            "8x8xh100-sxm-80gb, or h100-sxm-80gb to keep its number of devices"
        )
    if devices is None and run.devices is None:
        raise InputError(
            f"{path}: the configuration does not name its number of devices; give them (--on, in "
            f"Python on=) as in 8x8x{device or run.device}"
        )
    row = row_of_import(run, id=path.stem, device=device, devices=devices)
    if on and on[0].isdigit():
        row = replace(row, devices_per_node=cluster.groups[0].devices_per_node)
    return row


def path_of_import(run: ImportedRun) -> Path:
    """The first file of an imported run, as its name."""
    return Path(run.files[0] if run.files else "imported run")


def predicted_import(row: PublishedRun) -> PredictedRow:
    """The prediction of a row; raises InputError if it has none."""
    made = predict_runs([row])[0]
    if made.prediction is None:
        raise InputError(made.why_not or f"{row.id} cannot be predicted")
    return made
