"""The baseline: every device runs at 45 % of its dense peak, whatever the layout.

Korthikanti et al. 2022 (arXiv 2205.05198, appendix A) count a step of a GPT with B sequences of s
tokens, l layers of width h and a vocabulary of V at

    72 B l s h^2 (1 + s / (6 h) + V / (12 h l))

floating-point operations: 6 per parameter of a matmul and token, and 12 s h per layer and token
for the attention core (both triangles, as in the paper). That is written below for any attention
and feed-forward width; experts count with those that a token visits. Recomputed work is added: all
layers once more forward where recomputation is full, the attention core where it is selective.
"""

from __future__ import annotations

from collections.abc import Iterable

from profiles.errors import InputError
from shardwright.commands.tables.predict_runs import PredictedRun
from shardwright.runs.device_text import device_of
from shardwright.runs.run import PublishedRun
from simulator.training_run.run.training_run import UnsupportedRunError

# Issue 3: "everything runs at 45 % of peak, recompute counted".
UTILISATION = 0.45
_RATES = {
    "bf16": ("bfloat16",),
    "fp16": ("float16", "bfloat16"),
    "fp32": ("float32",),
    "fp8": ("float8_e4m3fn", "bfloat16"),
    "mxfp8": ("float8_e4m3fn", "bfloat16"),
    # Devices whose file has no 4-bit rate run at their 8-bit one.
    "nvfp4": ("float4_e2m1fn_x2", "float8_e4m3fn", "bfloat16"),
}
# Where the source is silent, the faster of the two half precisions.
_HALF = ("bfloat16", "float16")
_FULL = ("full", "remater", "re-mater", "checkpoint")
_SELECTIVE = ("selective", "minimal")


def predict_baseline(runs: Iterable[PublishedRun]) -> tuple[PredictedRun, ...]:
    """The baseline's step time of every run, in order; no memory, no interval.

    A run that lacks a figure of its model, its batch or its devices, or whose device the catalogue
    does not know, has the reason in `status`.
    """
    return tuple(_predicted(run) for run in runs)


def _predicted(run: PublishedRun) -> PredictedRun:
    try:
        work = step_flop(run)
        devices = _needed(run, "num_devices")
        rate = UTILISATION * peak_flop_per_s(run) * devices
    except InputError as error:
        return PredictedRun(id=run.id, status=f"unsupported: {error}")
    return PredictedRun(id=run.id, step_time_s=work / rate)


def step_flop(run: PublishedRun) -> float:
    """The floating-point operations of one optimizer step, recomputation included.

    A LoRA step has no gradients of the frozen weights: 4 per parameter and token instead of 6.
    Raises InputError, naming the column, where a figure is not stated.
    """
    layers, hidden = _needed(run, "num_layers"), _needed(run, "hidden_size")
    tokens = _needed(run, "global_batch") * _needed(run, "seq_len")
    head_width = run.head_dim * run.num_heads if run.head_dim and run.num_heads else hidden
    core = 4 * _needed(run, "seq_len") * head_width * layers
    blocks = 2 * (_attention_parameters(run, hidden, head_width) * layers + _inner(run, hidden))
    logits = 2 * hidden * (run.vocab_size or 0)
    passes = 2 if run.family == "lora" else 3
    again = recomputed_core = 0
    if any(word in run.recompute for word in _FULL):
        again, recomputed_core = 1, 1
    elif run.recompute.startswith(_SELECTIVE) and "modules" not in run.recompute:
        recomputed_core = 1
    per_token = (passes + again) * blocks + (3 + recomputed_core) * core + passes * logits
    return float(tokens * per_token)


def peak_flop_per_s(run: PublishedRun) -> float:
    """The dense peak of the run's device in its precision (16-bit where silent).

    Of a chip whose cores the row counts as devices it is a core's. Raises InputError for a device
    that the catalogue lacks and for a precision without a rate.
    """
    _stated(run.device, "device")
    try:
        device = device_of(run, [])
    except UnsupportedRunError as error:
        raise InputError(error.reason) from error
    if not run.precision:
        return max(device.peak(name).value for name in _HALF if name in device.peak_flop_per_s)
    names = _RATES.get(run.precision)
    if names is None:
        raise InputError(f"the precision {run.precision!r} is not one of {', '.join(_RATES)}")
    known = [name for name in names if name in device.peak_flop_per_s]
    return device.peak(known[0] if known else names[0]).value


def _attention_parameters(run: PublishedRun, hidden: int, head_width: int) -> int:
    """Query, key, value and output projections of a layer."""
    shared = head_width
    if run.num_kv_heads and run.num_heads:
        shared = head_width * run.num_kv_heads // run.num_heads
    return 2 * hidden * head_width + 2 * hidden * shared


def _inner(run: PublishedRun, hidden: int) -> int:
    """Feed-forward parameters that a token meets in all layers together."""
    layers = _needed(run, "num_layers")
    matrices = 3 if run.gated_mlp or (run.gated_mlp is None and run.family == "moe") else 2
    if not run.num_experts:
        return layers * matrices * hidden * (run.ffn_size or 4 * hidden)
    dense = min(run.first_dense_layers or 0, layers)
    expert = _needed(run, "moe_ffn_size") * matrices * hidden
    visited = _needed(run, "top_k") + (run.num_shared_experts or 0)
    routed = (layers - dense) * (visited * expert + hidden * run.num_experts)
    return routed + dense * matrices * hidden * (run.ffn_size or 4 * hidden)


def _needed(run: PublishedRun, column: str) -> int:
    value = getattr(run, column)
    if not isinstance(value, int):
        raise InputError(f"{column} is not stated")
    return value


def _stated(text: str, column: str) -> str:
    if not text:
        raise InputError(f"{column} is not stated")
    return text
