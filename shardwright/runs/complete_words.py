"""Parse the words of published runs: recompute, precision, schedule and kind of memory peak."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TypeVar

from profiles.errors import InputError
from profiles.hardware.catalogue.device import Device
from shardwright.runs.run import PublishedRun
from simulator.schedules.schedule import pipeline_names, schedule_kind
from simulator.training_run.framework.framework import Framework
from simulator.values.recompute_kind import RECOMPUTE_KINDS

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DescribedRow:
    """The row, its device and framework; assumptions are added to `assumptions` as text."""

    run: PublishedRun
    device: Device
    stack: Framework
    assumptions: list[str]

    def assumed(self, value: T, words: str) -> T:
        """The value, after adding `words` to the assumptions."""
        self.assumptions.append(words)
        return value


_PRECISION_WORDS = {
    "bf16": "bf16 bfloat16 bf16-mixed bf16-true",
    "fp16": "fp16 float16 half fp16-mixed fp16-true",
    # TF32 means fp32 tensors with products on the TF32 units.
    "fp32": "fp32 float32 tf32 fp32-true",
    # Transformer Engine's recipes of one scale per tensor, by their names there.
    "fp8": "fp8 fp8-hybrid fp8-delayed fp8-current fp8-tensorwise fp8_cs fp8-cs fp8-ds fp8_full",
    # MaxText's and AQT's 8-bit integers.
    "int8": "int8",
    "mxfp8": "mxfp8 fp8-mx fp8_mx",
    "nvfp4": "nvfp4 mxfp4",
}
PRECISIONS = {word: name for name, words in _PRECISION_WORDS.items() for word in words.split()}
_FP4 = "float4_e2m1fn_x2"
# Words for recomputation in any framework, the first match wins; True: the value is assumed.
# MaxText keeps only the outputs of `qkv_proj` and `out_proj` (get_remat_policy, layers/models.py).
_RECOMPUTE_WORDS = (
    (re.compile(r"^no|^(0|0\.0|false|off)$"), "none", False),
    (re.compile(r"^minimal"), "minimal", False),
    (re.compile(r"except_mlp"), "mlp", True),
    (re.compile(r"qkv_proj|out_proj"), "full", True),
    (re.compile(r"save_"), "minimal", True),
)
_SELECTIVE_WORDS = re.compile(r"selective|core attention|core_attn")
# All of a layer is recomputed. In a column with only on and off, "on" is the kind that every
# framework had first: whole layers.
_FULL_WORDS = re.compile(
    r"full|re-?materialization|checkpoint|uniform|all layers|^(1|1\.0|true|yes|on)$"
)
# Frameworks whose "selective" is more than the attention core.
_SELECTIVE = {"alternate": "every second matmul", "attention": "the attention module"}
_LLAMA_8B = re.compile(r"llama-?3(\.1)?[\s_-]*8b", re.I)
_MODULE_LIST = re.compile(r"selective modules:(.*)$|selective \((.*)\)$")
_MODULE_WORDS = ("mlp", "moe", "norm", "shared_experts", "act", "core_attn", "mla_up_proj")
# Tools that report device memory: context, NCCL and everything that the allocator has reserved.
_DEVICE_PEAK = re.compile(
    r"\b(nvidia|rocm|hl|amd|npu)-smi\b|memory\.used|\bnvml\b|\bdcgm\b|\bdevice\b", re.I
)
_RESERVED_PEAK = re.compile(r"reserved|cached", re.I)
_ALLOCATED_PEAK = re.compile(r"allocated|tensors", re.I)


def recompute_of(row: DescribedRow) -> str:
    """The run's recomputation as a value of `TrainingRun.recompute`. The default is none, in
    MaxText full (MaxText configs/base.yml, remat_policy). Raises InputError for unknown words."""
    printed, stack, assumptions = row.run.recompute, row.stack, row.assumptions
    text = printed.strip().lower()
    if not text:
        full = stack.name == "maxtext"
        assumptions.append("recompute full (MaxText's default)" if full else "no recompute")
        return "full" if full else "none"
    if "offload" in text:
        assumptions.append(f"what {printed!r} offloads to the host is not modelled")
    modules = _modules(text)
    if modules:
        kind = _kind_of_modules(modules)
        return row.assumed(kind, f"recompute of {', '.join(modules)} taken as {kind!r}")
    for words, kind, assumed in _RECOMPUTE_WORDS:
        if words.search(text):
            if assumed:
                assumptions.append(f"recompute {printed!r} taken as {kind!r}")
            return kind
    if "selective" in text and stack.selective != "selective":
        own = stack.selective
        return row.assumed(own, f"selective as {_SELECTIVE.get(own, own)} ({stack.name}'s default)")
    if _SELECTIVE_WORDS.search(text):
        return "selective"
    if text in RECOMPUTE_KINDS:
        return stack.resolved_recompute(text)
    if _FULL_WORDS.search(text):
        return row.assumed("full", f"recompute {printed!r} taken as 'full'")
    known = ", ".join(RECOMPUTE_KINDS)
    raise InputError(f"the recompute {printed!r} is not known; known: {known}")


def _modules(text: str) -> list[str]:
    """Modules listed in a text: `selective modules: norm,moe_act`, `selective (norm + act)`."""
    found = _MODULE_LIST.match(text)
    if not found:
        return []
    listed = re.split(r"[,+]| and ", found[1] or found[2] or "")
    modules = [module.strip() for module in listed if module.strip()]
    known = all(any(word in module for word in _MODULE_WORDS) for module in modules)
    return modules if known or text.startswith("selective modules") else []


def _kind_of_modules(modules: list[str]) -> str:
    """The recompute kind for a list of Megatron-Core's --recompute-modules. A fused attention core
    keeps little; up projections together with other modules are not counted."""
    norm = any("norm" in module for module in modules)
    activation = any("act" in module for module in modules)
    if any(re.search("mlp|moe|shared_experts", each) for each in modules if "act" not in each):
        return "norm-mlp" if norm else "mlp"
    if norm:
        return "norm-activation" if activation else "norm"
    if activation:
        return "activation"
    return "up-projection" if "mla_up_proj" in modules else "selective"


def is_mlperf(run: PublishedRun) -> bool:
    """Whether the row is marked as a submission to MLPerf Training."""
    return "mlperf" in f"{run.id} {run.source}".lower()


def precision_of(row: DescribedRow) -> str:
    """The run's precision. Defaults: fp16 on V100 and in stacks of 2021 on A100. In submissions to
    MLPerf Training: fp8 on a device that has it (all of NVIDIA's and AMD's language models from
    v3.1 on, by their published configurations), but nvfp4 for Llama 3.1 8B on a device with FP4
    (training_results_v5.1, NVIDIA's configurations of B200 and GB300), and int8 on a TPU that has
    it (MaxText, configs/v5p/gpt3_175b: "shared config between Google's various MLPerf 4.0
    submissions"). Otherwise bf16.

    Megatron-LM trained in fp16 until bf16 came with A100 (arXiv 2104.04473, section 5; BLOOM's
    chronicles switch late). Raises InputError for an unknown word, and for a type that the device
    does not have.
    """
    text = re.sub(r"\s+", "-", row.run.precision.strip().lower())
    precision = _named_precision(row, text) if text else _usual_precision(row)
    row.device.peak(precision)
    return precision


def _named_precision(row: DescribedRow, text: str) -> str:
    device, printed = row.device, row.run.precision
    known = [word for word in re.split(r"[^a-z0-9_]", text) if word in PRECISIONS]
    if text not in PRECISIONS and known:
        row.assumptions.append(f"precision {printed!r} taken as {PRECISIONS[known[0]]}")
        text = known[0]
    if text not in PRECISIONS:
        raise InputError(
            f"the precision {printed!r} is not known; known: {', '.join(sorted(PRECISIONS))}"
        )
    precision = PRECISIONS[text]
    # Scaled blocks came with the FP4 units (NVIDIA Blackwell, AMD CDNA 4).
    if precision == "mxfp8" and _FP4 not in device.peak_flop_per_s:
        row.assumptions.append(f"mxfp8 at {device.name}'s fp8 rate: it scales no blocks itself")
    if precision == "fp32" and "tf32" in device.peak_flop_per_s:
        row.assumptions.append("fp32 products on the TF32 units")
    elif text == "tf32":
        raise InputError(f"device {device.name} has no TF32 units")
    elif precision == "fp32":
        row.assumptions.append(f"fp32 products at {device.name}'s rate for float32")
    return precision


def _usual_precision(row: DescribedRow) -> str:
    device, peaks = row.device, row.device.peak_flop_per_s
    if is_mlperf(row.run) and device.type == "gpu" and "float8_e4m3fn" in peaks:
        if _LLAMA_8B.match(row.run.model) and _FP4 in peaks:
            row.assumptions.append(
                "nvfp4, in which MLPerf's Llama 3.1 8B is trained where there is FP4"
            )
            return "nvfp4"
        row.assumptions.append(
            "fp8, in which MLPerf's language models are trained where there is fp8"
        )
        return "fp8"
    if is_mlperf(row.run) and "int8" in peaks:
        return row.assumed("int8", "int8, in which MaxText's submissions to MLPerf are trained")
    early = row.stack.name in ("megatron-2021", "megatron-deepspeed")
    old = device.name.startswith("v100") or (device.name.startswith("a100") and early)
    row.assumptions.append("fp16" if old else "bf16")
    return row.assumptions[-1]


# Layers of a chunk: the median of the published interleaved runs that print their chunks is
# 2 in five sources (NeMo AutoModel, Kwai, MindSpeed, MLPerf, Megatron-LM's README), 1 in two
# (Korthikanti et al., the zero-bubble paper) and 3.8 in Megatron-Bridge's recipes.
_LAYERS_PER_CHUNK = 2


def vpp_of(row: DescribedRow, pp: int, num_layers: int) -> int:
    """Model chunks per pipeline rank. Defaults: 2 for a V-shaped schedule. For an interleaved one:
    of the numbers that divide a rank's layers, the one with chunks nearest to two layers, in
    proportion (Megatron-LM splits evenly; embedding and head may make the split even: 126 layers on
    16 ranks). Otherwise 1. Runs without a schedule are assumed to interleave if their framework is
    Megatron-Core, whose documentation recommends it for large pipelines, or not named."""
    if pp == 1:
        return 1
    if row.run.vpp is not None:
        return row.run.vpp
    text, stack = row.run.schedule.strip().lower(), row.stack
    advised = text in ("", "none") and (
        stack.name.startswith(("megatron-core", "megatron-bridge"))
        or (stack.name.startswith("unknown") and not row.run.framework)
    )
    padded = num_layers % pp != 0 and (num_layers + 2) % pp == 0
    if "interleav" in text or (advised and (num_layers % pp == 0 or padded)):
        per_rank = (num_layers + 2 * padded) // pp
        counts = [n for n in range(2, per_rank + 1) if per_rank % n == 0]
        nearest = min(
            counts, key=lambda n: abs(math.log(per_rank / n / _LAYERS_PER_CHUNK)), default=1
        )
        chunks = stack.usual_chunks or nearest
        return row.assumed(chunks, f"{chunks} chunks per pipeline rank")
    named = _schedule_named(text)
    if named and schedule_kind(named).stages_per_rank > 1:
        return schedule_kind(named).stages_per_rank
    return row.assumed(1, "1 chunk per pipeline rank")


def schedule_of(row: DescribedRow, pp: int, vpp: int) -> str:
    """Our name of the run's schedule; `none` without a pipeline. InputError for unknown words."""
    if pp == 1:
        return "none"
    text = row.run.schedule.strip().lower()
    usual = "interleaved" if vpp > 1 else "1f1b"
    if text in ("", "none"):
        return row.assumed(usual, f"schedule {usual}")
    found = _schedule_named(text)
    if found in ("1f1b", "interleaved") or (not found and "interleav" in text):
        return usual
    if text == "zb":
        return "zbv" if vpp == 2 else "zb-h1"
    if found:
        return found
    known = ", ".join(pipeline_names())
    raise InputError(f"the schedule {row.run.schedule!r} is not known; known: {known}")


def _schedule_named(text: str) -> str:
    """The schedule of a name in the table, or ""."""
    word = text.replace("_", "-").replace(" ", "-")
    return next((n for n in pipeline_names() if word in (n, *schedule_kind(n).words)), "")


def memory_kind_of(text: str, assumptions: list[str]) -> str:
    """`allocated`, `reserved` or `device` (simulator/memory/footprint.py).

    "" if the text names none or two kinds: then it is the kind that the framework's report prints.
    A peak without a named tool is assumed to be the device's, which every tool prints; this
    assumption is added to `assumptions`.
    """
    if not text.strip():
        return ""
    if _DEVICE_PEAK.search(text):
        return "device"
    reserved, allocated = bool(_RESERVED_PEAK.search(text)), bool(_ALLOCATED_PEAK.search(text))
    if reserved != allocated:
        return "reserved" if reserved else "allocated"
    if reserved:
        return ""
    assumptions.append(f"peak memory {text!r} taken as what the device shows")
    return "device"
