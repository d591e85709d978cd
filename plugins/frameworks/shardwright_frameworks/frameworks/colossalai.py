"""ColossalAI's examples as a run: the options behind `colossalai run`.

Names: github.com/hpcaitech/ColossalAI, examples/language/llama/benchmark.py and
applications/Colossal-LLaMA/train.py (0.4).
"""

from __future__ import annotations

from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import Options, WordReaders

_DEFAULTS = "ColossalAI 0.4, applications/Colossal-LLaMA/train.py"
# The ZeRO stage of each plugin; `3d` has a separate option for it.
_STAGES = {
    "torch_ddp": 0, "ddp": 0, "zero1": 1, "low_level_zero": 1, "zero2": 2, "zero2_cpu": 2,
    "gemini": 3, "gemini_auto": 3, "gemini_cuda": 3, "gemini_cpu": 3, "fsdp": 3, "fsdp_cpu": 3,
}  # fmt: skip
_PLUGIN = "gemini"  # where no option names one
_HYBRID = ("3d", "3d_cpu", "hybrid")  # the last of ColossalMoE
_MICRO = ("mbs", "microbatch_size", "micro_batch_size")
_WORDS: WordReaders = {
    "mixed_precision": ("precision", {"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}.get),
    "pp_style": ("schedule", {"1f1b": "1f1b", "interleaved": "interleaved-1f1b", "zbv": "zbv"}.get),
    "pretrained": ("model.name", str),
    "model_path": ("model.name", str),
    "model_name": ("model.name", str),
}


def collect_colossalai(options: Options, collected: Collected) -> None:
    """Collects the options; a batch is that of one replica."""
    options.collect_counts(
        collected,
        {"tp": "tp", "pp": "pp", "tp_size": "tp", "pp_size": "pp", "ep_size": "ep",
         "sp_size": "cp", "zero": "zero_stage", "zero_stage": "zero_stage", "l": "seq_len",
         "max_length": "seq_len", "n_chunks": "vpp", "lora_rank": "model.lora_rank"},
    )  # fmt: skip
    options.collect_flags(
        collected,
        {"g": ("recompute", "full", "none"), "grad_checkpoint": ("recompute", "full", "none"),
         "use_grad_checkpoint": ("recompute", "full", "none"),
         "x": ("flash_attention", True, False), "xformers": ("flash_attention", True, False),
         "use_flash_attn": ("flash_attention", True, False)},
    )  # fmt: skip
    plugin = options.last("p", "plugin")
    word = options.value_of(plugin, collected) if plugin is not None else _PLUGIN
    if plugin is not None and word is not None:
        stage = _STAGES.get(word)
        if stage is not None and "zero_stage" not in collected.placed:
            collected.set("zero_stage", stage, plugin.place, plugin.name)
        if word.endswith("_cpu"):
            collected.set("optimizer_offload", True, plugin.place, plugin.name)
    if word not in _STAGES and word not in _HYBRID:
        collected.open_keys.add("zero_stage")
    options.collect_words(collected, _WORDS)
    _collect_batch(options, collected, word)
    stage = 0 if word in _HYBRID else _STAGES[_PLUGIN]
    collected.default(_DEFAULTS, tp=1, pp=1, cp=1, zero_stage=stage)


def _collect_batch(options: Options, collected: Collected, plugin: str | None) -> None:
    """Collect the batch: `-b` sequences per step and replica. A pipeline of the 3d plugin cuts them
    into micro-batches; others run them whole, and accumulate over `--accumulation_steps`."""
    batch = {"b": "micro_batch", "batch_size": "micro_batch"}
    pp = collected.count("pp")
    unknown = pp is None and "pp" in collected.open_keys
    if (plugin is not None and plugin not in _HYBRID) or (not unknown and pp in (None, 1)):
        options.collect_counts(collected, {**batch, "accumulation_steps": "gradient_accumulation"})
        return
    if plugin is None or unknown:
        collected.open_keys |= {"micro_batch", "gradient_accumulation"}
        return
    options.collect_counts(collected, dict.fromkeys(_MICRO, "micro_batch"))
    option, number = options.last(*batch), options.number(*batch)
    micro = collected.count("micro_batch")
    if option is not None and number and micro and number % micro == 0:
        collected.set("gradient_accumulation", number // micro, option.place, option.name)
