"""`report_unused`: keys about parallelism, precision, the model or the optimizer that no reader
used.

Readers mark the keys that they use (`Collected.set`, `Collected.use`); all others are reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.shell.text_marks import Place

_ABOUT = re.compile(
    r"parallel|(^|_)(tp|pp|cp|ep|dp|vp|vpp|etp)(_(size|degree|shard_size|replicate_size|engine))?$|"
    r"zero_(stage|quantized|hpz)|shard(ing)?_(strategy|degree|size)|_sharding$|^reshard|virtual_|"
    r"distributed_optimizer|precision|(^|_)dtype$|^(bf16|fp16|fp8|fp4|tf32|bfloat16)(_\w+)?$|"
    r"quantiz|^load_in_[48]bit$|^optim(izer)?(_(type|name))?$|offload|muon|^(use_)?(\w+_)?fsdp2?(_version)?$|recompute_(granularity|layers|num_layers|modules)|"
    r"(^|_)num_\w*(layers|heads|experts|query_groups)$|^n_(layers?|heads?|kv_heads|embd)$|"
    r"hidden_(size|dim)$|ffn_|intermediate_size$|(^|_)head_dim$|vocab_size$|sliding_window|"
    r"^window_(size|attn)|attention_(output_)?gate$|capacity_factor$|^moe_(top_?k|world_size)$|"
    r"^master_weight|_learners_per_node$|^pack_length$|mini_batches$|"
    r"^d_model$|lora_(r|rank|dim)$|modules_to_save$|(^|_)shared_experts?|latent|experts_per_tok|"
    r"moe_layer_freq|first_k_dense|^hybrid_\w+|^(is_)?mamba_|^spec$|^rampup_batch|pipeline_stage$|"
    r"^(use|enable)_liger_kernel$|fused_linear_cross_entropy$|^cut_cross_entropy$|"
    r"^use_(galore|apollo|badam|adam_mini|lisa)$|^(semi_sync_method|gptq|quant_cfg)$|"
    r"((^|_)(global|micro|train(ing)?|local|device|mini)_|^)batch_?size(_per_\w+)?$|accumulation_steps$|"
    r"seq(uence)?_len(gth)?$|(gradient|activation)_checkpointing$|checkpoint_activations$|attn_impl(ementation)?$|"
    r"attention_backend$|^mtp$|^qat$|^te_fp8_format$|^(un)?fr(ee|o)zen?_|diloco_(sync|parallel)|(^|_)trainable$|^quantizer$|^vision_tower$|^q_lora$|^optimizer_in_bwd$|"
    r"^lisa_n_layers$|^max_packed_tokens$|^batching_strategy$"
)
# Sections of other programs and models, of data and of output.
_ELSEWHERE = re.compile(
    r"tokenizer|dataset|validation|eval|^data$|(?<!actor_)rollout|critic|reward|^ref$|wandb|logging|export|"
    r"vision|checkpoint$|^actor_infer$|generation|comment|profil"
)
# Of states and gradients, which are in fp32 unless another type is given.
_STATE_TYPES = re.compile(r"^(main_grads|main_params|exp_avg|exp_avg_sq)_dtype$")
# Of checkpoints, of messages between stages, and of Muon's steps.
_OTHER_NAMES = re.compile(
    r"^(ckpt|dist_ckpt|save|load)_|^pipeline_dtype$|^muon_|^sglang_|^fp8_(interval$|margin$|amax_)|"
    r"(^|_)(eval|generation|log_?prob|infer|rollout|val|vit|critic)_|^ref_|"
    r"^pad_to_"
)
# Keys that switch their section on.
_SWITCHES = ("enable", "enabled")
_FP32 = ("fp32", "float32", "torch.float32")
# Values that switch nothing on.
_NEUTRAL = ("", "none", "null", "no", "false", "auto", "0", "-1", "[]", "false,")
# Keys of adapters. Without a reader their rank is unknown.
_ADAPTERS = re.compile(
    r"(^|\.)(lora(\.(dim|rank|r|enabled)|_(adapter_)?(path|r|rank|dim|enabled?))|"
    r"(use|enable)_(\w+_)?(lora|peft|dora)|peft_(type|scheme|method)|adapters?)$",
    re.I,
)
Keys = Iterable[tuple[tuple[str, ...], Any, Place]]


def report_unused(keys: Keys, collected: Collected) -> None:
    """Report the unused keys with their places."""
    for path, value, place in keys:
        name = path[-1].lower().lstrip("-").replace("-", "_") if path else ""
        if len(path) == 1 and path[0].isupper():
            continue  # a constant of a Python file
        if (
            _ADAPTERS.search(".".join(path))
            and str(value).strip().lower() not in _NEUTRAL
            and not collected.is_reported(".".join(path), place)
            and "model.lora_rank" not in {*collected.placed, *collected.open_keys}
        ):
            why = "adapters, whose rank is not read"
            collected.leave_open("model.lora_rank", ".".join(path), why, place)
        about = path[-2] if name in (*_SWITCHES, "_component_") and len(path) > 1 else name
        if not _ABOUT.search(about) or _OTHER_NAMES.search(about):
            continue
        if any(_ELSEWHERE.search(part) for part in path[:-1]):
            continue
        if _STATE_TYPES.match(name) and str(value) in _FP32:
            continue
        text = str(value).strip().lower()
        if text in _NEUTRAL and not name.endswith("trainable"):
            continue
        if text == "true" and name.endswith("trainable"):
            continue  # as all others
        if collected.is_reported(".".join(path), place):
            continue
        collected.report_unused(".".join(path), place, "no value was taken from it")
