"""NeMo and Lightning: bars that end in `train_step_timing in s=5.3`, or a line per step with it.

`Epoch 0: :  47%|####7 | 7/15 [06:19<07:13, reduced_train_loss=11.50, global_step=5.000,
consumed_samples=12288.0, train_step_timing in s=49.50]` (NeMo 1), `Training epoch 0, iteration
120/149 | lr: .. | global_step: 120 | reduced_train_loss: .. | train_step_timing in s: 0.03146`
(NeMo 2, counts from 0). Other Lightning bars give the rate alone.
"""

from __future__ import annotations

import re

from shardwright_frameworks.logs.formats.log_record import LogRecord, StepLine
from shardwright_frameworks.logs.formats.logged_number import NUMBER, above_zero, number
from shardwright_frameworks.logs.formats.piped_fields import piped_fields
from shardwright_frameworks.logs.formats.progress_bar import Bar, EpochBars, training_bar

_EPOCH_LINE = re.compile(r"Training epoch \d+, iteration (\d+)/(\d+)\s*\|")
# Rich's bar: `Epoch 0/9 ━━━━━ 120/1000 0:05:12 • 0:38:10 0.38it/s train_loss: 2.1`.
_RICH = re.compile(
    r"Epoch (\d+)/\d+\s+[━╸╺─ ]+\s(\d+)/(\d+)\s+(\d+):(\d\d):(\d\d)\s+•\s+\S+\s+[\d.]+\s?it/s(.*)"
)
_RICH_LOSS = re.compile(rf"\b(?:train_)?loss(?:_step)?:\s*({NUMBER})")
_TIMING = re.compile(rf"train_step_timing in s[=:]\s*({NUMBER})")
_LOSS = re.compile(rf"(?:reduced_train_loss|train_loss|loss)=({NUMBER})")


class LightningReader:
    """Reads lines of NeMo and of Lightning."""

    name = "nemo"

    def __init__(self) -> None:
        self._epochs = EpochBars()

    def read(self, line: str) -> LogRecord | None:
        """A step of a bar or of a line."""
        if "Training epoch" in line and (found := _EPOCH_LINE.search(line)) is not None:
            fields = piped_fields(line[found.start() :])
            loss = fields.get("reduced train loss")
            timing = fields.get("train step timing in s")
            return StepLine(
                step=int(found[1]) + 1,
                total=int(found[2]) + 1,
                time_s=above_zero(timing),
                loss=None if loss is None else number(loss),
                global_batch=above_zero(fields.get("global batch size")),
            )
        if "•" in line and (rich := _RICH.search(line)) is not None:
            return self._rich_step(rich)
        if "Epoch " in line and "[" in line and "=" in line:
            return self._bar_step(line)
        return None

    def _rich_step(self, found: re.Match[str]) -> StepLine | None:
        """A step of a rich progress bar. Its rate has only two decimals, so the time is taken from
        the clock."""
        epoch, done, total, hours, minutes, seconds = map(int, found.groups()[:6])
        loss = _RICH_LOSS.search(found[7])
        clock_s = 3600.0 * hours + 60.0 * minutes + seconds
        bar = Bar(
            title="Epoch",
            epoch=epoch,
            done=done,
            total=total,
            clock_s=clock_s,
            rate_s=None,
            rest="",
        )
        if not done:
            return None
        return StepLine(
            step=self._epochs.steps_done(bar),
            bar_s=clock_s,
            bar=f"{total}",
            loss=number(loss[1]) if loss else None,
        )

    def _bar_step(self, line: str) -> StepLine | None:
        bar = training_bar(line[line.rfind("Epoch ") :])
        if bar is None or not bar.done:
            return None
        timing, loss = _TIMING.search(bar.rest), _LOSS.search(bar.rest)
        time_s = above_zero(timing[1]) if timing else None
        return StepLine(
            step=self._epochs.steps_done(bar),
            total=bar.total,
            time_s=bar.rate_s if time_s is None else time_s,
            bar_s=bar.clock_s,
            smoothed=time_s is None and bar.rate_s is not None,
            bar=f"{bar.total or ''}",
            loss=number(loss[1]) if loss else None,
        )
