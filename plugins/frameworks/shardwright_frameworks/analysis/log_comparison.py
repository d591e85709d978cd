"""Comparison of a prediction with a log of the run, and by part with a profile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.errors import InputError, MismatchError
from profiles.units import format_percent, format_time
from shardwright.requests.planned_step import PlannedStep
from shardwright_frameworks.logs.training_log import TrainingLog
from shardwright_frameworks.traces.opened_log import open_log
from shardwright_frameworks.traces.trace_time import TraceTime
from simulator.values.prediction import Interval, Part, PartGroup

# Relative changes reported as reasons: drift of step times, lost time, difference of the inputs.
_DRIFT, _LOST, _BATCH = 0.03, 0.05, 0.01
# Steady steps needed to decide whether the step is in its interval.
FEWEST_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRow:
    """Seconds per step of a part, predicted and measured by a profile."""

    name: str
    predicted_s: float
    measured_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogComparison:
    """Predicted and logged step.

    parts         of a profile's critical device; () without a profile
    memory_gib    predicted peak, and the peak printed in the log; None without one
    reasons       for a difference, from the log, likeliest first
    """

    planned: PlannedStep
    measured_s: float
    log: TrainingLog
    parts: tuple[PartRow, ...] = ()
    memory_gib: tuple[Interval, float] | None = None
    reasons: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return self.planned.title

    @property
    def step_time_s(self) -> Interval:
        return self.planned.step_time_s

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.step_time_s.value / self.measured_s - 1.0

    @property
    def inside(self) -> bool:
        """Whether the steady step is in the interval."""
        return self.step_time_s.low <= self.measured_s <= self.step_time_s.high


def compare_log(
    planned: PlannedStep,
    log: TrainingLog,
    traces: Sequence[TraceTime] = (),
    *,
    recent: bool = False,
) -> LogComparison:
    """Comparison of the prediction and the log.

    recent  use the last steps instead of the whole log's steady step

    Raises MismatchError for a log without step times.
    """
    if log.steady_step_time_s is None:
        raise MismatchError(
            f"{log.path} has no step times ({'; '.join(log.notes) or 'unknown reason'}); use a log "
            "with times of its steps"
        )
    measured_s = log.steady_step_time_s
    if recent and log.recent_step_time_s is not None:
        measured_s = log.recent_step_time_s
    parts = _parts(planned, traces)
    memory = None
    if log.memory is not None and planned.peak_memory_gib is not None:
        memory = (planned.peak_memory_gib, log.memory.peak_gib)
    return LogComparison(
        planned=planned,
        measured_s=measured_s,
        log=log,
        parts=parts,
        memory_gib=memory,
        reasons=_reasons(planned, log, measured_s, parts),
    )


def compare_logs(planned: PlannedStep, paths: Sequence[str | Path]) -> LogComparison:
    """Comparison of a prediction with the files of a run: one training log, and profiles.

    Raises InputError unless there is exactly one training log, and the errors of open_log and
    compare_log.
    """
    logs = [open_log(path) for path in paths]
    training = [each for each in logs if isinstance(each, TrainingLog)]
    if len(training) != 1:
        raise InputError(
            f"{len(training)} training logs are given; give one, with profiles of the same run"
        )
    traces = [each for each in logs if isinstance(each, TraceTime)]
    return compare_log(planned, training[0], traces)


def _parts(planned: PlannedStep, traces: Sequence[TraceTime]) -> tuple[PartRow, ...]:
    """Parts of the critical device: the one with the least waiting, which delays the others."""
    device = next((each.critical for each in traces if each.critical is not None), None)
    if device is None or not planned.parts:
        return ()
    predicted = planned.grouped()
    measured = {
        PartGroup.COMPUTE: device.compute_s,
        PartGroup.COMMUNICATION: device.exposed_communication_s,
        PartGroup.IDLE: device.idle_s + device.copy_s,
    }
    return tuple(
        PartRow(name=name.value, predicted_s=predicted[name], measured_s=measured[name])
        for name in predicted
    )


def _reasons(
    planned: PlannedStep, log: TrainingLog, measured_s: float, parts: Sequence[PartRow]
) -> tuple[str, ...]:
    """Reasons in the log for a difference, likeliest first."""
    reasons = []
    for name, expected, seen in (
        ("batch", planned.global_batch, log.global_batch),
        ("sequence", planned.seq_len, log.seq_len),
        ("devices", planned.num_devices, log.devices),
    ):
        if expected and seen and abs(seen / expected - 1.0) > _BATCH:
            reasons.append(f"another {name}: the log has {seen}, the plan {expected}")
    off_s = measured_s - planned.step_time_s.value
    grown = [(abs(row.measured_s - row.predicted_s), row) for row in parts]
    for _, row in sorted(grown, key=lambda pair: -pair[0]):
        gap_s = row.measured_s - row.predicted_s
        if gap_s * off_s > 0 and abs(gap_s) > 0.25 * abs(off_s):
            reasons.append(
                f"{row.name}: {format_time(row.measured_s)} in the profile, "
                f"{format_time(row.predicted_s)} predicted"
            )
    if log.slow_ranks:
        rank = log.slow_ranks[0]
        over = format_percent(rank.over_median)
        reasons.append(f"rank {rank.rank} is {over} slower than the rest")
    steady_s = log.steady_step_time_s
    if steady_s is not None and measured_s > (1.0 + _LOST) * steady_s:
        reasons.append(
            f"it became slower: {format_time(measured_s)} now, {format_time(steady_s)} over the "
            "whole log"
        )
    drift = log.spread.drift
    if drift is not None and abs(drift) > _DRIFT:
        word = "slower" if drift > 0 else "faster"
        reasons.append(f"steps get {word}: the last third by {format_percent(abs(drift))}")
    reasons += _from_parts(planned, log)
    return tuple(reasons)


def _from_parts(planned: PlannedStep, log: TrainingLog) -> list[str]:
    """Reasons from the log's timers of gradient exchange and optimizer."""
    names = {
        Part.REDUCE: (
            "all-grads-sync",
            "grads-reduce-scatter",
            "bwd_allreduce",
            "backward_allreduce",
        ),
        Part.OPTIMIZER: ("optimizer", "step"),
    }
    reasons = []
    for part, timers in names.items():
        expected_s = planned.parts.get(part)
        seen_s = next((log.parts[name] for name in timers if name in log.parts), None)
        if expected_s is None or seen_s is None:
            continue
        if seen_s - expected_s > _LOST * planned.step_time_s.value:
            name = "gradient exchange" if part is Part.REDUCE else "optimizer"
            reasons.append(
                f"{name}: {format_time(seen_s)} by the log's timers, {format_time(expected_s)} "
                "predicted"
            )
    return reasons


