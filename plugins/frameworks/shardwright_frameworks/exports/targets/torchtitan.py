"""torchtitan: the TOML of releases 0.2 and the Python function of 0.3, with the model's figures
and, where needed, the schedule.

Source: github.com/pytorch/torchtitan v0.2.2 (2026-02-20), torchtitan/config/job_config.py and
distributed/pipeline_parallel.py; 0.3's function is written by torchtitan_config.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from profiles.errors import InputError
from shardwright_frameworks.exports.targets.torchtitan_config import CONFIG, START, config_file
from shardwright_frameworks.exports.targets.torchtitan_model import model_file
from shardwright_frameworks.exports.values.exported import Exported, ExportedFile, Unexpressed
from shardwright_frameworks.exports.values.mesh_changes import without_axes
from shardwright_frameworks.exports.values.model_settings import is_plain_llama
from shardwright_frameworks.exports.values.options import (
    all_or_no_layers,
    nearest,
    replaced,
    unexpressed_options,
)
from shardwright_frameworks.exports.values.planned_run import PlannedRun
from shardwright_frameworks.exports.values.toml_text import toml_text
from simulator.schedules.schedule import build_schedule, schedule_kind

_SCHEDULES = {
    "1f1b": "1F1B",
    "gpipe": "GPipe",
    "interleaved": "Interleaved1F1B",
    "zbv": "ZBVZeroBubble",
    "dualpipev": "DualPipeV",
}
_RECOMPUTE = {
    "selective": "none",  # of a fused attention core nothing is kept that it would free
    "attention": "alternate",
    "norm": "alternate",
    "activation": "alternate",
    "norm-activation": "alternate",
    "norm-mlp": "alternate",
    "mlp": "alternate",
    "minimal": "alternate",
}
_CSV = "schedule.csv"
_CAN = ("optimizer_offload", "pipeline_layout", "dp_replicate")


def export_torchtitan(planned: PlannedRun) -> Exported:
    """`train.toml`, `planned_model.py` and, for schedules that torch has no name for,
    `schedule.csv`.

    Raises InputError unless the model is a Llama: torchtitan has other models in fixed sizes only.
    """
    run = planned.run
    if not is_plain_llama(run.model) or run.model.num_experts:
        raise InputError(
            f"--to torchtitan: {planned.model} is no Llama (gated, rotary, no experts); torchtitan "
            "has other models in fixed sizes only, so its figures cannot be written down"
        )
    run, gaps = without_axes(run, ("ep",), "torchtitan")
    planned = replace(planned, run=run)
    pipeline, csv, more = _pipeline(planned)
    again, kinds = _activation(planned)
    precision, tables, low = _precision(planned)
    batch, used = _batch(planned)
    data: dict[str, Any] = {
        "job": {"dump_folder": "./outputs", "description": f"{planned.model}, {planned.plan}"},
        "metrics": {"log_freq": 1},
        "model": {"name": "planned", "flavor": "planned", "converters": list(low)},
        "optimizer": {"name": "AdamW", "lr": 3e-4},
        "lr_scheduler": {"warmup_steps": 2},
        "training": {**batch, "seq_len": run.seq_len, "steps": 100, **precision},
        "parallelism": {**_mesh(planned), **pipeline, **used},
        "activation_checkpoint": again,
        "compile": {"enable": "compiled" in run.stack or bool(low)},
        **tables,
        "experimental": {"custom_import": "planned_model"},
    }
    if run.optimizer_offload:
        data["training"]["enable_cpu_offload"] = True
    gaps += unexpressed_options(run, "torchtitan", can=_CAN)
    gaps += _tied(planned)
    files = [
        ExportedFile(path="train.toml", text=toml_text(data)),
        ExportedFile(path="planned_model.py", text=model_file(planned)),
        ExportedFile(path=CONFIG, text=config_file(planned, data)),
    ]
    if csv:
        files.append(ExportedFile(path=_CSV, text=csv))
    return Exported(
        program="-m torchtitan.train",
        arguments=("${TORCHTITAN_CONFIG:---job.config_file train.toml}",),
        files=tuple(files),
        unexpressed=(*gaps, *more, *kinds),
        needs=(
            "torchtitan 0.2 (pip install 'torchtitan<0.3'), torch 2.10 or later; 0.3 takes "
            f"planned_config.py: TORCHTITAN_CONFIG='{START}' ./run.sh",
        ),
        fill_in=(
            "data: planned_model.py feeds random tokens; give the TrainSpec your dataloader and "
            "tokenizer (torchtitan's are named in the file)",
            "lr, steps, checkpoints",
            "with 0.3: dataset and tokenizer in planned_config.py; after 0.3.0 a batch is counted "
            "in tokens (num_tokens_per_microbatch_per_dp_rank = micro-batch x seq_len)",
        ),
    )


def _mesh(planned: PlannedRun) -> dict[str, Any]:
    run = planned.run
    shards = run.zero_stage > 0
    return {
        "data_parallel_replicate_degree": run.degrees.dp_replicate if shards else run.degrees.dp,
        "data_parallel_shard_degree": run.degrees.shard_replicas if shards else 1,
        # Gathered once per step, as in ZeRO 1 and 2, or block by block.
        "fsdp_reshard_after_forward": "always" if run.zero_stage == 3 else "never",
        "tensor_parallel_degree": run.degrees.tp,
        "context_parallel_degree": run.degrees.cp,
        "pipeline_parallel_degree": run.degrees.pp,
    }


def _batch(planned: PlannedRun) -> tuple[dict[str, Any], dict[str, Any]]:
    """With a pipeline the local batch is all micro-batches of a step, otherwise one of them."""
    run = planned.run
    local = run.micro_batch * (run.num_microbatches if run.degrees.pp > 1 else 1)
    used = {"pipeline_parallel_microbatch_size": run.micro_batch} if run.degrees.pp > 1 else {}
    return {"local_batch_size": local, "global_batch_size": run.global_batch}, used


def _pipeline(planned: PlannedRun) -> tuple[dict[str, Any], str, tuple[Unexpressed, ...]]:
    """Keys of the pipeline, the schedule's CSV or "", and the parts that are not expressed."""
    run = planned.run
    if run.degrees.pp == 1:
        return {}, "", ()
    found: dict[str, Any] = {"module_fqns_per_model_part": stage_modules(planned)}
    if run.schedule in _SCHEDULES:
        return found | {"pipeline_parallel_schedule": _SCHEDULES[run.schedule]}, "", ()
    kind = schedule_kind(run.schedule)
    if kind.copies > 1 or kind.follows_durations:
        written = "interleaved" if run.degrees.vpp > 1 else "1f1b"
        why = "torch's pipelines hold one copy of the model, in an order known before the step"
        gap = replaced("schedule", run.schedule, written, why)
        return found | {"pipeline_parallel_schedule": _SCHEDULES[written]}, "", (gap,)
    schedule = build_schedule(
        run.schedule,
        num_ranks=run.degrees.pp,
        num_microbatches=run.num_microbatches,
        stages_per_rank=run.degrees.vpp,
    )
    # The name gives the devices of the stages, the file their order.
    name = "ZBVZeroBubble" if schedule_kind(run.schedule).is_v else "PipelineScheduleMulti"
    found |= {"pipeline_parallel_schedule": name, "pipeline_parallel_schedule_csv": _CSV}
    csv = "".join(",".join(str(action) for action in row) + "\n" for row in schedule.ranks)
    return found, csv, ()


