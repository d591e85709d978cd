"""`TrainingLog`: the values of a training log, `null` for missing ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwright_frameworks.plain_values import plain_values


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSpread:
    """Distribution of the steady steps in seconds.

    p10_s, p90_s   a tenth of the steps is faster, a tenth slower
    drift          last third over the first, minus 1
    """

    p10_s: float | None = None
    median_s: float | None = None
    p90_s: float | None = None
    drift: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogMemory:
    """The highest printed memory of a device; `kind` is `allocated` (by tensors), `reserved` (by
    the allocator) or `device` (reported by the device)."""

    peak_gib: float
    kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogAttempt:
    """Steps from a start to an end."""

    first_step: int
    last_step: int
    resumed: bool
    steady_step_time_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowRank:
    """A rank whose steps take longer than the ranks' median, by this share."""

    rank: str
    over_median: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLog:
    """The values of a log; None for missing ones.

    framework           megatron-lm, megatron-deepspeed, megatron-bridge, gpt-neox, torchtitan,
                        deepspeed, transformers, nanotron, maxtext, nemo, lightning, composer, olmo,
                        mlperf
    steady_step_time_s  seconds per optimizer step without warm-up, saves, evaluations, stalls
    recent_step_time_s  seconds per step of the last lines, including slow ones
    steady_lines        number of lines used for the steady step
    steady_share        share of the lines after the warm-up
    from_               source of the times: `printed` times, the `clock` of times of day or of a
                        bar, a bar's running `rate`, or the mean of the `whole run`
    steps               number of distinct optimizer steps covered by its lines
    restarts            number of restarts in the file;  attempts  each of them
    resumed             whether it begins after step 1, or from a checkpoint
    stalls              number of steps or gaps of several steps' time, without a reason in the log
    pauses              number of checkpoints and evaluations that take as long
    tokens_per_s        of all devices or of one: `tokens_per_s_of` is `job` or `device`
    loss                last loss;  first_loss  first loss
    ended               `finished`, `failed` or `open`;  truncated  its last line has no end
    parts               seconds of parts of a step, by the log's names
    not_steady_s        seconds in addition to steady steps in warm_up, stalls and pauses
    notes               remarks for the reader, such as why values are missing
    """

    path: str
    framework: str | None
    steady_step_time_s: float | None
    recent_step_time_s: float | None = None
    steady_lines: int = 0
    steady_share: float = 0.0
    from_: str = ""
    steps: int | None = None
    restarts: int | None = None
    stalls: int | None = None
    pauses: int | None = None
    resumed: bool | None = None
    tokens_per_s: float | None = None
    tokens_per_s_of: str | None = None
    memory: LogMemory | None = None
    loss: float | None = None
    first_loss: float | None = None
    tflop_per_s: float | None = None
    spread: LogSpread = LogSpread()
    warm_up_steps: int | None = None
    global_batch: int | None = None
    seq_len: int | None = None
    devices: int | None = None
    truncated: bool = False
    ended: str = "open"
    attempts: tuple[LogAttempt, ...] = ()
    slow_ranks: tuple[SlowRank, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)
    not_steady_s: Mapping[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


_KEYS = {
    "path": "file",
    "from_": "read_from",
    "tflop_per_s": "tflop_per_s_per_device",
    "parts": "parts_s",
}


def log_data(log: TrainingLog) -> dict[str, Any]:
    """The log as plain values for JSON: every key is present, `null` if unknown."""
    return {**plain_values(log, **_KEYS), "read_from": log.from_ or None}
