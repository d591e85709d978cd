"""Composer (llm-foundry) and OLMo: a line with the step, then one indented line per metric.

Composer: `[epoch=1][batch=5/100]:`, `Train throughput/batches_per_sec: 0.27` (console_logger.py);
OLMo: `[step=2/739328]`, `throughput/device/batches_per_second=0.0869` with commas between thousands
(train.py, `log_metrics_to_console`). Both rates are means over a window of steps.
"""

from __future__ import annotations

import re

from shardwright_frameworks.logs.formats.log_record import LogRecord, StepLine
from shardwright_frameworks.logs.formats.logged_number import NUMBER, above_zero, number

_HEAD = re.compile(
    r"\[(?:epoch=\d+(?:/\d+)?\]\[)?(batch|step)=(\d+)(?:/(\d+))?(?:,[^\]]*)?\]:?\s*(.*)$"
)
_METRIC = re.compile(rf"^\s*(?:Train )?([\w/() -]+?)\s*[:=]\s*({NUMBER})\s*$")


class MetricBlockReader:
    """Reads blocks of metrics: each line has a value of the step of its block."""

    name = "composer"

    def __init__(self) -> None:
        self._step = 0
        self._total: int | None = None
        self._grouped = False

    def read(self, line: str) -> LogRecord | None:
        """The head of a block, or a metric in it."""
        rest = line
        if "[" in line and (head := _HEAD.search(line)) is not None:
            self._step = int(head[2])
            self._total = int(head[3]) if head[3] else None
            self._grouped = head[1] == "step"
            self.name = "olmo" if self._grouped else "composer"
            rest = head[4]
            if not rest:
                return StepLine(step=self._step, total=self._total)
        if self._step and ("/" in rest or "Memory" in rest):
            return self._metric(rest)
        return None

    def _metric(self, rest: str) -> StepLine | None:
        found = _METRIC.match(rest)
        if found is None:
            return None
        name, text = found[1], found[2]
        value = number(text, grouped=self._grouped)
        above = above_zero(text, grouped=self._grouped)
        step, total = self._step, self._total
        if name.endswith(("throughput/batches_per_sec", "device/batches_per_second", "device/BPS")):
            time_s = None if above is None else 1.0 / above
            return StepLine(step=step, total=total, time_s=time_s)
        if name.endswith(("loss/train/total", "train/CrossEntropyLoss", "train/CE loss")):
            return StepLine(step=step, total=total, loss=value)
        if name.endswith(("device/tokens_per_sec", "device/tokens_per_second", "device/TPS")):
            return StepLine(step=step, total=total, device_tokens_per_s=above)
        if name.endswith("throughput/tokens_per_sec"):
            return StepLine(step=step, total=total, tokens_per_s=above)
        if name.endswith("memory/peak_reserved_mem"):
            return self._memory(above, 1e9 / 2**30, "reserved")
        if name.endswith("Peak GPU Memory (MB)"):
            return self._memory(above, 1e6 / 2**30, "allocated")
        return None

    def _memory(self, value: float | None, unit_gib: float, kind: str) -> StepLine | None:
        if value is None:
            return None
        return StepLine(
            step=self._step, total=self._total, memory_gib=value * unit_gib, memory_kind=kind
        )
