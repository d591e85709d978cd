"""`stack_of`: the framework that a row names or, where it names none that is known, the generation
that everything else in the row dates it to."""

from __future__ import annotations

import re

from profiles.hardware.catalogue.device import Device
from profiles.published.run import PublishedRun
from simulator.training_run.framework.framework import (
    framework_of,
    framework_of_device,
    load_framework,
)
from simulator.training_run.framework.run_conditions import LOW_PRECISIONS
from simulator.training_run.reading.complete_words import PRECISIONS, is_mlperf

# A framework of 2023 or later that nobody here knows.
UNKNOWN = "unknown-2023"
# GPUs of the years in which Megatron-LM was still what megatron-2021 describes. Later ones (A800 of
# 2022, H100 of 2023) date a run by themselves.
_OLD_DEVICES = ("v100", "a100")
# Those were sold from November 2022 until October 2023 (the export rules of both dates).
_OF_2023 = ("a800", "h800")
# Attention whose scores are in memory was given up with FlashAttention (May 2022, arXiv
# 2205.14135): from 8192 tokens on nothing published runs without.
_LONG_SEQUENCE = 8192
# Scores of one head take 2 GiB at this length.
_NEVER_UNFUSED = 32768
_FUSED_SINCE = (2023, 1)
_ARXIV = re.compile(r"(?<!\d)(\d{2})(\d{2})\.\d{4,5}(?!\d)")
_DATE = re.compile(r"(?<!\d)(20\d{2})-(\d{2})(?!\d)")


def stack_of(run: PublishedRun, device: Device, said: list[str]) -> str:
    """The framework's name; what was assumed is added to `said`."""
    named = framework_of(run.framework) if run.framework else ""
    only = framework_of_device(device.name)
    if only and not (named and device.name.startswith(load_framework(named).devices)):
        said.append(f"stack {only}, which {device.name} runs" + _for(run))
        return only
    if named:
        return _generation(run, named, device, said)
    if device.type == "tpu":
        stack = "maxtext"
    elif is_mlperf(run):
        stack = "megatron-core"
    else:
        stack = _dated(run, device)
    said.append(f"stack {stack}" + _for(run) + _why(stack))
    return stack


def may_be_newer(run: PublishedRun, stack: str) -> str:
    """What a stack of the time before FlashAttention may be instead, where the row does not say
    which version it ran: the framework's later self, "" where there is none or the row does say."""
    old = stack in ("megatron-2021", "megatron-deepspeed")
    if not old or _is_version(run.framework) or _is_dated_old(run):
        return ""
    return "megatron-core" if framework_of(run.framework) == "megatron-core" else UNKNOWN


def _generation(run: PublishedRun, stack: str, device: Device, said: list[str]) -> str:
    """The named framework, of the generation that the rest of the row tells."""
    if load_framework(stack).attention == "unfused" and (run.seq_len or 0) >= _NEVER_UNFUSED:
        said.append(f"stack {UNKNOWN}: no scores of {run.seq_len} tokens are ever in memory")
        return UNKNOWN
    old = device.name.startswith(_OLD_DEVICES)
    has_version = bool(re.search(r"\d", run.framework))
    if stack == "megatron-core" and old and not _is_version(run.framework):
        # One name for ten years of code: without a version the device dates it.
        if _is_recent(run):
            said.append(f"stack {stack} for {run.framework!r}, as recent as its model")
            return stack
        said.append(f"stack megatron-2021 for {run.framework!r}")
        return "megatron-2021"
    if stack == "megatron-core" and device.name.startswith(_OF_2023) and not has_version:
        said.append(f"stack megatron-core-2023 for {run.framework!r}, as {device.name} is of 2023")
        return "megatron-core-2023"
    recent = not old or (
        _is_recent(run) and not has_version and "megatron" in run.framework.lower()
    )
    if stack == "megatron-deepspeed" and recent:
        # DeepSpeed by itself shards models of others, with the kernels of their day.
        stack = UNKNOWN if "megatron" in run.framework.lower() else "transformers"
        said.append(f"stack {stack} for {run.framework!r} on {device.name}")
        return stack
    compiled = load_framework(stack).compiled_name
    if compiled and PRECISIONS.get(run.precision.strip().lower()) in LOW_PRECISIONS:
        said.append(f"torch.compile, which fuses the casts of {run.precision}")
        return compiled
    return stack


def _dated(run: PublishedRun, device: Device) -> str:
    """The generation of a framework that is not known, or not named at all."""
    if not device.name.startswith(_OLD_DEVICES) or _is_recent(run):
        return UNKNOWN
    if run.framework and not device.name.startswith("v100") and not _is_dated_old(run):
        # Who names a framework of their own on an A100 writes after Megatron-LM's first years.
        return UNKNOWN
    # ZeRO in that generation means DeepSpeed.
    return "megatron-deepspeed" if run.zero_stage and not run.framework else "megatron-2021"


def _is_recent(run: PublishedRun) -> bool:
    """Whether the row's model or text is of 2023 or later: gated feed-forwards in bf16 and shared
    keys came with PaLM and LLaMA, long sequences with FlashAttention."""
    if _is_dated_old(run):
        return False
    long = run.seq_len is not None and run.seq_len >= _LONG_SEQUENCE
    grouped = bool(run.num_kv_heads and run.num_heads and run.num_kv_heads < run.num_heads)
    return long or grouped or bool(run.gated_mlp)


def _is_dated_old(run: PublishedRun) -> bool:
    return any(date < _FUSED_SINCE for date in _dates(run.source))


def _dates(text: str) -> list[tuple[int, int]]:
    """Years and months that a source's words print: of papers, of versions of pages."""
    papers = [(2000 + int(y), int(m)) for y, m in _ARXIV.findall(text) if 1 <= int(m) <= 12]
    return papers or [(int(y), int(m)) for y, m in _DATE.findall(text)]


def _is_version(framework: str) -> bool:
    """A name that holds a number, or that did not exist before 2023 (Megatron-Core)."""
    return bool(re.search(r"\d", framework)) or "core" in framework.lower()


def _for(run: PublishedRun) -> str:
    return f" for {run.framework!r}" if run.framework else ""


def _why(stack: str) -> str:
    if stack != UNKNOWN:
        return ""
    return ": FlashAttention, the mean of what frameworks of 2023 and later do"