def likely_part(compared: LogComparison) -> str:
    """The likeliest reason for a run outside its interval, in one line."""
    if compared.reasons:
        return compared.reasons[0]
    if compared.measured_s > compared.step_time_s.high:
        return (
            "the log has no reason; profile some steps (torch profiler or nsys) and compare with "
            "--log TRACE"
        )
    return "faster than the interval: check that batch, sequence and model match the plan"


def log_comparison_data(compared: LogComparison) -> dict[str, Any]:
    """The comparison as plain values for JSON."""
    spread = compared.log.spread
    return {
        "plan": compared.title,
        "log": compared.log.path,
        "predicted_step_time_s": compared.step_time_s.value,
        "predicted_low_s": compared.step_time_s.low,
        "predicted_high_s": compared.step_time_s.high,
        "steady_step_time_s": compared.measured_s,
        "error": compared.error,
        "inside": compared.inside,
        "spread": {"p10_s": spread.p10_s, "p90_s": spread.p90_s, "drift": spread.drift},
        "parts": [
            {"name": row.name, "predicted_s": row.predicted_s, "measured_s": row.measured_s}
            for row in compared.parts
        ],
        "memory_gib": None
        if compared.memory_gib is None
        else {"predicted": compared.memory_gib[0].value, "measured": compared.memory_gib[1]},
        "reasons": list(compared.reasons),
    }
