"""`case_run`: a published training run (a case) as a row for the reader of published runs.

General rules fill missing values, and each assumption is listed as text:

- architecture: the case's figures, otherwise those of the well-known model of its name
  (profiles/data/published/known_models.toml), otherwise of the known model with the nearest number
  of parameters, with the number of layers scaled to the parameters;
- tokens per step: 4 million for at least 30 billion parameters or a trillion tokens, 2 million
  below (LLaMA, arXiv 2302.13971, table 2, and GPT-3, arXiv 2005.14165, table 2.1), 16 million for
  at least 30 billion parameters and ten trillion tokens (Llama 3, arXiv 2407.21783, section 3.4.1);
- devices: the power of two that finishes within 30 to 60 days at 40 % of the peak, as most
  published runs, with at least 2048 tokens of a step per device (as in LLaMA, arXiv 2302.13971);
  device-hours hardly depend on it;
- a model that is not a chain of equal layers (T5): a dense model with its active parameters;
- framework: the organization's, if known (_LABS); for 100 billion parameters on 1,000 or more
  devices since 2023, Megatron-Core; otherwise only the generation is known.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from evidence.published_case import BENCHMARK, PublishedCase
from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.catalog import node_design
from profiles.model.figures.transformer import Transformer
from shardwright.runs.device_text import device_of
from shardwright.runs.known_models import KnownModel, fill_from_recipe, known_model, known_models
from shardwright.runs.network_text import network_of
from shardwright.runs.run import PublishedRun
from simulator.training_run.run.training_run import UnsupportedRunError

_MOST_TOKENS, _LARGEST_BATCH = 1e13, 2**24
_WIDTHS = ("hidden_size", "ffn_size", "num_heads", "num_kv_heads", "vocab_size")
_LARGE, _MANY_TOKENS, _LARGE_BATCH, _SMALL_BATCH = 30e9, 1e12, 2**22, 2**21
# Printed batches are rounded: a power of two within this share is the true batch.
_ROUNDED = 0.06
_USUAL_SEQ_LEN = 2048
_MOST_DAYS, _USUAL_MFU = 60.0, 0.4
_FEWEST_DEVICES, _MOST_DEVICES, _TOKENS_PER_DEVICE = 8, 16384, 2048
# Largest ratio of parameters at which a known model replaces an unknown one.
_NEAR = 1.5
# Weights, gradients and Adam's states, 2 + 4 + 12 bytes a parameter (profiles/data/frameworks/
# megatron-core.toml, [memory]), and their assumed share of the memory. Only the start of a search.
_STATE_BYTES, _ROOM, _MOST_TENSOR_PARALLEL = 18.0, 0.6, 8
_TUNED_PARAMETERS, _TUNED_DEVICES = 100e9, 1000
# With a smaller share of active parameters than this, a model has experts.
_DENSE = 0.8
# Devices often used with frameworks of before 2023; TPUs have their own frameworks.
_EARLY = ("v100", "a100", "tpu")
# Frameworks of organizations: GPT-NeoX, a Megatron-DeepSpeed (arXiv 2204.06745, section
# 2.2); BigScience (arXiv 2211.05100, section 3.4.3); llm-foundry
# (databricks.com/blog/mpt-7b); OLMo on FSDP (arXiv 2402.00838, section 3.1); Megatron-LM (arXiv
# 2402.16819, section 2.3); nanotron (arXiv 2502.02737, section 4.1). DeepSeek's is its own; its
# dispatch, once to each node, is DeepEP's (arXiv 2412.19437, section 3.2.2), as in Megatron-Core of
# 2025.
_LABS = (
    ("eleuther", "megatron-deepspeed"),
    ("bigscience", "megatron-deepspeed"),
    ("mosaic", "llm-foundry"),
    (r"\bai2\b|allen institute", "FSDP"),
    ("nvidia", "Megatron-LM"),
    (r"hugging ?face", "nanotron"),
    ("deepseek", "megatron-core-2025"),
)
_CLOUD_NETWORKS = (("p4d", "efa-v1"), ("p5", "efa-v2"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRun:
    """A case as a row of a table of runs, its tokens, and its model's parameters and layers."""

    run: PublishedRun
    tokens: float
    parameters: float
    layers: int


