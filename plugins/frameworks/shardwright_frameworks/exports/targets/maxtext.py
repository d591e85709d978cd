"""MaxText: KEY=VALUE flags over its base.yml.

Source: github.com/AI-Hypercomputer/maxtext e591f30c (2026-08-22), src/maxtext/configs/base.yml.
"""

from __future__ import annotations

import math
import shlex
from typing import Any

from profiles.errors import InputError
from shardwright_frameworks.exports.values.exported import Exported, ExportedFile, Unexpressed
from shardwright_frameworks.exports.values.options import (
    all_or_no_layers,
    nearest,
    replaced,
    unexpressed_options,
)
from shardwright_frameworks.exports.values.planned_run import PlannedRun
from shardwright_frameworks.exports.values.yaml_text import yaml_text

# Models whose file in configs/models is the shipped configuration.
_MODELS = {
    "llama-3.1-8b": "llama3.1-8b",
    "llama-3.1-70b": "llama3.1-70b",
    "llama-3.1-405b": "llama3.1-405b",
    "mixtral-8x7b": "mixtral-8x7b",
    "deepseek-v3": "deepseek3-671b",
    "qwen3-235b-a22b": "qwen3-235b-a22b",
    "gpt3-175b": "gpt3-175b",
}
_RECOMPUTE = {
    "none": "minimal",  # remat_policy keeps matmuls and the attention core at most
    "selective": "minimal",
    "attention": "full",
    "norm": "minimal",
    "activation": "minimal",
    "norm-activation": "minimal",
    "norm-mlp": "full",
    "mlp": "full",
    "alternate": "full",
}
_REMAT = {"minimal": "minimal_with_context", "full": "full"}


def export_maxtext(planned: PlannedRun) -> Exported:
    """`maxtext.yml` (base.yml's keys) and the same as flags.

    Raises InputError for a model that MaxText's files do not name and its keys cannot describe.
    """
    run = planned.run
    gaps = unexpressed_options(
        run,
        "maxtext",
        can=("gradient_reduction", "local_steps", "optimizer_offload", "activation_offload"),
    )
    kind, more = nearest(
        "recompute", run.recompute, _RECOMPUTE, "MaxText's remat_policy has no such policy"
    )
    mixed = all_or_no_layers(planned, "maxtext", "MaxText has one policy for all layers")
    data: dict[str, Any] = {
        "run_name": "planned",
        "base_output_directory": "outputs",
        "hardware": "tpu" if planned.device_type == "tpu" else "gpu",
        "dataset_type": "synthetic",
        "steps": 100,
        "enable_checkpointing": False,
        **_model(planned),
        "max_target_length": run.seq_len,
        **_batch(planned),
        **_mesh(planned),
        **_precision(planned),
        "remat_policy": _remat(planned, kind),
    }
    if run.optimizer_offload:
        data["optimizer_memory_host_offload"] = True
    if run.local_workers > 1:
        data |= {
            "enable_diloco": True,
            "dcn_diloco_parallelism": run.local_workers,
            "diloco_sync_period": run.local_steps,
        }
    return Exported(
        program='env JAX_COORDINATOR_IP="$MASTER_ADDR" JAX_COORDINATOR_PORT="$MASTER_PORT" '
        "python3 -m maxtext.trainers.pre_train.train",
        per_node=True,
        arguments=('"${MAXTEXT_BASE:?set it to configs/base.yml of MaxText}"', *_words(data)),
        files=(ExportedFile(path="maxtext.yml", text=yaml_text(data)),),
        unexpressed=(
            *gaps,
            *more,
            *mixed,
            *_pipeline_gaps(planned),
            *_sharding(planned),
            *_experts(planned),
        ),
        needs=("MaxText with JAX for the device on every node",),
        fill_in=("dataset_type=synthetic stands for your data", "base_output_directory, run_name"),
    )


def _model(planned: PlannedRun) -> dict[str, Any]:
    if planned.model in _MODELS:
        return {"model_name": _MODELS[planned.model]}
    model = planned.run.model
    plain = model.is_even and model.expert_every == 1
    if model.latent or model.state or not plain or model.biases or model.window_layers:
        raise InputError(
            f"--to maxtext: {planned.model} is none of the models that MaxText names, and its "
            "keys describe plain layers only (gated or not, with or without experts)"
        )
    found: dict[str, Any] = {
        "model_name": "default",
        "decoder_block": "mixtral" if model.num_experts else "llama2",
        "base_emb_dim": model.hidden_size,
        "base_num_query_heads": model.num_heads,
        "base_num_kv_heads": model.num_kv_heads,
        "head_dim": model.head_size,
        "base_mlp_dim": model.ffn_size or model.expert_size,
        "base_num_decoder_layers": model.num_layers,
        "mlp_activations": ["silu", "linear"] if model.gated else ["gelu"],
        "vocab_size": model.vocab_size,
        "logits_via_embedding": model.tied_embeddings,
    }
    if model.num_experts:
        found |= {
            "num_experts": model.num_experts,
            "num_experts_per_tok": model.top_k,
            "base_moe_mlp_dim": model.expert_size,
        }
    return found


