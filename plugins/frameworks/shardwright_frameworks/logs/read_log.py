"""`read_training_log`: the `TrainingLog` of a file, or of the lines read so far
(`log_of_reading`)."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from profiles.errors import DocumentError
from shardwright_frameworks.logs.formats.log_record import LogEvent
from shardwright_frameworks.logs.formats.trainer_log import COUNTED
from shardwright_frameworks.logs.log_reading import LogReading, finite
from shardwright_frameworks.logs.log_series import MOST_STEPS, Attempt, LogSeries
from shardwright_frameworks.logs.steady_step import Mask, SteadyStep, quantile, steady_step
from shardwright_frameworks.logs.step_columns import Array, StepColumns, step_columns
from shardwright_frameworks.logs.trainer_state import is_trainer_state, read_trainer_state
from shardwright_frameworks.logs.training_log import (
    LogAttempt,
    LogMemory,
    LogSpread,
    SlowRank,
    TrainingLog,
)

# Attempts whose steady steps differ by more are not one run that was restarted.
_SAME_RUN = 0.05
# A rank is slow where its steps take longer than the ranks' median by this.
_SLOW_RANK = 0.05
_FEWEST_SAMPLES = 5
FEWEST_STEADY = 0.6
"""Share of a log's lines that must be near the steady step, for it to have one."""
_MEMORY_KINDS = ("allocated", "reserved", "device", "")
# Of two columns of steps the better one: printed times, then a fine clock or a bar, then the rest.
# Words that identify frameworks made from Megatron-LM.
_KIN = (
    ("GPU utilization:", "megatron-bridge"),
    ("approx flops per GPU", "gpt-neox"),
    ("samples per second", "megatron-deepspeed"),
    ("samples_per_second", "megatron-deepspeed"),
)
_SOURCES = {"printed": 3, "rate": 2, "clock": 2}


def read_training_log(path: str | Path) -> TrainingLog:
    """The training log at `path`: text of any size, plain or compressed, or `trainer_state.json`.

    A log without steps has `steps` 0 and a note about its contents. Raises DocumentError for a file
    that is missing, empty or no text.
    """
    if is_trainer_state(path):
        return read_trainer_state(path)
    reading = LogReading()
    reading.read_file(path)
    if not reading.lines:
        raise DocumentError(f"{path}: is empty; name the file that the training printed to")
    return log_of_reading(reading, str(path))


def log_of_reading(reading: LogReading, path: str) -> TrainingLog:
    """The log of the lines read so far."""
    found = _best_series(reading)
    if found is None:
        return _without_steps(reading, path)
    name, series, x, steady, mask = found
    counted = series is reading.series.get(("transformers", COUNTED))
    attempts = _attempts(series, x)
    first = attempts[0]
    resumed: bool | None = first.resumed
    if len(x) == 1 and not series.attempts[0].resumed_at and series.attempts[0].first_step > 1:
        resumed = None  # one line: the number of steps that it covers is unknown
    steps = _distinct_steps(x)
    per = _rates(reading, x, steady)
    loss = _losses(reading, x)
    log = TrainingLog(
        path=path,
        framework=_framework(name, reading),
        steady_step_time_s=None if steady is None else steady.time_s,
        from_="" if steady is None else steady.source,
        steps=None if counted else steps,
        restarts=None if counted else len(attempts) - 1,
        stalls=None if steady is None else steady.stalls,
        pauses=None if steady is None else steady.pauses,
        resumed=None if counted else resumed,
        tokens_per_s=per[0],
        tokens_per_s_of=per[1],
        memory=_memory(reading),
        first_loss=loss[0],
        loss=loss[1],
        tflop_per_s=_median_of(x.tflop_per_s, x, steady),
        warm_up_steps=None if steady is None else steady.warm_up_steps,
        global_batch=_count(_last(x.global_batch), reading.facts.get("global_batch")),
        seq_len=_count(reading.facts.get("seq_len")),
        devices=_count(reading.facts.get("devices")),
        truncated=reading.truncated or bool(reading.damaged),
        ended=_ended(reading, series, attempts),
        attempts=() if counted else attempts,
        slow_ranks=_slow_ranks(series),
        parts={part: float(np.median(samples)) for part, samples in sorted(reading.parts.items())},
        notes=_notes(reading, series, steady, attempts, mask),
    )
    if steady is None:
        return _whole_run(log, reading)
    return replace(
        log,
        recent_step_time_s=steady.recent_s,
        steady_lines=int(steady.steady.sum()),
        steady_share=steady.share,
        spread=LogSpread(
            p10_s=steady.p10_s,
            median_s=steady.time_s,
            p90_s=steady.p90_s,
            drift=steady.drift,
        ),
        not_steady_s={
            "warm_up": steady.warm_up_s,
            "stalls": steady.stalled_s,
            "pauses": steady.paused_s,
        },
    )


