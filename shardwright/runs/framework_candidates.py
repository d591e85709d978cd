"""`stack_of`: the most probable framework of a row, among the candidates that it may have run.

A named framework is dated by the row's source and framework columns (notes are never read, since
they may contain the result), otherwise by its device and model. A row without a framework is judged
by its layout. The probabilities only rank the candidates; they are assumed, not counted in data.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from profiles.hardware.catalogue.device import Device
from shardwright.runs.complete_words import PRECISIONS, is_mlperf
from shardwright.runs.run import PublishedRun
from simulator.training_run.framework.framework import (
    fork_of,
    framework_of,
    framework_of_device,
    load_framework,
)
from simulator.training_run.framework.run_conditions import LOW_PRECISIONS

# A framework of 2023 or later that is not in our files.
UNKNOWN = "unknown-2023"
# FlashAttention-2 needs Ampere or later (github.com/Dao-AILab/flash-attention, README).
_BEFORE_FLASH = ("v100", "t4", "titan", "quadro", "rtx-20", "gtx")
# GPUs of the years when Megatron-LM was as in megatron-2021. Later GPUs (A800 of 2022, H100 of
# 2023) date a run by themselves.
_OLD_DEVICES = (*_BEFORE_FLASH, "a100")
# A800 and H800 were sold from November 2022 until October 2023 (the export rules of both dates).
_OF_2023 = ("a800", "h800")
# Attention with scores in memory was replaced by FlashAttention (May 2022, arXiv 2205.14135): no
# published run of 8192 tokens or more is without it.
_LONG_SEQUENCE = 8192
# Scores of one head take 2 GiB at this length.
_NEVER_UNFUSED = 32768
_FUSED_SINCE = (2023, 1)
# Releases of Megatron-Core that the framework files describe, by the first month of each.
_MEGATRON_SINCE = (
    ((2025, 1), "megatron-core-2025"),
    ((2024, 7), "megatron-core"),
    ((2024, 2), "megatron-core-2024"),
    (_FUSED_SINCE, "megatron-core-2023"),
)
_ARXIV = re.compile(r"(?<!\d)(\d{2})(\d{2})\.\d{4,5}(?!\d)")
_DATE = re.compile(r"(?<!\d)(20\d{2})-(\d{2})(?!\d)")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = re.compile(rf"\b({'|'.join(_MONTHS)})[a-z]* (20\d{{2}})\b")
# Digits that are no version: commits, and the stage of ZeRO.
_NO_VERSION = re.compile(r"\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b|zero-?\d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A framework file and the probability that the row ran it."""

    stack: str
    probability: float


def stack_of(run: PublishedRun, device: Device, assumptions: list[str]) -> tuple[str, str]:
    """The framework's name and TrainingRun.stack_assumed; adds to `assumptions`."""
    candidates = framework_candidates(run, device)
    stack, assumed = candidates[0].stack, _how_assumed(run, candidates)
    if assumed:
        named = f" for {run.framework!r}" if run.framework else ""
        others = ", ".join(f"{each.stack} {each.probability:.0%}" for each in candidates[1:])
        assumptions.append(
            f"stack {stack}{named}{_why(stack, assumed)}" + (f" (or {others})" if others else "")
        )
    compiled = load_framework(stack).compiled_name
    if compiled and PRECISIONS.get(run.precision.strip().lower()) in LOW_PRECISIONS:
        assumptions.append(f"torch.compile, which fuses the casts of {run.precision}")
        stack = compiled
    return stack, assumed


def _why(stack: str, assumed: str) -> str:
    if assumed == "fork":
        return ", a fork or wrapper of it"
    if stack == UNKNOWN:
        return ": FlashAttention, the mean of what frameworks of 2023 and later do"
    return ", by the row's date, device or model" if assumed == "dated" else ""


def framework_candidates(run: PublishedRun, device: Device) -> tuple[Candidate, ...]:
    """The candidates, most probable first; their probabilities add up to 1."""
    named = named_framework(run)
    only = framework_of_device(device.name)
    if only and not (named and device.name.startswith(load_framework(named).devices)):
        return _certain(only)
    if not named:
        return _inferred(run, device)
    if load_framework(named).devices or load_framework(named).attention != "unfused":
        return _megatron(run, device) if named == "megatron-core" else _certain(named)
    if (run.seq_len or 0) >= _NEVER_UNFUSED or _is_recent(run, device):
        return _certain(_newer(run, named))
    if _has_version(run.framework) or _is_dated_old(run):
        return _certain(named)
    return _either(named, _newer(run, named))


def named_framework(run: PublishedRun) -> str:
    """The framework named in a row, or whose fork is named; "" for none."""
    return framework_of(run.framework) or fork_of(run.framework)


def _how_assumed(run: PublishedRun, candidates: tuple[Candidate, ...]) -> str:
    """How the most probable candidate was chosen, in the words of TrainingRun.stack_assumed."""
    if not named_framework(run):
        return "inferred"
    if not framework_of(run.framework) or "fork" in run.framework.lower():
        return "fork"
    return "" if candidates[0].stack == framework_of(run.framework) else "dated"


def _certain(stack: str) -> tuple[Candidate, ...]:
    return (Candidate(stack=stack, probability=1.0),)


def _either(stack: str, other: str) -> tuple[Candidate, ...]:
    if stack == other:
        return _certain(stack)
    return (Candidate(stack=stack, probability=0.7), Candidate(stack=other, probability=0.3))


