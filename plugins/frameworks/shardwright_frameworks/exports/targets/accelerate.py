"""accelerate: FSDP2 (or DDP) as the YAML of `accelerate launch`.

Source: github.com/huggingface/accelerate 16cb6eb8 (2026-07-24), src/accelerate/utils/launch.py
and commands/config/config_args.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from shardwright_frameworks.exports.targets.training_scripts import (
    accelerate_script,
    hugging_face_config,
    job_file,
)
from shardwright_frameworks.exports.values.exported import Exported, ExportedFile, Unexpressed
from shardwright_frameworks.exports.values.mesh_changes import without_axes
from shardwright_frameworks.exports.values.model_settings import layer_class
from shardwright_frameworks.exports.values.options import (
    all_or_no_layers,
    nearest,
    replaced,
    unexpressed_options,
)
from shardwright_frameworks.exports.values.planned_run import PlannedRun
from shardwright_frameworks.exports.values.yaml_text import yaml_text

# It recomputes whole layers or none.
_RECOMPUTE = {
    "selective": "none",
    "attention": "full",
    "norm": "full",
    "activation": "full",
    "norm-activation": "full",
    "norm-mlp": "full",
    "mlp": "full",
    "minimal": "full",
    "alternate": "full",
}
_PRECISION = {"mxfp8": "fp8", "nvfp4": "bf16"}


def export_accelerate(planned: PlannedRun) -> Exported:
    """`accelerate.yaml` with the program that it launches.

    Raises InputError if the model was named by code, or if replicas cannot replace the axes that
    it does not have.
    """
    run, gaps = without_axes(planned.run, ("pp", "ep"), "accelerate")
    planned, more = whole_layers(replace(planned, run=run, stages=one_stage(planned)), "accelerate")
    run = planned.run
    precision, low = nearest(
        "precision", run.precision, _PRECISION, "accelerate's fp8 is per tensor"
    )
    gaps += more + low
    stage, sharding = _sharding(planned)
    gaps += sharding
    gaps += unexpressed_options(run, "accelerate", can=("optimizer_offload",))
    data: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": "FSDP" if stage else "MULTI_GPU",
        "mixed_precision": {"fp32": "no"}.get(precision, precision),
        "num_machines": planned.num_nodes,
        "num_processes": planned.run.degrees.num_devices,
        "main_training_function": "main",
        "rdzv_backend": "static",
        "same_network": True,
        "use_cpu": planned.device_type == "cpu",
        "debug": False,
    }
    if planned.device_type == "cpu" and not stage:
        data["distributed_type"] = "MULTI_CPU"
    if precision == "fp8":
        data["fp8_config"] = {"backend": "AO", "enable_fsdp_float8_all_gather": stage > 0}
    if stage:
        data["fsdp_config"] = _fsdp(planned, stage)
    if run.degrees.tp > 1 or run.degrees.cp > 1:
        data["parallelism_config"] = {
            "parallelism_config_dp_replicate_size": 1 if stage else run.degrees.dp,
            "parallelism_config_dp_shard_size": run.degrees.dp if stage else 1,
            "parallelism_config_tp_size": run.degrees.tp,
            "parallelism_config_cp_size": run.degrees.cp,
        }
    launch = (
        "accelerate launch --config_file accelerate.yaml "
        '--num_machines "$NNODES" --machine_rank "$NODE_RANK" '
        '--main_process_ip "$MASTER_ADDR" --main_process_port "$MASTER_PORT" train.py'
    )
    return Exported(
        program=launch,
        per_node=True,
        files=(
            ExportedFile(path="accelerate.yaml", text=yaml_text(data)),
            accelerate_script(),
            job_file(planned, recomputes=run.recompute == "full" and not stage),
            hugging_face_config(planned, "accelerate"),
        ),
        unexpressed=gaps,
        needs=("accelerate 1.10 or later, transformers and torch on every node",),
        fill_in=("data: train.py feeds random tokens", "optimizer and learning rate in train.py"),
    )


def whole_layers(planned: PlannedRun, target: str) -> tuple[PlannedRun, tuple[Unexpressed, ...]]:
    """The run with all or no layers recomputed, and the resulting change."""
    run = planned.run
    kind, gaps = nearest(
        "recompute", run.recompute, _RECOMPUTE, f"{target} recomputes whole layers or nothing"
    )
    mixed = all_or_no_layers(planned, target, f"{target} recomputes every layer or none")
    changed = replace(run, recompute=kind, recompute_layers=0)
    return replace(planned, run=changed), (*gaps, *mixed)


def one_stage(planned: PlannedRun) -> tuple[Any, ...]:
    """The planned run with all layers in one stage."""
    kinds = tuple(kind for stage in planned.stages for kind in stage.recompute)
    first = planned.stages[0]
    return (replace(first, rank=0, recompute=kinds, has_embedding=True, has_head=True),)


def _sharding(planned: PlannedRun) -> tuple[int, tuple[Unexpressed, ...]]:
    """The written ZeRO stage, and the gap. FSDP2 shards states and gradients together, so stage 1
    is written as 2; DDP cannot be combined with other axes (parallelism_config.py)."""
    run = planned.run
    split = run.degrees.dp > 1 and (run.degrees.tp > 1 or run.degrees.cp > 1)
    if planned.device_type == "cpu" and run.zero_stage:
        return 0, (replaced("zero_stage", run.zero_stage, 0, "accelerate has no FSDP on CPUs"),)
    if run.zero_stage >= 2 or (run.zero_stage == 0 and not split):
        return run.zero_stage, ()
    why = "FSDP2 shards gradients with the optimizer's states"
    if not run.zero_stage:
        why = "accelerate's DDP goes with no other axis"
    return 2, (replaced("zero_stage", run.zero_stage, 2, why),)


def _fsdp(planned: PlannedRun, stage: int) -> dict[str, Any]:
    run = planned.run
    found: dict[str, Any] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": stage == 3,
        "fsdp_offload_params": run.optimizer_offload,
        "fsdp_activation_checkpointing": run.recompute == "full",
        "fsdp_cpu_ram_efficient_loading": False,
        "fsdp_state_dict_type": "SHARDED_STATE_DICT",
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    }
    name = layer_class(planned)
    if name:
        found["fsdp_transformer_layer_cls_to_wrap"] = name
    return found
