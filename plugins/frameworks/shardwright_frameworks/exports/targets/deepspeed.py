"""DeepSpeed: its JSON, with a program for data parallelism and Megatron-DeepSpeed's arguments
where layers or stages are split.

Sources: docs of DeepSpeed's configuration (deepspeed.ai/docs/config-json) and
github.com/deepspeedai/DeepSpeed, deepspeed/runtime/config.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from profiles.document import to_json
from shardwright_frameworks.exports.targets.accelerate import whole_layers
from shardwright_frameworks.exports.targets.megatron import megatron_flags
from shardwright_frameworks.exports.targets.training_scripts import (
    deepspeed_script,
    hugging_face_config,
    job_file,
)
from shardwright_frameworks.exports.values.exported import Exported, ExportedFile, Unexpressed
from shardwright_frameworks.exports.values.mesh_changes import without_axes
from shardwright_frameworks.exports.values.options import (
    nearest,
    replaced,
    schedule_gap,
    unexpressed_options,
)
from shardwright_frameworks.exports.values.planned_run import PlannedRun

_PRECISION = {"fp8": "bf16", "mxfp8": "bf16", "nvfp4": "bf16"}


def export_deepspeed(planned: PlannedRun) -> Exported:
    """`ds_config.json` and the program that uses it.

    Raises InputError if the model was named by code, or if replicas cannot replace the axes that
    it does not have.
    """
    run, gaps = without_axes(planned.run, ("cp", "ep"), "deepspeed")
    planned, more = whole_layers(replace(planned, run=run), "deepspeed")
    _, low = nearest(
        "precision", run.precision, _PRECISION, "DeepSpeed's engine computes in 16 or 32 bits"
    )
    gaps += more + low
    gaps += unexpressed_options(run, "deepspeed", can=("optimizer_offload", "gradient_reduction"))
    split = run.degrees.tp > 1 or run.degrees.pp > 1
    zero, limited = _zero(planned)
    gaps += limited
    config = ExportedFile(path="ds_config.json", text=to_json(_config(planned, zero)))
    if not split:
        return Exported(
            program="train.py",
            files=(
                config,
                deepspeed_script(),
                job_file(planned, recomputes=planned.run.recompute == "full"),
                hugging_face_config(planned, "deepspeed"),
            ),
            unexpressed=gaps,
            needs=("deepspeed, transformers and torch on every node",),
            fill_in=("data: train.py feeds random tokens", "optimizer in ds_config.json"),
        )
    _, schedule = schedule_gap(run, ("1f1b",), "deepspeed")
    gaps += schedule
    if run.degrees.vpp > 1:
        gaps += (_chunks(planned),)
    if not planned.is_even:
        gaps += (_uneven(planned),)
    return Exported(
        program='"${MEGATRON_DEEPSPEED_PATH:?set it to a checkout of Megatron-DeepSpeed}'
        '/pretrain_gpt.py"',
        arguments=tuple(_arguments(planned, zero)),
        files=(config,),
        unexpressed=gaps,
        needs=("Megatron-DeepSpeed (MEGATRON_DEEPSPEED_PATH) with apex on every node",),
        fill_in=("--data-path, --vocab-file and --merge-file", "--lr and --train-iters"),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    )


def _zero(planned: PlannedRun) -> tuple[int, tuple[Unexpressed, ...]]:
    """The ZeRO stage, and the gap in a pipeline, which needs one below 2
    (runtime/pipe/engine.py)."""
    run = planned.run
    if run.degrees.pp == 1 or run.zero_stage < 2:
        return run.zero_stage, ()
    why = "DeepSpeed's pipeline engine takes ZeRO 0 and 1"
    return 1, (replaced("zero_stage", run.zero_stage, 1, why),)


def _config(planned: PlannedRun, zero: int) -> dict[str, Any]:
    run = planned.run
    stage: dict[str, Any] = {
        "stage": zero,
        "overlap_comm": zero > 0,
        "contiguous_gradients": zero > 0,
    }
    if zero == 3:
        stage["stage3_gather_16bit_weights_on_model_save"] = True
    if run.optimizer_offload:
        stage["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    found: dict[str, Any] = {
        "train_batch_size": run.global_batch,
        "train_micro_batch_size_per_gpu": run.micro_batch,
        "gradient_accumulation_steps": run.num_microbatches,
        "gradient_clipping": 1.0,
        "steps_per_print": 1,
        "wall_clock_breakdown": False,
        "zero_optimization": stage,
        "bf16": {"enabled": run.precision not in ("fp16", "fp32")},
        "fp16": {"enabled": run.precision == "fp16"},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1},
        },
    }
    if run.gradient_reduction:
        found["communication_data_type"] = run.gradient_reduction
    if run.degrees.pp > 1:
        found["pipeline"] = {"stages": run.degrees.pp, "partition": "uniform", "seed_layers": False}
    return found


def _arguments(planned: PlannedRun, zero: int) -> list[str]:
    """Arguments of Megatron-DeepSpeed (megatron/arguments.py of github.com/deepspeedai/
    Megatron-DeepSpeed)."""
    run, model = planned.run, planned.run.model
    options: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_size or model.expert_size,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "seq_length": run.seq_len,
        "max_position_embeddings": max(run.seq_len, model.learned_positions),
    }
    if not model.learned_positions:
        options |= {"use_rotary_position_embeddings": True}
    if model.gated:
        options |= {"swiglu": True, "normalization": "rmsnorm", "disable_bias_linear": True}
    if not model.tied_embeddings:
        options["untie_embeddings_and_output_weights"] = True
    options |= {
        "tensor_model_parallel_size": run.degrees.tp,
        "pipeline_model_parallel_size": run.degrees.pp,
        "micro_batch_size": run.micro_batch,
        "global_batch_size": run.global_batch,
    }
    if run.degrees.pp == 1:
        options["no_pipeline_parallel"] = True
    if run.precision != "fp32":
        options["fp16" if run.precision == "fp16" else "bf16"] = True
    if run.sequence_parallel and run.degrees.tp > 1:
        options["sequence_parallel"] = True
    flags = megatron_flags(options)
    if run.recompute == "full":
        flags += ["--checkpoint-activations", "--deepspeed-activation-checkpointing"]
    flags += ["--deepspeed", "--deepspeed_config ds_config.json", f"--zero-stage {zero}"]
    return [*flags, "--train-iters 100", "--lr 3e-4"]


def _chunks(planned: PlannedRun) -> Unexpressed:
    return Unexpressed(
        option="vpp",
        planned=str(planned.run.degrees.vpp),
        written="1",
        why="DeepSpeed's pipeline has one stage per rank",
        change={"vpp": 1, "schedule": "1f1b"},
    )


def _uneven(planned: PlannedRun) -> Unexpressed:
    return Unexpressed(
        option="layers per stage",
        planned=", ".join(str(stage.num_layers) for stage in planned.stages),
        written="as equal as can be",
        why="Megatron-DeepSpeed cuts its pipeline by a fixed rule (partition_method)",
    )