def _best_series(
    reading: LogReading,
) -> tuple[str, LogSeries, StepColumns, SteadyStep | None, Mask | None] | None:
    """The steps of the reader and bar with the most times; ties are broken by the most steps."""
    best = None
    best_score: tuple[float, ...] = ()
    for (name, bar), series in reading.series.items():
        x = _with_batch(step_columns(series), reading.facts.get("global_batch"))
        if not len(x):
            continue
        mask = _one_run(series, x)
        steady = None if bar == COUNTED else steady_step(x, mask)
        score = (
            0.0 if steady is None else _SOURCES[steady.source],
            0.0 if name == "" else 1.0,
            # An evaluation has a bar too, and no losses between.
            float(bool(np.isfinite(x.loss).any())),
            float(x.covers.sum()),
        )
        if score > best_score:
            best, best_score = (name, series, x, steady, mask), score
    return best


def _with_batch(x: StepColumns, batch: float | None) -> StepColumns:
    """The columns, with missing batches set to the batch that the log prints once."""
    if not batch or np.isfinite(x.global_batch).any():
        return x
    return replace(x, global_batch=np.full(len(x), batch))


def _one_run(series: LogSeries, x: StepColumns) -> Mask | None:
    """The lines of the longest run, if a file contains several runs of different speed; None for
    all."""
    runs: list[int] = []
    for attempt in series.attempts:
        if not len(attempt):
            continue
        new = bool(runs) and attempt.first_step <= max(1, int(x.covers[0]))
        runs.append((runs[-1] + 1 if new else runs[-1]) if runs else 0)
    of_line = np.asarray(runs)[x.attempt] if runs else np.empty(0)
    levels = {}
    for run in sorted(set(runs)):
        found = steady_step(x, of_line == run)
        if found is not None:
            levels[run] = found.time_s
    if len(levels) < 2 or max(levels.values()) <= (1 + _SAME_RUN) * min(levels.values()):
        return None
    sizes = {run: float(x.covers[of_line == run].sum()) for run in levels}
    longest = max(levels, key=lambda run: (sizes[run], run))
    return np.asarray(of_line == longest)


def _attempts(series: LogSeries, x: StepColumns) -> tuple[LogAttempt, ...]:
    found = []
    for number, attempt in enumerate(a for a in series.attempts if len(a)):
        lines = x.attempt == number
        steady = steady_step(x, lines)
        covers = float(x.covers[lines][0])
        found.append(
            LogAttempt(
                first_step=attempt.first_step,
                last_step=attempt.last_step,
                resumed=_is_resumed(attempt, covers),
                steady_step_time_s=None if steady is None else steady.time_s,
            )
        )
    return tuple(found)


def _is_resumed(attempt: Attempt, covers: float) -> bool:
    """Whether a checkpoint was loaded, or the first line is after the first steps."""
    loaded = 0 < attempt.resumed_at <= attempt.first_step
    return loaded or attempt.first_step > max(1.0, covers)


def _distinct_steps(x: StepColumns) -> int:
    """Number of distinct optimizer steps covered by the lines."""
    ends = x.step.astype(np.int64)
    begins = ends - x.covers.astype(np.int64)
    order = np.argsort(begins, kind="stable")
    count, reached = 0, -1
    for begin, end in zip(begins[order].tolist(), ends[order].tolist(), strict=True):
        count += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return count


def _median_of(column: Array, x: StepColumns, steady: SteadyStep | None) -> float | None:
    """The weighted median of a column over the steady lines."""
    use = np.isfinite(column)
    if steady is not None and (use & steady.steady).any():
        use &= steady.steady
    return quantile(column[use], x.covers[use], 0.5) if use.any() else None


def _rates(
    reading: LogReading, x: StepColumns, steady: SteadyStep | None
) -> tuple[float | None, str | None]:
    """Tokens per second as printed, of all devices if printed; otherwise from the tokens of a
    step."""
    job = _median_of(x.tokens_per_s, x, steady)
    if job is not None:
        return job, "job"
    device = _median_of(x.device_tokens_per_s, x, steady)
    if device is not None:
        return device, "device"
    seq_len = reading.facts.get("seq_len")
    batch = _last(x.global_batch) or reading.facts.get("global_batch")
    if seq_len and batch and steady is not None:
        return batch * seq_len / steady.time_s, "job"
    return None, None


def _losses(reading: LogReading, x: StepColumns) -> tuple[float | None, float | None]:
    """The first and the last finite loss, of these steps or of another reader's."""
    columns = [x.loss, *(step_columns(series).loss for series in reading.series.values())]
    for column in columns:
        known = column[np.isfinite(column)]
        if known.size:
            return float(known[0]), float(known[-1])
    return None, None


def _last(column: Array) -> float | None:
    known = column[np.isfinite(column)]
    return float(known[-1]) if known.size else None


def _count(*values: float | None) -> int | None:
    return next((round(value) for value in values if value), None)


