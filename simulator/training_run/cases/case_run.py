"""`case_run`: a whole published run as rows that the reader of published runs takes.

What a case does not say is answered by general rules, and each such answer is said in words:

- the architecture: the case's figures, else those of a well-known model of its name
  (profiles/data/published/known_models.toml), else of the known model that is nearest in
  parameters, with as many layers as the parameters need;
- tokens per step: 4 million from 30 billion parameters or a trillion tokens on, 2 million below
  (LLaMA, arXiv 2302.13971, table 2, and GPT-3, arXiv 2005.14165, table 2.1), 16 million from 30
  billion parameters and ten trillion tokens on (Llama 3, arXiv 2407.21783, section 3.4.1);
- devices: the power of two that trains it in the 30 to 60 days that most published runs took at
  40 % of the peak, with at least 2048 tokens of a step for each (LLaMA, arXiv 2302.13971, has as
  many); device-hours hardly depend on it;
- a model that is no chain of equal layers (T5): a dense one of what a token visits;
- framework: that of the organisation where it is known (_LABS); who trains 100 billion parameters
  on 1,000 devices or more since 2023 has a stack as tuned as Megatron-Core; of others without a
  name only the generation is known.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any

from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.catalog import node_design
from profiles.model.figures.transformer import Transformer
from profiles.published.case import BENCHMARK, PublishedCase
from profiles.published.known_models import KnownModel, known_model, known_models
from profiles.published.recipes import fill_from_recipe
from profiles.published.run import PublishedRun
from simulator.training_run.reading.device_text import device_of
from simulator.training_run.reading.network_text import network_of
from simulator.training_run.run.unsupported import UnsupportedRunError

_MOST_TOKENS, _LARGEST_BATCH = 1e13, 2**24
_WIDTHS = ("hidden_size", "ffn_size", "num_heads", "num_kv_heads", "vocab_size")
_LARGE, _MANY_TOKENS, _LARGE_BATCH, _SMALL_BATCH = 30e9, 1e12, 2**22, 2**21
# Printed batches are rounded: a power of two that is as near as this is meant.
_ROUNDED = 0.06
_USUAL_SEQ_LEN = 2048
_MOST_DAYS, _USUAL_MFU = 60.0, 0.4
_FEWEST_DEVICES, _MOST_DEVICES, _TOKENS_PER_DEVICE = 8, 16384, 2048
# A known model stands in for another whose parameters are within this factor of its own.
_NEAR = 1.5
# Weights, gradients and Adam's states, 2 + 4 + 12 bytes a parameter (profiles/data/frameworks/
# megatron-core.toml, [memory]), and the part of the memory that is theirs, which is assumed, and
# only a start for the search.
_STATE_BYTES, _ROOM, _MOST_TENSOR_PARALLEL = 18.0, 0.6, 8
_TUNED_PARAMETERS, _TUNED_DEVICES = 100e9, 1000
# Where a token visits a smaller share of the parameters than this the others are experts.
_DENSE = 0.8
# Of these devices many trained with frameworks of before 2023; TPUs have their own.
_EARLY = ("v100", "a100", "tpu")
# What organisations train with: GPT-NeoX, a Megatron-DeepSpeed (arXiv 2204.06745, section
# 2.2); BigScience (arXiv 2211.05100, section 3.4.3); llm-foundry
# (databricks.com/blog/mpt-7b); OLMo on FSDP (arXiv 2402.00838, section 3.1); Megatron-LM (arXiv
# 2402.16819, section 2.3); nanotron (arXiv 2502.02737, section 4.1).
_LABS = (
    ("eleuther", "megatron-deepspeed"),
    ("bigscience", "megatron-deepspeed"),
    ("mosaic", "llm-foundry"),
    (r"\bai2\b|allen institute", "FSDP"),
    ("nvidia", "Megatron-LM"),
    (r"hugging ?face", "nanotron"),
)
_CLOUD_NETWORKS = (("p4d", "efa-v1"), ("p5", "efa-v2"))


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRun:
    """A case as a row of a table of runs; tokens of the run; parameters and layers of its model."""

    run: PublishedRun
    tokens: float
    parameters: float
    layers: int


def case_run(case: PublishedCase, said: list[str]) -> CaseRun:
    """The case as a row, and its tokens; what was assumed is added to `said`. Raises
    UnsupportedRunError where no tokens, no device or no size of the model is known."""
    said += list(case.faults)
    row = case.run
    known = known_model(row.model)
    tokens = _tokens(case, known, said)
    if known is not None and known.unsupported:
        case, known = _stand_in(case, known, said), None
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
        said.append(f"figures of {near.name}, the nearest known model ({near.source})")
    seq_len = row.seq_len or (known.seq_len if known else 0)
    if not seq_len:
        seq_len = _USUAL_SEQ_LEN
        said.append(f"sequences of {seq_len} tokens")
    parameters = case.parameters or (figures.parameters if figures else 0.0)
    batch = _batch_tokens(case, known, parameters, said)
    run = replace(
        row,
        model=model,
        family="moe" if (figures.num_experts if figures else case.experts) else "dense",
        num_layers=_layers(case, figures, parameters, said),
        seq_len=seq_len,
        global_batch=_sequences(batch, seq_len),
        inter_node_link=_network(row, said),
        zero_stage=_zero_stage(case.zero),
        framework=_framework(case, said),
        gated_mlp=None if figures is None else figures.gated,
    )
    if figures is not None and (figures.num_experts or figures.latent is not None):
        # Tables print the width of an expert and of a dense layer in one cell: a known model's own.
        run = replace(run, gated_mlp=None, **_none(*_WIDTHS))
    if row.num_devices is None:
        active = case.active_parameters or parameters
        run = _with_devices(run, active, tokens, said)
    if not case.batch_tokens and not (known and known.global_batch):
        run = _even_batch(run, said)
    if known is not None:
        # A recipe for this model, device and size also tells what the case does not.
        filled = replace(run, global_batch=None)
        filled = fill_from_recipe(filled, model=known.name, device=_device(row), said=said)
        run = replace(filled, global_batch=filled.global_batch or run.global_batch)
    layers = run.num_layers or (figures.num_layers if figures is not None else 1)
    return CaseRun(run=run, tokens=tokens, parameters=parameters, layers=layers)


def _tokens(case: PublishedCase, known: KnownModel | None, said: list[str]) -> float:
    """Of the whole run; of a benchmark of steps those of its model, or of one step where nothing
    says how many. Raises UnsupportedRunError where a run has none."""
    if case.kind == BENCHMARK:
        said.append("a benchmark of steps: what a run would take at its rate, nothing lost")
    if case.tokens:
        return case.tokens
    if known is not None and known.tokens:
        said.append(f"{known.tokens / 1e12:.4g} trillion tokens ({known.name}, {known.source})")
        return known.tokens
    if case.kind == BENCHMARK and case.batch_tokens:
        said.append("one step, since no number of tokens is given")
        return case.batch_tokens
    raise UnsupportedRunError(case.run.id, "no number of tokens is given")


def _stand_in(case: PublishedCase, known: KnownModel, said: list[str]) -> PublishedCase:
    """The case as one of a dense model of what a token visits, with the known model's batch and
    length. Raises UnsupportedRunError where those parameters are not known."""
    visited = known.visited * (case.parameters or case.active_parameters or 0.0)
    if not visited:
        raise UnsupportedRunError(case.run.id, f"{known.name}: {known.unsupported}")
    said.append(f"{known.name}: {known.unsupported}")
    batch = case.batch_tokens or known.global_batch * known.seq_len
    dense = _dense_of(case, visited, said)
    run = replace(dense.run, seq_len=case.run.seq_len or known.seq_len or None)
    return replace(dense, run=run, batch_tokens=float(batch) or None)


def by_parameters(case: PublishedCase, said: list[str]) -> PublishedCase | None:
    """The case without figures of its model but the parameters that a token visits; None where
    those are not known or there is nothing to leave aside."""
    active = case.active_parameters or case.parameters
    if not active or not (case.run.num_layers or case.run.hidden_size or case.experts):
        return None
    return _dense_of(case, active, said)


def _dense_of(case: PublishedCase, parameters: float, said: list[str]) -> PublishedCase:
    """The case without figures of its model but so many parameters, which every token visits."""
    said.append(f"a dense model of {parameters / 1e9:.4g} billion parameters in its place")
    figures = _none(*_WIDTHS, "num_layers", "tp", "pp", "cp", "ep")
    run = replace(case.run, model="", **figures)
    return replace(case, run=run, parameters=parameters, active_parameters=parameters, experts=None)


def _none(*columns: str) -> dict[str, Any]:
    return dict.fromkeys(columns)


def _even_batch(run: PublishedRun, said: list[str]) -> PublishedRun:
    """An assumed batch that all devices have the same number of sequences of."""
    devices, batch = run.num_devices or 1, run.global_batch or 1
    if devices > batch or batch % devices == 0 or devices & (devices - 1) == 0:
        return run
    even = devices * round(batch / devices)
    said.append(f"{even} sequences per step, the same number for each of {devices} devices")
    return replace(run, global_batch=even)


def _layers(
    case: PublishedCase, figures: Transformer | None, parameters: float, said: list[str]
) -> int | None:
    if case.run.num_layers or figures is None:
        return case.run.num_layers
    if not parameters or case.experts or figures.num_experts:
        return figures.num_layers
    layers = max(1, round(figures.num_layers * parameters / figures.parameters))
    if layers != figures.num_layers:
        said.append(f"{layers} layers, for {parameters / 1e9:.4g} billion parameters")
    return layers


def _nearest(case: PublishedCase) -> KnownModel | None:
    """The known model whose total and active parameters are nearest, of sparse ones within a
    factor."""
    if not case.parameters:
        return None
    total, active = case.parameters, case.active_parameters or case.parameters
    dense = active == total
    found: list[tuple[float, int, KnownModel]] = []
    for place, model in enumerate(known_models()):
        figures = model.figures
        if figures is None or figures.state is not None or figures.window_layers:
            continue
        if dense and figures.num_experts:
            continue
        off = abs(math.log(figures.parameters / total))
        off = max(off, abs(math.log(active_parameters(figures) / active)))
        found.append((off, place, model))
    off, _, nearest = min(found, key=lambda each: each[:2])
    # Of a dense model the number of layers makes up for the rest (`_layers`).
    return nearest if off <= math.log(_NEAR) or dense else None


def active_parameters(model: Transformer) -> float:
    """Parameters that a token visits: all but the experts that it is not sent to."""
    idle = (model.num_experts - model.top_k) * model.expert_parameters * model.num_expert_layers
    return float(model.parameters - max(0, idle))


def _batch_tokens(
    case: PublishedCase, known: KnownModel | None, parameters: float, said: list[str]
) -> float:
    if case.batch_tokens:
        return case.batch_tokens
    if known is not None and known.global_batch:
        tokens = known.global_batch * known.seq_len
        said.append(f"{tokens / 1e6:.3g} million tokens per step ({known.name}, {known.source})")
        return float(tokens)
    trained = case.tokens or 0.0
    large = parameters >= _LARGE or trained >= _MANY_TOKENS
    tokens = _LARGE_BATCH if large else _SMALL_BATCH
    if parameters >= _LARGE and trained >= _MOST_TOKENS:
        tokens = _LARGEST_BATCH
    said.append(f"{tokens / 2**20:g} x 2^20 tokens per step")
    return float(tokens)


def _sequences(batch_tokens: float, seq_len: int) -> int:
    """Sequences per step: the power of two that is meant by a rounded number of tokens, else a
    multiple of a 32nd of the power below."""
    asked = max(1.0, batch_tokens / seq_len)
    power = 2 ** round(math.log2(asked))
    if abs(power / asked - 1) <= _ROUNDED:
        return int(power)
    part = max(1, 2 ** int(math.log2(asked)) // 32)
    return int(part * max(1, round(asked / part)))


def _zero_stage(text: str) -> int | None:
    """`1`, or `FSDP shards optimizer+grads, no reshard after forward` (2), or `FSDP` (3)."""
    found = re.match(r"^\s*(?:zero[\s-]*)?([0-3])\b", text, re.IGNORECASE)
    if found:
        return int(found.group(1))
    if re.search(r"optimizer\s*(?:\+|and)\s*grad", text, re.IGNORECASE):
        return 2
    return 3 if re.search(r"\bFSDP\b", text) else None


def _framework(case: PublishedCase, said: list[str]) -> str:
    """FSDP where it is all that is said of how the work is shared, Megatron-Core for the largest
    runs of 2023 and later; else nothing is known."""
    silent = case.run.tp is None and case.run.pp is None
    if silent and "megatron" not in case.zero.lower() and re.search(r"\bFSDP\b", case.zero):
        return "FSDP"
    device = _device(case.run)
    for lab, framework in _LABS:
        if re.search(lab, case.org, re.IGNORECASE) and not device.startswith("tpu"):
            said.append(f"framework {framework}, of {case.org}")
            return framework
    large = (case.parameters or 0.0) >= _TUNED_PARAMETERS
    visited = case.active_parameters or case.parameters or 0.0
    sparse = bool(case.experts) or visited < _DENSE * (case.parameters or 0.0)
    recent = not device.startswith(_EARLY) or _is_recent(case.run.source)
    recent = recent or (sparse and not device.startswith("tpu"))
    if large and recent and (case.run.num_devices or _TUNED_DEVICES) >= _TUNED_DEVICES:
        said.append("framework Megatron-Core, for the scale")
        return "Megatron-Core"
    # Experts came to GPUs' frameworks after 2022.
    return "unknown-2023" if sparse and recent and device.startswith(_EARLY) else ""


def _is_recent(source: str) -> bool:
    """Whether the papers that a source names are of 2023 or later."""
    years = [int(year) for year in re.findall(r"(?<!\d)(\d{2})[01]\d\.\d{4,5}(?!\d)", source)]
    return bool(years) and min(years) >= 23


def _network(run: PublishedRun, said: list[str]) -> str:
    text = run.inter_node_link
    if not text:
        return ""
    for name, link in _CLOUD_NETWORKS:
        if re.search(rf"\b{name}\b", text, re.IGNORECASE):
            said.append(f"network {link} for {text!r}")
            return link
    try:
        network_of(text, _device(run), 8)
    except ShardwrightError:
        said.append(f"the usual network for {text!r}")
        return ""
    return text


def _device(run: PublishedRun) -> str:
    return device_of(run, []).name


def _with_devices(run: PublishedRun, active: float, tokens: float, said: list[str]) -> PublishedRun:
    device = device_of(run, [])
    rates = device.peak_flop_per_s
    peak = (rates.get("bfloat16") or rates.get("float16") or next(iter(rates.values()))).value
    needed = 6 * active * tokens / (_USUAL_MFU * peak) / (_MOST_DAYS * 86400)
    batch_tokens = (run.global_batch or 1) * (run.seq_len or 1)
    most = max(_FEWEST_DEVICES, min(_MOST_DEVICES, batch_tokens // _TOKENS_PER_DEVICE))
    count = 2 ** math.ceil(math.log2(max(needed, _FEWEST_DEVICES)))
    count = min(count, 2 ** int(math.log2(most)))
    design = node_design(device.name)
    said.append(f"{count} devices, since the source says no number (nodes of {design.devices})")
    return replace(run, num_devices=count)


def begun(asked: CaseRun) -> PublishedRun | None:
    """The row with a layout to begin from where none is printed and no device holds the model:
    tensor parallelism inside a node, as few stages as hold it, as many replicas as the devices and
    the batch allow. None where a layout is printed or none of so many devices holds it."""
    run = asked.run
    if run.tp or run.pp or not run.num_devices or not run.global_batch:
        return None
    device = device_of(run, [])
    tp = min(_MOST_TENSOR_PARALLEL, node_design(device.name).devices, run.num_devices)
    least = _STATE_BYTES * asked.parameters / (_ROOM * tp * device.usable_bytes)
    stages = [pp for pp in range(1, asked.layers + 1) if asked.layers % pp == 0 and pp >= least]
    if not stages or tp * stages[0] > run.num_devices:
        return None
    most = run.num_devices // (tp * stages[0])
    dp = max(n for n in range(1, most + 1) if run.global_batch % n == 0)
    return replace(run, tp=tp, pp=stages[0], dp=dp, num_devices=tp * stages[0] * dp, micro_batch=1)
