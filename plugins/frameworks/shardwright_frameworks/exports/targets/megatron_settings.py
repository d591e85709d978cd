"""`megatron_settings`: a plan as Megatron-Core's options, by their names in its dataclasses.

Megatron-LM's flags and Megatron-Bridge's keys are these names; differences are in
`megatron.py` and `megatron_bridge.py`. Source: github.com/NVIDIA/Megatron-LM d98e8a64
(2026-08-22), megatron/training/arguments.py and megatron/core/transformer/transformer_config.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from profiles.errors import InputError
from profiles.model.figures.transformer import Transformer
from shardwright_frameworks.exports.values.exported import Unexpressed
from shardwright_frameworks.exports.values.model_settings import (
    norm_epsilon,
    norms_queries,
    rope_theta,
)
from shardwright_frameworks.exports.values.options import (
    nearest,
    schedule_gap,
    uneven_recompute,
    unexpressed_options,
)
from shardwright_frameworks.exports.values.planned_run import PlannedRun
from simulator.schedules.schedule import schedule_kind
from simulator.values.degrees import AXIS_ORDERS
from simulator.values.pipeline_layout import LayoutStage, pipeline_layout_text

# Kinds of recomputation that Megatron-Core does not have, and the nearest ones.
_RECOMPUTE = {"attention": "selective", "alternate": "full", "minimal": "selective"}
# Weight of the loss that balances experts where the model's configuration has none: of Switch
# Transformers (arXiv 2101.03961, section 2.2), which Megatron's 0.0 would leave out.
_BALANCE = 1e-2
_CAN = (
    "pipeline_layout",
    "wide_layers",
    "gradient_reduction",
    "optimizer_offload",
    "activation_offload",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronSettings:
    """Options by name, in groups; True is a flag without a value."""

    model: dict[str, Any]
    parallelism: dict[str, Any]
    training: dict[str, Any]
    unexpressed: tuple[Unexpressed, ...]


def megatron_settings(planned: PlannedRun, target: str) -> MegatronSettings:
    """The plan's options, and the parts that they do not express.

    Raises InputError for a model whose layers are not all attention and feed-forward.
    """
    parallelism, gaps = _parallelism(planned, target)
    training, more = _training(planned, target)
    return MegatronSettings(
        model=_model(planned, target),
        parallelism=parallelism,
        training=training,
        unexpressed=(*gaps, *more),
    )


def _model(planned: PlannedRun, target: str) -> dict[str, Any]:
    model, run = planned.run.model, planned.run
    if model.state is not None or not model.is_even:
        raise InputError(
            f"--to {target}: {planned.model} has other layers than attention and feed-forward; "
            "Megatron-LM needs their order (--hybrid-layer-pattern), which a plan does not contain"
        )
    found: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "ffn_hidden_size": model.ffn_size or model.expert_size,
        "num_attention_heads": model.num_heads,
    }
    if model.latent is None:
        found["kv_channels"] = model.head_size
        if model.num_kv_heads != model.num_heads:
            found |= {"group_query_attention": True, "num_query_groups": model.num_kv_heads}
    else:
        found |= _latent(planned)
    found["seq_length"] = run.seq_len
    found["max_position_embeddings"] = max(run.seq_len, model.learned_positions)
    if model.learned_positions:
        found["position_embedding_type"] = "learned_absolute"
    else:
        found |= {"position_embedding_type": "rope", "rotary_base": round(rope_theta(planned))}
    found["normalization"] = "LayerNorm" if model.biases else "RMSNorm"
    found["norm_epsilon"] = norm_epsilon(planned)
    if norms_queries(planned):
        found["qk_layernorm"] = True
    if model.gated:
        found["swiglu"] = True
    elif planned.config.get("hidden_act") == "relu2":
        found["squared_relu"] = True
    if not model.biases:
        found["disable_bias_linear"] = True
    if not model.tied_embeddings:
        found["untie_embeddings_and_output_weights"] = True
    if model.window_layers:
        found["window_size"] = f"{model.window - 1},0"
        whole = model.num_layers - model.window_layers
        if whole:
            found["window_attn_skip_freq"] = model.num_layers // whole
    if model.predicted_ahead:
        found["mtp_num_layers"] = model.predicted_ahead
    found |= {"attention_dropout": 0.0, "hidden_dropout": 0.0}
    return found | _experts(planned)


def _latent(planned: PlannedRun) -> dict[str, Any]:
    latent = planned.run.model.latent
    assert latent is not None
    found: dict[str, Any] = {"multi_latent_attention": True}
    if latent.query_rank:
        found["q_lora_rank"] = latent.query_rank
    return found | {
        "kv_lora_rank": latent.key_value_rank,
        "qk_head_dim": latent.nope_size,
        "qk_pos_emb_head_dim": latent.rope_size,
        "v_head_dim": latent.value_size,
    }


def _experts(planned: PlannedRun) -> dict[str, Any]:
    model = planned.run.model
    if not model.num_experts:
        return {}
    found: dict[str, Any] = {
        "num_experts": model.num_experts,
        "moe_router_topk": model.top_k,
        "moe_ffn_hidden_size": model.expert_size,
        "moe_grouped_gemm": True,
        "moe_token_dispatcher_type": "alltoall",
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": float(planned.config.get("router_aux_loss_coef") or _BALANCE),
    }
    if model.num_shared_experts:
        found["moe_shared_expert_intermediate_size"] = model.num_shared_experts * model.expert_size
    if model.num_expert_layers < model.num_layers:
        found["moe_layer_freq"] = _expert_places(model)
    if model.expert_input:
        found["moe_latent_size"] = model.expert_input
    return found


def _expert_places(model: Transformer) -> str:
    """`([0]*3+[1]*58)`: 1 for layers with experts, an expression of Python."""
    dense, every = model.first_dense_layers, model.expert_every
    unit = ",".join(["0"] * (every - 1) + ["1"])
    counts = {"0": dense, unit: model.num_expert_layers}
    parts = [f"[{places}]*{count}" for places, count in counts.items() if count]
    rest = (model.num_layers - dense) % every
    return f"({'+'.join([*parts, *([f'[0]*{rest}'] if rest else [])])})"


def _parallelism(
    planned: PlannedRun, target: str
) -> tuple[dict[str, Any], tuple[Unexpressed, ...]]:
    run = planned.run
    _, gaps = schedule_gap(run, ("1f1b", "interleaved", "interleaved-overlap"), target)
    found: dict[str, Any] = {
        "tensor_model_parallel_size": run.degrees.tp,
        "pipeline_model_parallel_size": run.degrees.pp,
    }
    if run.degrees.pp > 1 and (run.pipeline_layout or not planned.is_even):
        found["pipeline_model_parallel_layout"] = _layout(planned)
    elif run.degrees.vpp > 1:
        found["num_virtual_stages_per_pipeline_rank"] = run.degrees.vpp
    if schedule_kind(run.schedule).for_experts:
        found["overlap_moe_expert_parallel_comm"] = True
    found["context_parallel_size"] = run.degrees.cp
    if run.degrees.cp > 1:
        found["cp_comm_type"] = "p2p"
    if run.model.num_experts:
        # Experts spread over ranks are whole on their rank; others are split like the rest.
        found["expert_model_parallel_size"] = run.degrees.ep
        found["expert_tensor_parallel_size"] = 1 if run.degrees.ep > 1 else run.degrees.tp
    if run.sequence_parallel and run.degrees.tp > 1:
        found["sequence_parallel"] = True
    if run.degrees.axis_order != AXIS_ORDERS[0]:
        found["use_tp_pp_dp_mapping"] = True
    if run.zero_stage >= 2:
        found |= {
            "use_megatron_fsdp": True,
            "data_parallel_sharding_strategy": {2: "optim_grads", 3: "optim_grads_params"}[
                run.zero_stage
            ],
            "use_distributed_optimizer": True,
            "ckpt_format": "fsdp_dtensor",
            "no_gradient_accumulation_fusion": True,
        }
    elif run.zero_stage == 1:
        found["use_distributed_optimizer"] = True
        if run.degrees.dp_replicate > 1:
            found["num_distributed_optimizer_instances"] = run.degrees.dp_replicate
    if run.degrees.dp > 1:
        found["overlap_grad_reduce"] = True
        if run.zero_stage:
            found["overlap_param_gather"] = True
    return found, gaps


def _layout(planned: PlannedRun) -> str:
    return pipeline_layout_text(
        [
            LayoutStage(
                layers=stage.num_layers,
                predicting=stage.predicting,
                has_embedding=stage.has_embedding,
                has_loss=stage.has_head,
            )
            for stage in planned.stages
        ]
    )


def _training(planned: PlannedRun, target: str) -> tuple[dict[str, Any], tuple[Unexpressed, ...]]:
    run = planned.run
    # Megatron-FSDP, which ZeRO 2 and 3 are, has other options for it.
    hybrid = ("dp_replicate",) if run.zero_stage == 1 else ()
    gaps = unexpressed_options(run, target, can=(*_CAN, *hybrid, "axis_order"))
    found: dict[str, Any] = {
        "micro_batch_size": run.micro_batch,
        "global_batch_size": run.global_batch,
    }
    found |= _precision(planned)
    kind, more = nearest(
        "recompute", run.recompute, _RECOMPUTE, f"{target} has no such kind of recomputation"
    )
    layers, mixed = uneven_recompute(planned, target)
    found |= _recompute(planned, kind, layers)
    if run.gradient_reduction == "bf16":
        found["grad_reduce_in_bf16"] = True
    if run.optimizer_offload:
        found |= {
            "optimizer_cpu_offload": True,
            "optimizer_offload_fraction": 1.0,
            "use_precision_aware_optimizer": True,
        }
    if run.activation_offload:
        layers = min(run.model.num_layers - 1, round(run.activation_offload * run.model.num_layers))
        found["cpu_offloading_num_layers"] = max(1, layers)
    return found, (*gaps, *more, *mixed)


def _precision(planned: PlannedRun) -> dict[str, Any]:
    run = planned.run
    found: dict[str, Any] = {}
    if run.precision == "fp16":
        return {"fp16": True}
    if run.precision != "fp32":
        found["bf16"] = True
    if run.precision == "fp8":
        # Delayed scaling refuses layers in bf16 (transformer_config.py).
        recipe = "tensorwise" if run.wide_layers else "delayed"
        found |= {"fp8_format": "hybrid", "fp8_recipe": recipe}
    elif run.precision == "mxfp8":
        found |= {"fp8_format": "e4m3", "fp8_recipe": "mxfp8"}
    elif run.precision == "nvfp4":
        found |= {"fp4_format": "e2m1", "fp4_recipe": "nvfp4"}
    if run.wide_layers:
        found |= {
            "first_last_layers_bf16": True,
            "num_layers_at_start_in_bf16": run.wide_layers,
            "num_layers_at_end_in_bf16": run.wide_layers,
        }
    return found


def _recompute(planned: PlannedRun, kind: str, layers: int) -> dict[str, Any]:
    if kind == "none":
        return {}
    if kind == "full":
        method = {"recompute_method": "block", "recompute_num_layers": layers}
        every = {"recompute_method": "uniform", "recompute_num_layers": 1}
        return {"recompute_granularity": "full", **(method if layers else every)}
    modules = ["layernorm"] if "norm" in kind else []
    model = planned.run.model
    if kind.endswith("mlp"):
        modules += ["mlp"] if model.num_dense_layers else []
        modules += ["moe"] if model.num_experts else []
    if kind.endswith("activation") and model.num_experts:
        modules.append("moe_act")
    if kind == "up-projection":
        modules.append("mla_up_proj")
    return {"recompute_granularity": "selective", "recompute_modules": modules or ["core_attn"]}