def stage_modules(planned: PlannedRun) -> list[list[str]]:
    """The modules of every virtual stage, by their names in torchtitan's Llama."""
    found = []
    for stage, layers in zip(planned.stages, planned.layer_ranges, strict=True):
        names = ["tok_embeddings"] if stage.has_embedding else []
        names += [f"layers.{layer}" for layer in layers]
        found.append(names + (["norm", "output"] if stage.has_head else []))
    return found


def _activation(planned: PlannedRun) -> tuple[dict[str, Any], tuple[Unexpressed, ...]]:
    run = planned.run
    kind, gaps = nearest(
        "recompute", run.recompute, _RECOMPUTE, "torchtitan recomputes by op or by whole layer"
    )
    mixed = all_or_no_layers(planned, "torchtitan", "torchtitan recomputes every layer or none")
    if kind == "alternate":
        return {"mode": "selective", "selective_ac_option": "op"}, (*gaps, *mixed)
    return {"mode": kind}, (*gaps, *mixed)


def _precision(
    planned: PlannedRun,
) -> tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]:
    """Keys of `training`, tables of quantisation, and converters."""
    precision = planned.run.precision
    if precision == "fp32":
        return {"mixed_precision_param": "float32"}, {}, ()
    found = {"mixed_precision_param": "bfloat16", "mixed_precision_reduce": "float32"}
    if precision == "fp8":
        float8 = {
            "enable_fsdp_float8_all_gather": planned.run.zero_stage > 0,
            "precompute_float8_dynamic_scale_for_fsdp": planned.run.zero_stage > 0,
            "filter_fqns": ["output"],
        }
        return found, {"quantize": {"linear": {"float8": float8}}}, ("quantize.linear.float8",)
    if precision == "mxfp8":
        mx = {"recipe_name": "mxfp8_cublas", "filter_fqns": ["output"]}
        return found, {"quantize": {"linear": {"mx": mx}}}, ("quantize.linear.mx",)
    if precision in ("fp16", "nvfp4"):
        raise InputError(
            f"--to torchtitan: it does not train in {precision}; plan with --precision bf16"
        )
    return found, {}, ()


def _tied(planned: PlannedRun) -> tuple[Unexpressed, ...]:
    if not planned.run.model.tied_embeddings:
        return ()
    return (
        Unexpressed(
            option="tied embeddings",
            planned="one table",
            written="two",
            why="torchtitan's Llama has a separate head",
            change={"model": replace(planned.run.model, tied_embeddings=False)},
        ),
    )
