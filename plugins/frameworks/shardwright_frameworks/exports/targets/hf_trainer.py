"""transformers' Trainer: its arguments, and DeepSpeed's JSON for other ZeRO stages.

Source: transformers 5.23, src/transformers/training_args.py.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from profiles.document import to_json
from shardwright_frameworks.exports.targets.accelerate import (
    export_accelerate,
    one_stage,
    whole_layers,
)
from shardwright_frameworks.exports.targets.training_scripts import job_file, trainer_script
from shardwright_frameworks.exports.values.exported import Exported, ExportedFile, Unexpressed
from shardwright_frameworks.exports.values.mesh_changes import without_axes
from shardwright_frameworks.exports.values.model_settings import layer_class
from shardwright_frameworks.exports.values.options import replaced
from shardwright_frameworks.exports.values.planned_run import PlannedRun

_LOW = ("fp8", "mxfp8", "nvfp4")


def export_hf_trainer(planned: PlannedRun) -> Exported:
    """`training_args.json` and the program that reads it; raises the errors of export_accelerate.

    FSDP is used for stages 2 and 3, DeepSpeed for 1 and for an optimizer in host memory.
    """
    run, axes = without_axes(planned.run, ("tp", "cp", "pp", "ep"), "hf-trainer")
    planned = replace(planned, run=run, stages=one_stage(planned))
    base = export_accelerate(planned)
    by_deepspeed = run.zero_stage == 1 or run.optimizer_offload
    gaps = [gap for gap in base.unexpressed if not (by_deepspeed and gap.option == "zero_stage")]
    if run.precision in _LOW:
        gaps = [gap for gap in gaps if gap.option != "precision"]
        why = "the Trainer's arguments are bf16 and fp16"
        gaps.append(replaced("precision", run.precision, "bf16", why))
    whole_plan, _ = whole_layers(planned, "hf-trainer")
    files = [file for file in base.files if file.path == "config.json"]
    files.append(job_file(planned, recomputes=False))
    arguments = _arguments(planned, recomputes=whole_plan.run.recompute == "full")
    if by_deepspeed:
        arguments["deepspeed"] = "ds_config.json"
        files.append(ExportedFile(path="ds_config.json", text=to_json(_deepspeed(planned))))
    else:
        # Without it a reader cannot know whether the command names a file with FSDP.
        arguments |= _fsdp(planned) if run.zero_stage else {"fsdp": ""}
    return Exported(
        program="train.py",
        files=(
            ExportedFile(path="training_args.json", text=to_json(arguments)),
            trainer_script(),
            *files,
        ),
        unexpressed=(*axes, *(_renamed(gap) for gap in gaps)),
        needs=(
            "transformers and accelerate" + (" and deepspeed" if by_deepspeed else "") + " on "
            "every node",
        ),
        fill_in=("data: train.py feeds random tokens", "learning rate and schedule"),
    )


def _renamed(gap: Unexpressed) -> Unexpressed:
    return replace(gap, why=gap.why.replace("accelerate", "the Trainer"))


def _arguments(planned: PlannedRun, *, recomputes: bool) -> dict[str, Any]:
    run = planned.run
    return {
        "output_dir": "outputs",
        "per_device_train_batch_size": run.micro_batch,
        "gradient_accumulation_steps": run.num_microbatches,
        "bf16": run.precision not in ("fp16", "fp32"),
        "fp16": run.precision == "fp16",
        "gradient_checkpointing": recomputes,
        "use_cpu": planned.device_type == "cpu",
        "max_steps": 100,
        "learning_rate": 3e-4,
        "optim": "adamw_torch",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "include_num_input_tokens_seen": True,
    }


def _fsdp(planned: PlannedRun) -> dict[str, Any]:
    config: dict[str, Any] = {
        "version": 2,
        "reshard_after_forward": planned.run.zero_stage == 3,
        "cpu_ram_efficient_loading": False,
    }
    name = layer_class(planned)
    if name:
        config["transformer_layer_cls_to_wrap"] = [name]
    return {"fsdp": "full_shard auto_wrap", "fsdp_config": config}


def _deepspeed(planned: PlannedRun) -> dict[str, Any]:
    """DeepSpeed's JSON, with the values that the Trainer does not fill in ("auto")."""
    run = planned.run
    stage: dict[str, Any] = {"stage": run.zero_stage, "overlap_comm": True}
    if run.optimizer_offload:
        stage["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return {
        "train_batch_size": run.global_batch,
        "train_micro_batch_size_per_gpu": run.micro_batch,
        "gradient_accumulation_steps": run.num_microbatches,
        "zero_optimization": stage,
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
        "gradient_clipping": "auto",
    }