def case_run(case: PublishedCase, assumed: list[str]) -> CaseRun:
    """The case as a row, and its tokens; appends assumptions to `assumed`. Raises
    UnsupportedRunError if tokens, device or model size are unknown."""
    assumed += list(case.faults)
    row = case.run
    known = known_model(row.model)
    tokens = _tokens(case, known, assumed)
    if known is not None and known.unsupported:
        case, known = _dense_substitute(case, known, assumed), None
        row = case.run
    figures = known.figures if known is not None else None
    model = row.model
    if figures is None and not (row.num_layers and row.hidden_size):
        near = _nearest(case)
        if near is None:
            raise UnsupportedRunError(
                row.id, "neither the figures of its model nor their number of parameters is given"
            )
        figures, model = near.figures, near.name
        assumed.append(f"figures of {near.name}, the nearest known model ({near.source})")
    seq_len = row.seq_len or (known.seq_len if known else 0)
    if not seq_len:
        seq_len = _USUAL_SEQ_LEN
        assumed.append(f"sequences of {seq_len} tokens")
    parameters = case.parameters or (figures.parameters if figures else 0.0)
    batch = _batch_tokens(case, known, parameters, assumed)
    run = replace(
        row,
        model=model,
        family="moe" if (figures.num_experts if figures else case.experts) else "dense",
        num_layers=_layers(case, figures, parameters, assumed),
        seq_len=seq_len,
        global_batch=_sequences(batch, seq_len),
        inter_node_link=_network(row, assumed),
        zero_stage=_zero_stage(case.zero),
        framework=_framework(case, assumed),
        gated_mlp=None if figures is None else figures.gated,
    )
    if figures is not None and (figures.num_experts or figures.latent is not None):
        # Tables mix widths of experts and of dense layers, so the known model's widths are used.
        run = replace(run, gated_mlp=None, **_none(*_WIDTHS))
    if row.num_devices is None:
        active = case.active_parameters or parameters
        run = _with_devices(run, active, tokens, assumed)
    if not case.batch_tokens and not (known and known.global_batch):
        run = _even_batch(run, assumed)
    if known is not None:
        # A recipe for this model, device and size also fills missing values.
        filled = replace(run, global_batch=None)
        filled = fill_from_recipe(
            filled, model=known.name, device=_device(row), assumptions=assumed
        )
        run = replace(filled, global_batch=filled.global_batch or run.global_batch)
    layers = run.num_layers or (figures.num_layers if figures is not None else 1)
    return CaseRun(run=run, tokens=tokens, parameters=parameters, layers=layers)


def _tokens(case: PublishedCase, known: KnownModel | None, assumed: list[str]) -> float:
    """Tokens of the whole run. For a benchmark of steps: of its model's run, otherwise of one step.
    Raises UnsupportedRunError if a run has none."""
    if case.kind == BENCHMARK:
        assumed.append("a benchmark of steps: duration of a run at its rate, without lost time")
    if case.tokens:
        return case.tokens
    if known is not None and known.tokens:
        assumed.append(f"{known.tokens / 1e12:.4g} trillion tokens ({known.name}, {known.source})")
        return known.tokens
    if case.kind == BENCHMARK and case.batch_tokens:
        assumed.append("one step, since no number of tokens is given")
        return case.batch_tokens
    raise UnsupportedRunError(case.run.id, "no number of tokens is given")


def _dense_substitute(case: PublishedCase, known: KnownModel, assumed: list[str]) -> PublishedCase:
    """The case with a dense model of its active parameters, and the known model's batch and
    sequence length. Raises UnsupportedRunError if the active parameters are unknown."""
    active = known.visited * (case.parameters or case.active_parameters or 0.0)
    if not active:
        raise UnsupportedRunError(case.run.id, f"{known.name}: {known.unsupported}")
    assumed.append(f"{known.name}: {known.unsupported}")
    batch = case.batch_tokens or known.global_batch * known.seq_len
    dense = _dense_of(case, active, assumed)
    run = replace(dense.run, seq_len=case.run.seq_len or known.seq_len or None)
    return replace(dense, run=run, batch_tokens=float(batch) or None)


def by_parameters(case: PublishedCase, assumed: list[str]) -> PublishedCase | None:
    """The case with a dense model known only by its active parameters; None if they are unknown,
    or if the case has no other model figures to discard."""
    active = case.active_parameters or case.parameters
    if not active or not (case.run.num_layers or case.run.hidden_size or case.experts):
        return None
    return _dense_of(case, active, assumed)


