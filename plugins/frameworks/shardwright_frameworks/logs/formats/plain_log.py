"""Logs of scripts: `iter 1631: loss 4.0863, time 561.94ms`, `step=3 loss=2.1 dt=0.31s tok/s=20000`.

The last reader, for logs of unknown frameworks. Times without a unit are ignored, except rates
(`steps_per_second: 0.3115`) with three digits or more.
"""

from __future__ import annotations

import re

from shardwright_frameworks.logs.formats.log_record import LogRecord, StepLine
from shardwright_frameworks.logs.formats.logged_number import NUMBER, above_zero, number

_STEP = re.compile(
    r"\b(?:global[_ ]step|iteration|iter|step|num_updates)s?\b[\"']?\s*[:=#|]?\s*(\d+)"
    r"(?:\s*(?:/|of)\s*(\d+))?",
    re.IGNORECASE,
)
# Micro-steps and optimizer steps (LitGPT): the time is of one of the former.
_BOTH = re.compile(r"\biter(?:ation)?\s*[:=]?\s*(\d+)\s*,?\s*step\s*[:=]?\s*(\d+)", re.IGNORECASE)
_TIME = re.compile(
    rf"\b(?:(?:step|iter(?:ation)?|batch)[_ ]?(?:time|cost)|avg_batch_cost|step_avg|"
    rf"time[_ /]per[_ ](?:step|iter\w*)|time/(?:step|iter)|time|dt|elapsed|end_to_end|took)"
    rf"(?:_(?P<suffix>ms|s|sec|seconds))?[\"']?\s*(?P<named>[\[(](?:ms|s|sec)[\])])?"
    rf"\s*[:=]?\s*(?P<value>{NUMBER})\s*(?P<unit>ms|s|sec|secs|seconds)?(?![\w:])",
    re.IGNORECASE,
)
# Between bars, without a name but with its unit (llm.c).
_BARE = re.compile(rf"\|\s*({NUMBER})\s*ms\s*(?=\|)")
# PaddleNLP's `interval_steps_per_second`, fairseq's `ups`.
_PER_S = re.compile(
    r"\b(?:\w+_)?(?:(?:steps?|iters?|updates)(?:_per_sec(?:ond)?|/s(?:ec)?)|ups)[\"']?\s*[:=]\s*"
    r"([\d.,]+)"
)
_LOSS = re.compile(rf"\b(?:train[_ ])?loss\b[\"']?\s*[:=]?\s*({NUMBER})", re.IGNORECASE)
# InternEvo's words, torchtune's.
_TGS = re.compile(rf"(?:tgs \(tokens/gpu/second\)|tokens_per_second_per_gpu)[:=]\s*({NUMBER})")
_TOKENS = re.compile(
    rf"\b(?:tok(?:ens)?/s(?:ec)?|tokens_per_sec(?:ond)?|tps|tok_per_sec)\s*[:=]?\s*({NUMBER})|"
    rf"({NUMBER})\s*tok(?:ens)?/s",
    re.IGNORECASE,
)
_PEAK = re.compile(r"\bpeak_memory_alloc:\s*([\d.]+)")  # torchtune, GiB
_FEWEST_DIGITS = 3


class PlainReader:
    """Reads lines that name a step with a loss or a time."""

    name = ""

    def read(self, line: str) -> LogRecord | None:
        """A step."""
        lower = line.lower()
        if "step" not in lower and "iter" not in lower and "num_updates" not in lower:
            return None
        if ":::mllog" in lower:  # its times are of day (mlperf_log.py)
            return None
        found, both = _STEP.search(line), _BOTH.search(line)
        if found is None:
            return None
        loss, time_s = _LOSS.search(line), _time_s(line)
        if loss is None and time_s is None:
            return None
        step, total = int(found[1]), found[2]
        if both is not None and both[1] != both[2]:
            step, total, time_s = int(both[2]), None, None
        tokens, per_device = _TOKENS.search(line), _TGS.search(line)
        rate = above_zero(tokens[1] or tokens[2], grouped=True) if tokens else None
        peak = _PEAK.search(line)
        return StepLine(
            step=step,
            total=int(total) if total else None,
            time_s=time_s,
            loss=number(loss[1]) if loss else None,
            tokens_per_s=None if per_device else rate,
            device_tokens_per_s=above_zero(per_device[1]) if per_device else None,
            memory_gib=above_zero(peak[1]) if peak else None,
            memory_kind="allocated" if peak else "",
        )


def _time_s(line: str) -> float | None:
    for found in _TIME.finditer(line):
        unit = (found["unit"] or found["suffix"] or (found["named"] or "").strip("[]()")).lower()
        value = above_zero(found["value"])
        if value is not None and unit:
            return value / 1e3 if unit == "ms" else value
    if (bare := _BARE.search(line)) is not None and (value := above_zero(bare[1])) is not None:
        return value / 1e3
    if (per_s := _PER_S.search(line)) is not None:
        digits = len(re.sub(r"\D", "", per_s[1]).lstrip("0"))
        value = above_zero(per_s[1]) if digits >= _FEWEST_DIGITS else None
        return None if value is None else 1.0 / value
    return None
