"""The words of published runs in ours: recompute, precision and schedule, and what was assumed."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from profiles.hardware.catalogue.catalog import get_device
from profiles.published.run import PublishedRun
from simulator.schedules.schedule import pipeline_names, schedule_kind
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.run.unsupported import UnsupportedRunError
from simulator.values.recompute_kind import RECOMPUTE_KINDS

PRECISIONS = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "bf16-mixed": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "fp16-mixed": "fp16",
    "fp32": "fp32",
    "float32": "fp32",
    # What torch calls TF32 is fp32 tensors, their products on the TF32 units.
    "tf32": "fp32",
    "fp32-true": "fp32",
    "bf16-true": "bf16",
    "fp16-true": "fp16",
    "fp8": "fp8",
    # MaxText's and AQT's 8-bit integers.
    "int8": "int8",
    # Transformer Engine's recipes of one scale per tensor, by their names there.
    "fp8-hybrid": "fp8",
    "fp8-delayed": "fp8",
    "fp8-current": "fp8",
    "fp8-tensorwise": "fp8",
    "fp8_cs": "fp8",
    "fp8-cs": "fp8",
    "fp8-ds": "fp8",
    "fp8_full": "fp8",
    "mxfp8": "mxfp8",
    "fp8-mx": "mxfp8",
    "fp8_mx": "mxfp8",
    "nvfp4": "nvfp4",
    "mxfp4": "nvfp4",
}
# The words that mean that everything in a layer is computed again.
_FULL = ("full", "rematerialization", "re-materialization", "checkpoint", "uniform", "all layers")
# What frameworks do whose "selective" is not the attention core alone.
_SELECTIVE = {"alternate": "every second matmul", "attention": "the attention module"}
# Columns that are a switch: on is what every framework had first, whole layers.
_SWITCHED_ON = ("1", "1.0", "true", "yes", "on")
_SWITCHED_OFF = ("0", "0.0", "false", "off")
# Parts of a layer whose activations a fused attention does not keep anyway, or that are small.
_LLAMA_8B = re.compile(r"llama-?3(\.1)?[\s_-]*8b", re.I)
_MODULE_LIST = re.compile(r"selective modules:(.*)$|selective \((.*)\)$")
_MODULE_WORDS = ("mlp", "moe", "norm", "shared_experts", "act", "core_attn", "mla_up_proj")


def recompute_of(run: PublishedRun, stack: str, said: list[str]) -> str:
    """The run's recompute as one of TrainingRun's words; silent: none, but full in MaxText, whose
    default it is (MaxText configs/base.yml, remat_policy). Raises UnsupportedRunError."""
    text = run.recompute.strip().lower()
    if not text and stack == "maxtext":
        said.append("recompute full (MaxText's default)")
        return "full"
    if not text:
        said.append("no recompute")
        return "none"
    if "offload" in text:
        said.append(f"what {run.recompute!r} offloads to the host is not modelled")
    modules = _modules(text)
    if modules:
        kind = _kind_of_modules(modules)
        said.append(f"recompute of {', '.join(modules)} taken as {kind!r}")
        return kind
    for start, kind in (("none", "none"), ("no", "none"), ("minimal", "minimal")):
        if text.startswith(start):
            return kind
    if text in _SWITCHED_OFF:
        return "none"
    if "except_mlp" in text:
        said.append(f"recompute {run.recompute!r} taken as 'mlp'")
        return "mlp"
    if "qkv_proj" in text or "out_proj" in text:
        # MaxText keeps the outputs of these matmuls alone (get_remat_policy, layers/models.py).
        said.append(f"recompute {run.recompute!r} taken as 'full'")
        return "full"
    if "save_" in text:
        said.append(f"recompute {run.recompute!r} taken as 'minimal'")
        return "minimal"
    framework = load_framework(stack)
    if "selective" in text and framework.selective != "selective":
        own = framework.selective
        said.append(f"selective as {_SELECTIVE.get(own, own)} ({stack}'s default)")
        return own
    if "selective" in text or "core attention" in text or "core_attn" in text:
        return "selective"
    if text in RECOMPUTE_KINDS:
        return framework.recompute_meant(text)
    if text in _SWITCHED_ON or any(word in text for word in _FULL):
        said.append(f"recompute {run.recompute!r} taken as 'full'")
        return "full"
    raise UnsupportedRunError(run.id, f"the recompute {run.recompute!r} is not known")


def _modules(text: str) -> list[str]:
    """Modules listed in a text: `selective modules: norm,moe_act`, `selective (norm + act)`."""
    found = _MODULE_LIST.match(text)
    if not found:
        return []
    listed = re.split(r"[,+]| and ", found[1] or found[2] or "")
    modules = [module.strip() for module in listed if module.strip()]
    known = all(any(word in module for word in _MODULE_WORDS) for module in modules)
    return modules if known or text.startswith("selective modules") else []


def _kind_of_modules(modules: Sequence[str]) -> str:
    """The kind that recomputes modules of Megatron-Core's --recompute-modules. All but the norms
    and the feed-forward keep little that a fused attention does not keep anyway."""
    norm = any("norm" in module for module in modules)
    activation = any("act" in module for module in modules)
    inner = any(
        word in module
        for module in modules
        for word in ("mlp", "moe", "shared_experts")
        if "act" not in module
    )
    if inner:
        return "norm-mlp" if norm else "mlp"
    if norm:
        return "norm-activation" if activation else "norm"
    return "activation" if activation else "selective"


def _fp32_products(run: PublishedRun, text: str, name: str) -> str:
    """Which units multiply fp32; raises UnsupportedRunError for TF32 where there is none."""
    device = get_device(name)
    if "tf32" in device.peak_flop_per_s:
        return "fp32 products on the TF32 units"
    if text == "tf32":
        raise UnsupportedRunError(run.id, f"device {device.name} has no TF32 units")
    return f"fp32 products at {device.name}'s rate for float32"


def _scales_blocks(name: str) -> bool:
    """Scaled blocks came with the FP4 units (NVIDIA Blackwell, AMD CDNA 4))."""
    return "float4_e2m1fn_x2" in get_device(name).peak_flop_per_s


def is_mlperf(run: PublishedRun) -> bool:
    """Whether the row says that it is a submission to MLPerf Training."""
    return "mlperf" in f"{run.id} {run.source}".lower()


def _is_fp8_gpu(name: str) -> bool:
    device = get_device(name)
    return device.type == "gpu" and "float8_e4m3fn" in device.peak_flop_per_s


def precision_of(run: PublishedRun, device: str, stack: str, said: list[str]) -> str:
    """The run's precision; silent: fp16 on V100 and in stacks of 2021 on A100, fp8 in a submission
    to MLPerf Training on a device that has it (all of NVIDIA's and AMD's language models from v3.1
    on, by their published configurations), but nvfp4 for Llama 3.1 8B, which came with v5.1, where
    there is FP4 (training_results_v5.1, NVIDIA's configurations of B200 and GB300), int8 on a TPU
    that has it (MaxText, configs/v5p/gpt3_175b: "shared config between Google's various MLPerf 4.0
    submissions"), else bf16.

    Megatron-LM trained in fp16 until bf16 came with A100 (arXiv 2104.04473, section 5; BLOOM's
    chronicles switch late). Raises UnsupportedRunError for an unknown word.
    """
    text = re.sub(r"\s+", "-", run.precision.strip().lower())
    if text:
        known = [word for word in re.split(r"[^a-z0-9_]", text) if word in PRECISIONS]
        if text not in PRECISIONS and known:
            said.append(f"precision {run.precision!r} taken as {PRECISIONS[known[0]]}")
            text = known[0]
        if text not in PRECISIONS:
            raise UnsupportedRunError(
                run.id,
                f"the precision {run.precision!r} is not known; known: "
                f"{', '.join(sorted(PRECISIONS))}",
            )
        if PRECISIONS[text] == "mxfp8" and not _scales_blocks(device):
            said.append(
                f"mxfp8 at {get_device(device).name}'s fp8 rate: it scales no blocks itself"
            )
        if PRECISIONS[text] == "fp32":
            said.append(_fp32_products(run, text, device))
        return PRECISIONS[text]
    if is_mlperf(run) and _is_fp8_gpu(device):
        if _LLAMA_8B.match(run.model) and "float4_e2m1fn_x2" in get_device(device).peak_flop_per_s:
            said.append("nvfp4, in which MLPerf's Llama 3.1 8B is trained where there is FP4")
            return "nvfp4"
        said.append("fp8, in which MLPerf's language models are trained where there is fp8")
        return "fp8"
    if is_mlperf(run) and "int8" in get_device(device).peak_flop_per_s:
        said.append("int8, in which MaxText's submissions to MLPerf are trained")
        return "int8"
    early = stack in ("megatron-2021", "megatron-deepspeed")
    old = device.startswith("v100") or (device.startswith("a100") and early)
    precision = "fp16" if old else "bf16"
    said.append(precision)
    return precision


# Layers of a chunk: the median of the published interleaved runs that print their chunks is
# 2 in five sources (NeMo AutoModel, Kwai, MindSpeed, MLPerf, Megatron-LM's README), 1 in two
# (Korthikanti et al., the zero-bubble paper) and 3.8 in Megatron-Bridge's recipes.
_LAYERS_PER_CHUNK = 2


def vpp_of(run: PublishedRun, pp: int, num_layers: int, stack: str, said: list[str]) -> int:
    """Model chunks per pipeline rank. Where the source gives none: 2 with a V-shaped schedule; with
    an interleaved one the number whose chunks are nearest to two layers, in proportion, of those
    that divide a rank's layers (Megatron-LM splits evenly; embedding and head may make the split
    even: 126 layers on 16 ranks); otherwise 1. A run of Megatron-Core that names no schedule either
    is taken to interleave, as its documentation advises for large pipelines, and so is one that
    names no framework."""
    if pp == 1:
        return 1
    if run.vpp is not None:
        return run.vpp
    text = run.schedule.strip().lower()
    advised = text in ("", "none") and (
        stack.startswith(("megatron-core", "megatron-bridge"))
        or (stack.startswith("unknown") and not run.framework)
    )
    padded = num_layers % pp != 0 and (num_layers + 2) % pp == 0
    if "interleav" in text or (advised and (num_layers % pp == 0 or padded)):
        per_rank = (num_layers + 2 * padded) // pp
        counts = [n for n in range(2, per_rank + 1) if per_rank % n == 0]
        nearest = min(
            counts, key=lambda n: abs(math.log(per_rank / n / _LAYERS_PER_CHUNK)), default=1
        )
        chunks = load_framework(stack).usual_chunks or nearest
        said.append(f"{chunks} chunks per pipeline rank")
        return chunks
    named = _schedule_named(text)
    if named and schedule_kind(named).stages_per_rank > 1:
        return schedule_kind(named).stages_per_rank
    said.append("1 chunk per pipeline rank")
    return 1


def schedule_of(run: PublishedRun, pp: int, vpp: int, said: list[str]) -> str:
    """The run's schedule in our words; `none` without a pipeline. Raises UnsupportedRunError."""
    if pp == 1:
        return "none"
    text = run.schedule.strip().lower()
    if text in ("", "none"):
        schedule = "interleaved" if vpp > 1 else "1f1b"
        said.append(f"schedule {schedule}")
        return schedule
    found = _schedule_named(text)
    if found in ("1f1b", "interleaved") or "interleav" in text:
        return "interleaved" if vpp > 1 else "1f1b"
    if text == "zb":
        return "zbv" if vpp == 2 else "zb-h1"
    if found:
        return found
    raise UnsupportedRunError(run.id, f"the schedule {run.schedule!r} is not known")


def _schedule_named(text: str) -> str:
    """The schedule that a word means, or ""."""
    word = text.replace("_", "-").replace(" ", "-")
    return next((n for n in pipeline_names() if word in (n, *schedule_kind(n).words)), "")