def _dense_of(case: PublishedCase, parameters: float, assumed: list[str]) -> PublishedCase:
    """The case with a dense model known only by its number of parameters."""
    assumed.append(f"replaced by a dense model of {parameters / 1e9:.4g} billion parameters")
    figures = _none(*_WIDTHS, "num_layers", "tp", "pp", "cp", "ep")
    run = replace(case.run, model="", **figures)
    return replace(case, run=run, parameters=parameters, active_parameters=parameters, experts=None)


def _none(*columns: str) -> dict[str, Any]:
    return dict.fromkeys(columns)


def _even_batch(run: PublishedRun, assumed: list[str]) -> PublishedRun:
    """The run with its assumed batch rounded to the same number of sequences per device."""
    devices, batch = run.num_devices or 1, run.global_batch or 1
    if devices > batch or batch % devices == 0 or devices & (devices - 1) == 0:
        return run
    even = devices * round(batch / devices)
    assumed.append(f"{even} sequences per step, the same number for each of {devices} devices")
    return replace(run, global_batch=even)


def _layers(
    case: PublishedCase, figures: Transformer | None, parameters: float, assumed: list[str]
) -> int | None:
    if case.run.num_layers or figures is None:
        return case.run.num_layers
    if not parameters or case.experts or figures.num_experts:
        return figures.num_layers
    layers = max(1, round(figures.num_layers * parameters / figures.parameters))
    if layers != figures.num_layers:
        assumed.append(f"{layers} layers, for {parameters / 1e9:.4g} billion parameters")
    return layers


def _nearest(case: PublishedCase) -> KnownModel | None:
    """The known model with the nearest total and active parameters; for sparse models within a
    factor of _NEAR, otherwise None."""
    if not case.parameters:
        return None
    total, active = case.parameters, case.active_parameters or case.parameters
    dense = active == total
    candidates: list[tuple[float, int, KnownModel]] = []
    for place, model in enumerate(known_models()):
        figures = model.figures
        if figures is None or figures.state is not None or figures.window_layers:
            continue
        if dense and figures.num_experts:
            continue
        off = abs(math.log(figures.parameters / total))
        off = max(off, abs(math.log(active_parameters(figures) / active)))
        candidates.append((off, place, model))
    off, _, nearest = min(candidates, key=lambda each: each[:2])
    # For a dense model the number of layers is adjusted to the parameters (`_layers`).
    return nearest if off <= math.log(_NEAR) or dense else None


def active_parameters(model: Transformer) -> float:
    """Parameters used per token: all except unselected experts."""
    idle = (model.num_experts - model.top_k) * model.expert_parameters * model.num_expert_layers
    return float(model.parameters - max(0, idle))


def _batch_tokens(
    case: PublishedCase, known: KnownModel | None, parameters: float, assumed: list[str]
) -> float:
    if case.batch_tokens:
        return case.batch_tokens
    if known is not None and known.global_batch:
        tokens = known.global_batch * known.seq_len
        assumed.append(f"{tokens / 1e6:.3g} million tokens per step ({known.name}, {known.source})")
        return float(tokens)
    trained = case.tokens or 0.0
    large = parameters >= _LARGE or trained >= _MANY_TOKENS
    tokens = _LARGE_BATCH if large else _SMALL_BATCH
    if parameters >= _LARGE and trained >= _MOST_TOKENS:
        tokens = _LARGEST_BATCH
    assumed.append(f"{tokens / 2**20:g} x 2^20 tokens per step")
    return float(tokens)