def _batch(planned: PlannedRun) -> dict[str, Any]:
    """per_device_batch_size counts the sequences of one pass over all devices; with a pipeline a
    pass is the whole step, cut into num_pipeline_microbatches."""
    run = planned.run
    if run.degrees.pp > 1:
        return {
            "per_device_batch_size": run.global_batch / run.degrees.num_devices,
            "num_pipeline_microbatches": run.num_microbatches,
            "gradient_accumulation_steps": 1,
        }
    return {
        "per_device_batch_size": run.micro_batch * run.degrees.dp / run.degrees.num_devices,
        "gradient_accumulation_steps": run.num_microbatches,
    }


def _mesh(planned: PlannedRun) -> dict[str, Any]:
    """The axes inside the node (or slice) and across nodes; innermost axes fill the node first."""
    run = planned.run
    experts = math.gcd(run.degrees.ep, run.degrees.dp)
    replicas = run.degrees.dp // run.local_workers
    sharded = _is_sharded(planned)
    degrees = {
        "tensor": run.degrees.tp,
        "context": run.degrees.cp,
        "expert": min(experts, replicas),
        "fsdp": replicas // min(experts, replicas) if sharded else 1,
        "data": 1 if sharded else replicas // min(experts, replicas),
        "pipeline": run.degrees.pp,
    }
    whole = planned.device_type == "tpu"
    room = run.degrees.num_devices if whole else planned.devices_per_node
    found: dict[str, Any] = {}
    for axis, degree in degrees.items():
        inner = math.gcd(degree, room)
        room //= inner
        found[f"ici_{axis}_parallelism"] = inner
        found[f"dcn_{axis}_parallelism"] = degree // inner
    if run.degrees.pp > 1:
        found["num_layers_per_pipeline_stage"] = -(-run.model.num_layers // run.degrees.num_stages)
        found["num_pipeline_repeats"] = run.degrees.vpp
    return found


def _precision(planned: PlannedRun) -> dict[str, Any]:
    run = planned.run
    found: dict[str, Any] = {"dtype": "float32" if run.precision == "fp32" else "bfloat16"}
    found["weight_dtype"] = "float32"
    if run.precision in ("fp16", "mxfp8", "nvfp4"):
        raise InputError(
            f"--to maxtext: it does not train in {run.precision}; plan with --precision bf16 or fp8"
        )
    if run.precision == "fp8":
        found["quantization"] = "fp8"
    if run.gradient_reduction == "bf16":
        found["grad_dtype"] = "bfloat16"
    return found


def _remat(planned: PlannedRun, kind: str) -> str:
    if planned.run.activation_offload:
        return "minimal_offloaded"
    return _REMAT[kind]


def _pipeline_gaps(planned: PlannedRun) -> tuple[Unexpressed, ...]:
    """Gaps of MaxText's pipeline, which runs all forwards, then all backwards, on equal stages."""
    run = planned.run
    if run.degrees.pp == 1:
        return ()
    found = []
    if run.schedule != "gpipe":
        found.append(
            Unexpressed(
                option="schedule",
                planned=run.schedule,
                written="all forwards, then all backwards",
                why="MaxText differentiates the pipeline as a whole",
                change={"schedule": "gpipe", "vpp": 1},
            )
        )
    if not planned.is_even:
        found.append(
            Unexpressed(
                option="layers per stage",
                planned=", ".join(str(stage.num_layers) for stage in planned.stages),
                written="equal (pipeline_parallel_layers leaves the rest outside)",
                why="MaxText's stages hold equal numbers of layers",
            )
        )
    return tuple(found)


def _sharding(planned: PlannedRun) -> tuple[Unexpressed, ...]:
    """The gap of ZeRO stages below 3, because fsdp shards weights as well."""
    stage = planned.run.zero_stage
    if stage == 3 or not _is_sharded(planned):
        return ()
    why = "MaxText's axes fsdp, expert and context shard weights, gradients and states"
    return (replaced("zero_stage", stage, 3, why),)


def _is_sharded(planned: PlannedRun) -> bool:
    """Whether weights are sharded: the axes of experts and of sequences shard them as fsdp does
    (base.yml, logical_axis_rules, `embed`)."""
    run = planned.run
    return run.zero_stage > 0 or run.degrees.ep > 1 or run.degrees.cp > 1


def _experts(planned: PlannedRun) -> tuple[Unexpressed, ...]:
    """The gap of ep over more ranks than replicas: the expert axis is part of data parallelism."""
    ep, dp = planned.run.degrees.ep, planned.run.degrees.dp // planned.run.local_workers
    able = min(math.gcd(ep, planned.run.degrees.dp), dp)
    if able == ep:
        return ()
    return (replaced("ep", ep, able, "MaxText's axis of experts splits data as well"),)


def _words(data: dict[str, Any]) -> list[str]:
    found = []
    for name, value in data.items():
        text = str(value).lower() if isinstance(value, bool) else value
        if isinstance(value, list):
            text = "[" + ",".join(f"'{item}'" for item in value) + "]"
        found.append(shlex.quote(f"{name}={text}"))
    return found