def _megatron(run: PublishedRun, device: Device) -> tuple[Candidate, ...]:
    """Candidates for Megatron-LM or a fork, by the row's date, since one name covers ten years of
    code. Version numbers of forks are not used."""
    text = run.framework.lower()
    fork = bool(text) and not framework_of(text)
    if not fork and _has_version(text):
        return _certain("megatron-core")
    old = device.name.startswith(_OLD_DEVICES)
    date = _page_date(run)
    if date is not None and not device.name.startswith(_BEFORE_FLASH):
        release = (name for since, name in _MEGATRON_SINCE if date >= since)
        return _certain(next(release, "megatron-2021" if old else "megatron-core-2023"))
    if "core" in text:
        return _certain("megatron-core")
    if device.name.startswith(_OF_2023):
        return _either("megatron-core-2023", "megatron-core")
    if fork and device.name.startswith("a100") and not _is_dated_old(run):
        # Sources that run a fork are later than Megatron-LM's first years.
        return _either("megatron-core-2023", "megatron-core")
    if _is_recent(run, device):
        return _certain("megatron-core")
    if _is_dated_old(run):
        return _certain("megatron-2021")
    return _either("megatron-2021", "megatron-core")


def _newer(run: PublishedRun, stack: str) -> str:
    """The successor of a framework older than FlashAttention. For DeepSpeed it is that of the
    library whose models it shards."""
    if stack == "megatron-deepspeed":
        return UNKNOWN if "megatron" in run.framework.lower() else "transformers"
    return "megatron-core" if "megatron" in run.framework.lower() else UNKNOWN


def _inferred(run: PublishedRun, device: Device) -> tuple[Candidate, ...]:
    """Candidates if no known framework is named."""
    if device.type == "tpu":
        return _certain("maxtext")
    if is_mlperf(run):
        return _certain("megatron-core")
    if (run.seq_len or 0) < _NEVER_UNFUSED and not _is_recent(run, device):
        if run.framework and not device.name.startswith(_BEFORE_FLASH) and not _is_dated_old(run):
            # Sources with their own framework on an A100 are later than Megatron-LM's first years.
            return _certain(UNKNOWN)
        # ZeRO in that generation means DeepSpeed.
        zero = bool(run.zero_stage) and not run.framework
        old = "megatron-deepspeed" if zero else "megatron-2021"
        return _certain(old) if _is_dated_old(run) else _either(old, UNKNOWN)
    if run.framework:
        return _certain(UNKNOWN)
    if _is_megatron_layout(run):
        return _either(_megatron(run, device)[0].stack, UNKNOWN)
    if run.zero_stage == 3 and max(run.tp or 1, run.pp or 1) == 1:
        return (
            Candidate(stack="torch-fsdp", probability=0.5),
            Candidate(stack="transformers", probability=0.35),
            Candidate(stack=UNKNOWN, probability=0.15),
        )
    return _certain(UNKNOWN)


def _is_megatron_layout(run: PublishedRun) -> bool:
    """Whether the row has features of few frameworks outside Megatron's family: interleaved stages,
    context parallelism, sequence parallelism, or experts with tensor parallelism."""
    degrees = max(run.vpp or 1, run.cp or 1) > 1
    experts = (run.ep or 1) > 1 and (run.tp or 1) > 1
    return degrees or experts or bool(run.sequence_parallel) or "interleav" in run.schedule.lower()


def _is_recent(run: PublishedRun, device: Device) -> bool:
    """Whether the row is from 2023 or later by its device, text or model: gated feed-forwards in
    bf16 and shared keys came with PaLM and LLaMA, long sequences with FlashAttention. A device
    without FlashAttention is old unless the row names another fused kernel."""
    if device.name.startswith(_BEFORE_FLASH):
        return "xformers" in f"{run.framework} {run.source}".lower()
    if not device.name.startswith(_OLD_DEVICES):
        return True
    date = _page_date(run)
    if date is not None:
        return date >= _FUSED_SINCE
    if _is_dated_old(run):
        return False
    long = run.seq_len is not None and run.seq_len >= _LONG_SEQUENCE
    grouped = bool(run.num_kv_heads and run.num_heads and run.num_kv_heads < run.num_heads)
    return long or grouped or bool(run.gated_mlp)


def _is_dated_old(run: PublishedRun) -> bool:
    date = min(_paper_dates(run), default=None) or _page_date(run)
    return date is not None and date < _FUSED_SINCE


def _paper_dates(run: PublishedRun) -> list[tuple[int, int]]:
    found = _ARXIV.findall(run.source)
    return [(2000 + int(year), int(month)) for year, month in found if 1 <= int(month) <= 12]


def _page_date(run: PublishedRun) -> tuple[int, int] | None:
    """Latest year and month of a commit or log in a row's text; None without one, and for a cited
    paper, which may have used older code."""
    if _paper_dates(run):
        return None
    text = f"{run.source} {run.framework}".lower()
    found = [(int(year), int(month)) for year, month in _DATE.findall(text)]
    found += [(int(year), _MONTHS.index(month) + 1) for month, year in _MONTH.findall(text)]
    return max(found, default=None)


def _has_version(framework: str) -> bool:
    return bool(re.search(r"\d", _NO_VERSION.sub("", framework.lower())))