def _sequences(batch_tokens: float, seq_len: int) -> int:
    """Sequences per step from a rounded number of tokens: the power of two within _ROUNDED,
    otherwise a multiple of 1/32 of the next lower power."""
    exact = max(1.0, batch_tokens / seq_len)
    power = 2 ** round(math.log2(exact))
    if abs(power / exact - 1) <= _ROUNDED:
        return int(power)
    part = max(1, 2 ** int(math.log2(exact)) // 32)
    return int(part * max(1, round(exact / part)))


def _zero_stage(text: str) -> int | None:
    """ZeRO stage of a text: `1`, `FSDP shards optimizer+grads, no reshard after forward` (2), or
    `FSDP` (3)."""
    number = re.match(r"^\s*(?:zero[\s-]*)?([0-3])\b", text, re.IGNORECASE)
    if number:
        return int(number.group(1))
    if re.search(r"optimizer\s*(?:\+|and)\s*grad", text, re.IGNORECASE):
        return 2
    return 3 if re.search(r"\bFSDP\b", text) else None


def _framework(case: PublishedCase, assumed: list[str]) -> str:
    """The framework: FSDP if the case names no other parallelism, the organization's framework, or
    Megatron-Core for the largest runs of 2023 and later; otherwise unknown."""
    no_degrees = case.run.tp is None and case.run.pp is None
    if no_degrees and "megatron" not in case.zero.lower() and re.search(r"\bFSDP\b", case.zero):
        return "FSDP"
    device = _device(case.run)
    for lab, framework in _LABS:
        if re.search(lab, case.org, re.IGNORECASE) and not device.startswith("tpu"):
            assumed.append(f"framework {framework}, of {case.org}")
            return framework
    large = (case.parameters or 0.0) >= _TUNED_PARAMETERS
    active = case.active_parameters or case.parameters or 0.0
    sparse = bool(case.experts) or active < _DENSE * (case.parameters or 0.0)
    recent = not device.startswith(_EARLY) or _is_recent(case.run.source)
    recent = recent or (sparse and not device.startswith("tpu"))
    if large and recent and (case.run.num_devices or _TUNED_DEVICES) >= _TUNED_DEVICES:
        assumed.append("framework Megatron-Core, for the scale")
        return "Megatron-Core"
    # Frameworks for GPUs have supported experts since 2023.
    return "unknown-2023" if sparse and recent and device.startswith(_EARLY) else ""


def _is_recent(source: str) -> bool:
    """Whether all papers named in a source are from 2023 or later."""
    years = [int(year) for year in re.findall(r"(?<!\d)(\d{2})[01]\d\.\d{4,5}(?!\d)", source)]
    return bool(years) and min(years) >= 23


def _network(run: PublishedRun, assumed: list[str]) -> str:
    text = run.inter_node_link
    if not text:
        return ""
    for name, link in _CLOUD_NETWORKS:
        if re.search(rf"\b{name}\b", text, re.IGNORECASE):
            assumed.append(f"network {link} for {text!r}")
            return link
    try:
        network_of(text, _device(run), 8)
    except ShardwrightError:
        assumed.append(f"the usual network for {text!r}")
        return ""
    return text


def _device(run: PublishedRun) -> str:
    return device_of(run, []).name


def _with_devices(
    run: PublishedRun, active: float, tokens: float, assumed: list[str]
) -> PublishedRun:
    device = device_of(run, [])
    rates = device.peak_flop_per_s
    peak = (rates.get("bfloat16") or rates.get("float16") or next(iter(rates.values()))).value
    needed = 6 * active * tokens / (_USUAL_MFU * peak) / (_MOST_DAYS * 86400)
    batch_tokens = (run.global_batch or 1) * (run.seq_len or 1)
    most = max(_FEWEST_DEVICES, min(_MOST_DEVICES, batch_tokens // _TOKENS_PER_DEVICE))
    count = 2 ** math.ceil(math.log2(max(needed, _FEWEST_DEVICES)))
    count = min(count, 2 ** int(math.log2(most)))
    design = node_design(device.name)
    assumed.append(f"{count} devices, since the source gives no number (nodes of {design.devices})")
    return replace(run, num_devices=count)


def initial_layout(case: CaseRun) -> PublishedRun | None:
    """The row with an initial layout, for a model larger than a device: tensor parallelism inside
    a node, the fewest stages that fit, and as many replicas as devices and batch allow. None if
    the row has a layout already, or none fits on its devices."""
    run = case.run
    if run.tp or run.pp or not run.num_devices or not run.global_batch:
        return None
    device = device_of(run, [])
    tp = min(_MOST_TENSOR_PARALLEL, node_design(device.name).devices, run.num_devices)
    least = _STATE_BYTES * case.parameters / (_ROOM * tp * device.usable_bytes)
    stages = [pp for pp in range(1, case.layers + 1) if case.layers % pp == 0 and pp >= least]
    if not stages or tp * stages[0] > run.num_devices:
        return None
    most = run.num_devices // (tp * stages[0])
    dp = max(n for n in range(1, most + 1) if run.global_batch % n == 0)
    return replace(run, tp=tp, pp=stages[0], dp=dp, num_devices=tp * stages[0] * dp, micro_batch=1)
