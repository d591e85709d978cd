"""Logs of scripts: `iter 1631: loss 4.0863, time 561.94ms`, `step=3 loss=2.1 dt=0.31s tok/s=20000`.

Last of the readers, for logs of no framework that is known. A time without a unit is not taken.
"""

from __future__ import annotations

import re

from interop.logs.logged_number import NUMBER, above_zero, number
from interop.logs.told import StepLine, Told

_STEP = re.compile(
    r"\b(?:global[_ ]step|iteration|iter|step|num_updates)s?\b[\"']?\s*[:=#|]?\s*(\d+)"
    r"(?:\s*(?:/|of)\s*(\d+))?",
    re.IGNORECASE,
)
_TIME = re.compile(
    rf"\b(?:(?:step|iter(?:ation)?|batch)[_ ]?(?:time|cost)|avg_batch_cost|"
    rf"time[_ /]per[_ ](?:step|iter\w*)|time/(?:step|iter)|time|dt|elapsed|end_to_end|took)"
    rf"(?:_(?P<suffix>ms|s|sec|seconds))?[\"']?\s*(?P<named>[\[(](?:ms|s|sec)[\])])?"
    rf"\s*[:=]?\s*(?P<value>{NUMBER})\s*(?P<unit>ms|s|sec|secs|seconds)?(?![\w:])",
    re.IGNORECASE,
)
_LOSS = re.compile(rf"\b(?:train[_ ])?loss\b[\"']?\s*[:=]?\s*({NUMBER})", re.IGNORECASE)
_TGS = re.compile(rf"tgs \(tokens/gpu/second\)=({NUMBER})")  # InternEvo
_TOKENS = re.compile(
    rf"\b(?:tok(?:ens)?/s(?:ec)?|tokens_per_sec(?:ond)?|tps|tok_per_sec)\s*[:=]?\s*({NUMBER})|"
    rf"({NUMBER})\s*tok(?:ens)?/s",
    re.IGNORECASE,
)


class PlainReader:
    """Reads lines that name a step, and a loss or a time beside it."""

    name = ""

    def read(self, line: str) -> Told | None:
        """A step."""
        lower = line.lower()
        if "step" not in lower and "iter" not in lower and "num_updates" not in lower:
            return None
        found = _STEP.search(line)
        if found is None:
            return None
        loss, time_s = _LOSS.search(line), _time_s(line)
        if loss is None and time_s is None:
            return None
        tokens, per_device = _TOKENS.search(line), _TGS.search(line)
        rate = above_zero(tokens[1] or tokens[2], grouped=True) if tokens else None
        return StepLine(
            step=int(found[1]),
            total=int(found[2]) if found[2] else None,
            time_s=time_s,
            loss=number(loss[1]) if loss else None,
            tokens_per_s=None if per_device else rate,
            device_tokens_per_s=above_zero(per_device[1]) if per_device else None,
        )


def _time_s(line: str) -> float | None:
    for found in _TIME.finditer(line):
        unit = (found["unit"] or found["suffix"] or (found["named"] or "").strip("[]()")).lower()
        value = above_zero(found["value"])
        if value is not None and unit:
            return value / 1e3 if unit == "ms" else value
    return None