def _memory(reading: LogReading) -> LogMemory | None:
    peaks = dict(reading.peak_gib)
    for series in reading.series.values():
        for kind, value in series.peak_gib.items():
            peaks[kind] = max(peaks.get(kind, 0.0), value)
    best = next((each for each in _MEMORY_KINDS if each in peaks), None)
    return None if best is None else LogMemory(peak_gib=peaks[best], kind=best or "unknown")


def _framework(name: str, reading: LogReading) -> str | None:
    names = {each for each, _ in reading.series}
    if name == "megatron-lm":
        kin = next((kin for word, kin in _KIN if word in reading.words), None)
        return "megatron-deepspeed" if kin is None and "deepspeed" in names else kin or name
    if name == "deepspeed" and "{'" in reading.words:
        return "transformers"
    if name == "transformers" and '"current_steps"' in reading.words:
        return "llama-factory"
    if name == "transformers" and "{'" not in reading.words:
        return None  # a bar alone: any loop has one
    if name == "nemo" and not reading.words & {"train_step_timing", "reduced_train_loss"}:
        return "lightning"
    if not name and "tgs (tokens/gpu/second)" in reading.words:
        return "internevo"
    return name or None


def _slow_ranks(series: LogSeries) -> tuple[SlowRank, ...]:
    """Ranks that are slower than the others by their printed figures."""
    medians = {
        rank: float(np.median(np.asarray(times)))
        for rank, times in series.rank_times.items()
        if len(times) >= _FEWEST_SAMPLES
    }
    if len(medians) < 2:
        return ()
    middle = float(np.median(list(medians.values())))
    slow = [
        SlowRank(rank=rank, over_median=value / middle - 1.0)
        for rank, value in medians.items()
        if value > (1.0 + _SLOW_RANK) * middle
    ]
    return tuple(sorted(slow, key=lambda each: (-each.over_median, each.rank)))


def _ended(reading: LogReading, series: LogSeries, attempts: tuple[LogAttempt, ...]) -> str:
    after = series.marks_after
    last = max(attempt.last_step for attempt in attempts)
    if LogEvent.FINISH in after or (series.total and last >= series.total):
        return "finished"
    return "failed" if LogEvent.FAILURE in after else "open"


def _notes(
    reading: LogReading,
    series: LogSeries,
    steady: SteadyStep | None,
    attempts: tuple[LogAttempt, ...],
    mask: Mask | None,
) -> tuple[str, ...]:
    found = []
    if reading.damaged:
        found.append(f"the compressed file is cut short ({reading.damaged})")
    if reading.truncated:
        found.append("the last line is cut within a step and is left out")
    if sum(len(a) for a in series.attempts) >= MOST_STEPS:
        found.append(f"only the first {MOST_STEPS:,} steps are read")
    if mask is not None:
        levels = ", ".join(
            f"{a.first_step}-{a.last_step}: {a.steady_step_time_s:.4g} s"
            for a in attempts
            if a.steady_step_time_s is not None
        )
        found.append(f"the file has runs of different speeds ({levels}); the longest is used")
    if steady is not None and steady.p10_s is None and steady.source == "clock":
        found.append("times of day are too coarse for a distribution; the steady step is a mean")
    if steady is not None and steady.share < FEWEST_STEADY:
        found.append(f"only {steady.share:.0%} of the lines are near the steady step")
    if steady is not None and steady.warm_up_steps and steady.steady.sum() < 3:
        found.append("fewer than three steady lines; the figure may still hold warm-up")
    return tuple(found)


def _whole_run(log: TrainingLog, reading: LogReading) -> TrainingLog:
    """Without step times: the log with the mean of the whole run, if printed."""
    runtime, steps = reading.facts.get("runtime_s"), reading.facts.get("steps")
    if not runtime or not steps:
        return replace(log, notes=(*log.notes, "the log prints no times of its steps"))
    mean_s = (runtime - reading.facts.get("evaluation_s", 0.0)) / steps
    return replace(
        log,
        steady_step_time_s=finite(mean_s if mean_s > 0 else math.nan),
        from_="whole run",
        steps=round(steps),
        notes=(*log.notes, "no times of steps: the mean of the whole run, warm-up and saves in it"),
    )


def _without_steps(reading: LogReading, path: str) -> TrainingLog:
    failed = LogEvent.FAILURE in reading.marks
    why = "the run failed before its first step" if failed else "no line of a known form"
    log = TrainingLog(
        path=path,
        framework=None,
        steady_step_time_s=None,
        steps=0,
        memory=_memory(reading),
        devices=_count(reading.facts.get("devices")),
        seq_len=_count(reading.facts.get("seq_len")),
        global_batch=_count(reading.facts.get("global_batch")),
        truncated=reading.truncated or bool(reading.damaged),
        ended="failed" if failed else "open",
        notes=(f"{reading.lines} lines, none of a step: {why}",),
    )
    return _whole_run(log, reading) if "runtime_s" in reading.facts else log
