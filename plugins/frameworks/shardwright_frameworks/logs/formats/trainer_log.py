"""The transformers Trainer: `{'loss': 2.1, 'grad_norm': .., 'epoch': 0.1}` between progress bars.

The step is in the progress bar, not in the entries (until 2021 it was). Releases from 5 on print
figures as text (`'loss': '2.1'`). The last line is `{'train_runtime': .., 'train_steps_per_second':
..}` of all steps, including evaluations and checkpoints. LLaMA-Factory and ms-swift print step and
clock.
"""

from __future__ import annotations

import re
from dataclasses import replace

from shardwright_frameworks.logs.formats.log_record import Fact, LogRecord, StepLine
from shardwright_frameworks.logs.formats.logged_number import NUMBER, above_zero, number
from shardwright_frameworks.logs.formats.progress_bar import EpochBars, has_rate, training_bar

_FIELD = re.compile(rf"'([\w/() -]+)':\s*'?({NUMBER})'?")
_LOSS = re.compile(rf"loss=({NUMBER})")
_SWIFT = re.compile(
    r"'global_step/max_steps': '(\d+)/(\d+)'(?:.*?'elapsed_time': '([^']*)')?"
    r"(?:.*?'memory\(GiB\)': ([\d.]+))?"
)
_FACTORY = re.compile(r'"current_steps": (\d+), "total_steps": (\d+)')
_FACTORY_LOSS = re.compile(rf'"loss": ({NUMBER})')
_FACTORY_CLOCK = re.compile(r'"elapsed_time": "(?:(\d+) days?, )?(\d+):(\d\d):(\d\d)"')
_CLOCK = re.compile(r"(\d+)\s*([dhms])")
_SECONDS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_TOTALS = (
    ("global_batch", re.compile(r"Total train batch size.*?=\s*([\d,]+)")),
    ("steps", re.compile(r"Total optimization steps\s*=\s*([\d,]+)")),
)

# Peaks that axolotl adds to the entries, in GiB; names changed in 2025.
_PEAKS = (
    ("allocated", ("memory/max_allocated (GiB)", "memory/max_mem_allocated(gib)")),
    ("reserved", ("memory/device_reserved (GiB)", "memory/device_mem_reserved(gib)")),
)
COUNTED = "counted"
"""Stands for the progress bar of entries without a step or a bar: they are numbered, but their
number is not the step."""


class TrainerReader:
    """Reads lines of the transformers Trainer; an entry belongs to the step of the bar before
    it."""

    name = "transformers"

    def __init__(self) -> None:
        self._epochs = EpochBars()
        self._bar = ""
        self._done = 0
        self._total: int | None = None
        self._entries = 0

    def read(self, line: str) -> LogRecord | None:
        """A step from a bar or an entry, figures of the whole run, or its batch."""
        at = line.find("{'")
        if at >= 0 and "'epoch'" in line:
            # The bar may precede the entry on the same line.
            bar = self._step(line[:at]) if has_rate(line[:at]) else None
            written = self._entry(dict(_FIELD.findall(line[at:])), line)
            if isinstance(written, StepLine) and bar is not None:
                return replace(
                    bar,
                    loss=written.loss,
                    memory_gib=written.memory_gib,
                    memory_kind=written.memory_kind,
                )
            if written is not None:
                return written
        if '"current_steps"' in line:
            return _llama_factory(line)
        if has_rate(line):
            return self._step(line)
        if " = " in line:
            for name, pattern in _TOTALS:
                if (found := pattern.search(line)) is not None:
                    value = above_zero(found[1], grouped=True)
                    return None if value is None else Fact(values={name: value})
        return None

    def _entry(self, fields: dict[str, str], line: str) -> LogRecord | None:
        runtime = above_zero(fields.get("train_runtime"))
        if runtime is not None:
            self._epochs = EpochBars()  # following lines are of another run
            rate = above_zero(fields.get("train_steps_per_second"))
            values = {"runtime_s": runtime}
            return Fact(values=values if rate is None else {**values, "steps": runtime * rate})
        if "eval_runtime" in fields:
            spent = above_zero(fields["eval_runtime"])
            return None if spent is None else Fact(values={"evaluation_s": spent})
        if "loss" not in fields:
            return None
        self._entries += 1
        step = above_zero(fields.get("step"))
        kind, peak = _peak(fields)
        if (swift := _SWIFT.search(line)) is not None:  # ms-swift names the step, and the clock
            clock = _clock_s(swift[3]) if swift[3] else None
            return StepLine(
                step=int(swift[1]),
                total=int(swift[2]),
                bar="entries",
                bar_s=clock,
                loss=number(fields["loss"]),
                memory_gib=above_zero(swift[4]),
                memory_kind="reserved" if swift[4] else "",
            )
        return StepLine(
            step=int(step) if step else self._done or self._entries,
            total=self._total,
            bar=self._bar if self._done else "entries" if step else COUNTED,
            loss=number(fields["loss"]),
            tokens_per_s=above_zero(fields.get("tokens_per_second")),
            device_tokens_per_s=above_zero(fields.get("tokens_per_second_per_gpu")),
            memory_gib=peak,
            memory_kind=kind,
        )

    def _step(self, line: str) -> StepLine | None:
        bar = training_bar(line)
        if bar is None or bar.total is None or not bar.done:
            return None
        if "=" in bar.rest and bar.epoch is not None:
            return None  # Lightning's
        self._done, self._total = self._epochs.steps_done(bar), bar.total
        self._bar = f"{bar.title}/{bar.total}"
        loss = _LOSS.search(bar.rest)
        return StepLine(
            step=self._done,
            total=bar.total,
            time_s=bar.rate_s,
            bar_s=bar.clock_s,
            smoothed=True,
            bar=self._bar,
            loss=number(loss[1]) if loss else None,
        )


def _peak(fields: dict[str, str]) -> tuple[str, float | None]:
    """Kind and GiB of the memory peak in an entry."""
    for kind, names in _PEAKS:
        for name in names:
            found = above_zero(fields.get(name))
            if found is not None:
                return kind, found
    return "", None


def _llama_factory(line: str) -> StepLine | None:
    """A step from a line of LLaMA-Factory's trainer_log.jsonl, whose clock counts whole seconds."""
    step, loss = _FACTORY.search(line), _FACTORY_LOSS.search(line)
    clock = _FACTORY_CLOCK.search(line)
    if step is None:
        return None
    seconds = None
    if clock is not None:
        days, hours, minutes, rest = (int(part or 0) for part in clock.groups())
        seconds = 86400.0 * days + 3600.0 * hours + 60.0 * minutes + rest
    return StepLine(
        step=int(step[1]),
        total=int(step[2]),
        bar="trainer_log",
        bar_s=seconds,
        loss=number(loss[1]) if loss else None,
    )


def _clock_s(text: str) -> float | None:
    """`1h 2m 3s` as seconds."""
    parts = _CLOCK.findall(text)
    return sum(int(count) * _SECONDS[unit] for count, unit in parts) if parts else None
