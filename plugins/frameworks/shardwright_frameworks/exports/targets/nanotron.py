"""nanotron: its YAML.

Source: github.com/huggingface/nanotron 2411b022 (2026-04-07), src/nanotron/config and
examples/config_tiny_llama.yaml.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from profiles.errors import InputError
from shardwright_frameworks.exports.targets.accelerate import whole_layers
from shardwright_frameworks.exports.values.exported import Exported, ExportedFile, Unexpressed
from shardwright_frameworks.exports.values.mesh_changes import without_axes
from shardwright_frameworks.exports.values.model_settings import (
    is_plain_llama,
    norm_epsilon,
    rope_theta,
)
from shardwright_frameworks.exports.values.options import nearest, replaced, unexpressed_options
from shardwright_frameworks.exports.values.planned_run import PlannedRun, stages_of_run
from shardwright_frameworks.exports.values.yaml_text import yaml_text
from simulator.training_run.run.training_run import with_settings

_PRECISION = {"fp8": "bf16", "mxfp8": "bf16", "nvfp4": "bf16", "fp16": "bf16"}
_ENGINES = {"1f1b": "1f1b", "gpipe": "afab"}


def export_nanotron(planned: PlannedRun) -> Exported:
    """`config.yaml`; raises InputError unless the model is a Llama or a Qwen with experts."""
    model = planned.run.model
    if not is_plain_llama(model) or model.first_dense_layers:
        raise InputError(
            f"--to nanotron: {planned.model} cannot be described: nanotron's configuration is for "
            "Llama (gated, rotary, no biases), with or without experts in every layer"
        )
    run, gaps = without_axes(planned.run, ("cp",), "nanotron")
    planned, more = whole_layers(replace(planned, run=run), "nanotron")
    run = planned.run
    precision, low = nearest("precision", run.precision, _PRECISION, "nanotron has no such type")
    gaps += more + low + _stages(planned)
    gaps += unexpressed_options(run, "nanotron", can=())
    zero = min(run.zero_stage, 1)
    if zero != run.zero_stage:
        why = "nanotron shards the optimizer's states alone"
        gaps += (replaced("zero_stage", run.zero_stage, 1, why),)
    engine = _ENGINES.get(run.schedule, "1f1b")
    if run.degrees.pp > 1 and run.schedule not in _ENGINES:
        gaps += (_schedule(planned),)
    data = {
        "checkpoints": {
            "checkpoint_interval": 1000,
            "checkpoints_path": "checkpoints",
            "checkpoints_path_is_shared_file_system": False,
            "resume_checkpoint_path": None,
            "save_initial_state": False,
        },
        "data_stages": [
            {
                "name": "Training",
                "start_training_step": 1,
                "data": {"dataset": None, "num_loading_workers": 1, "seed": 42},
            }
        ],
        "general": {"project": "planned", "run": "planned_%date_%jobid", "seed": 42},
        "logging": {
            "iteration_step_info_interval": 1,
            "log_level": "info",
            "log_level_replica": "info",
        },
        "model": _model(planned, "float32" if precision == "fp32" else "bfloat16"),
        "optimizer": _optimizer(zero),
        "parallelism": {
            "dp": run.degrees.dp,
            "pp": run.degrees.pp,
            "tp": run.degrees.tp,
            "expert_parallel_size": run.degrees.ep,
            "context_parallel_size": 1,
            "pp_engine": engine,
            "tp_mode": "REDUCE_SCATTER" if run.sequence_parallel else "ALL_REDUCE",
            "tp_linear_async_communication": run.sequence_parallel and run.degrees.tp > 1,
            "recompute_layer": run.recompute == "full",
        },
        "tokenizer": {"tokenizer_name_or_path": "REPLACE/with-your-tokenizer"},
        "tokens": {
            "sequence_length": run.seq_len,
            "micro_batch_size": run.micro_batch,
            "batch_accumulation_per_replica": run.num_microbatches,
            "train_steps": 100,
            "limit_test_batches": 0,
            "limit_val_batches": 0,
            "val_check_interval": -1,
        },
    }
    return Exported(
        program='"${NANOTRON_PATH:?set it to a checkout of nanotron}/run_train.py"',
        arguments=("--config-file config.yaml",),
        files=(ExportedFile(path="config.yaml", text=yaml_text(data)),),
        unexpressed=gaps,
        needs=("nanotron (NANOTRON_PATH) with flash-attn on every node",),
        fill_in=("data_stages and tokenizer: the dataset null is nanotron's random data",),
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
    )


def _model(planned: PlannedRun, dtype: str) -> dict[str, Any]:
    model, run = planned.run.model, planned.run
    config: dict[str, Any] = {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "hidden_size": model.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": model.ffn_size or model.expert_size,
        "max_position_embeddings": run.seq_len,
        "num_attention_heads": model.num_heads,
        "num_hidden_layers": model.num_layers,
        "num_key_value_heads": model.num_kv_heads,
        "rms_norm_eps": norm_epsilon(planned),
        "rope_theta": rope_theta(planned),
        "rope_scaling": None,
        "tie_word_embeddings": model.tied_embeddings,
        "use_cache": True,
        "vocab_size": model.vocab_size,
    }
    if model.num_experts:
        config["is_qwen2_config"] = True
        config["moe_config"] = {
            "num_experts": model.num_experts,
            "top_k": model.top_k,
            "moe_intermediate_size": model.expert_size,
            "shared_expert_intermediate_size": model.num_shared_experts * model.expert_size,
            "enable_shared_expert": model.num_shared_experts > 0,
        }
    else:
        config["is_llama_config"] = True
    return {
        "ddp_bucket_cap_mb": 25,
        "dtype": dtype,
        "init_method": {"std": 0.02},
        "make_vocab_size_divisible_by": 1,
        "model_config": config,
    }


def _optimizer(zero: int) -> dict[str, Any]:
    return {
        "zero_stage": zero,
        "weight_decay": 0.1,
        "clip_grad": 1.0,
        "accumulate_grad_in_fp32": True,
        "learning_rate_scheduler": {
            "learning_rate": 3e-4,
            "lr_warmup_steps": 2,
            "lr_warmup_style": "linear",
            "lr_decay_style": "cosine",
            "lr_decay_steps": 98,
            "min_decay_lr": 1e-5,
        },
        "optimizer_factory": {
            "name": "adamW",
            "adam_beta1": 0.9,
            "adam_beta2": 0.95,
            "adam_eps": 1e-8,
            "torch_adam_is_fused": True,
        },
    }


def _stages(planned: PlannedRun) -> tuple[Unexpressed, ...]:
    """nanotron cuts its pipeline by the cost of blocks, as assumed in plans for it."""
    run = planned.run
    if run.degrees.pp == 1:
        return ()
    stages = stages_of_run(with_settings(run, {"stack": "nanotron", "vpp": 1, "schedule": "1f1b"}))
    counts = [stage.num_layers for stage in stages]
    wanted = [stage.num_layers for stage in planned.stages]
    if counts == wanted:
        return ()
    return (
        Unexpressed(
            option="layers per stage",
            planned=", ".join(map(str, wanted)),
            written=", ".join(map(str, counts)),
            why="nanotron cuts its pipeline by the cost of its blocks",
        ),
    )


def _schedule(planned: PlannedRun) -> Unexpressed:
    run = planned.run
    return Unexpressed(
        option="schedule",
        planned=f"{run.schedule}, {run.degrees.vpp} stages per rank",
        written="1f1b",
        why="nanotron runs 1F1B and all-forward-all-backward with one stage per rank",
        change={"schedule": "1f1b", "vpp": 1},
    )
