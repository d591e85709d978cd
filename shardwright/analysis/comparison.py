"""Comparison of a plan's prediction with a run, and with the machine's drift.

Drift is the change of the machine's speed between its profile and a run.

A shared machine changes its speed within minutes, which no prediction from its profile can include.
Reference kernels timed in both reveal the change. They explain an error, but do not correct it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from profiles.document import content_hash, encode
from profiles.errors import DocumentError, MismatchError
from profiles.units import format_percent
from shardwright.analysis.breakdown import (
    critical_rank,
    measured_bubble_s,
    measured_parts,
    predicted_parts,
)
from simulator.values.measurement import Measurement
from simulator.values.plan import Plan
from simulator.values.plan_file import PlanFile
from simulator.values.prediction import Part, Prediction

# Largest allowed change by kernel. `layers` resembles the workload: on a quiet 2-core EPYC virtual
# machine, 8 of 14 readings within 40 s were within 3 % of their median, all within 8 %. 14 readings
# of `memory` were between -14 % and +30 %, so it has no limit (2026-11-21).
LIMITS = {"layers": 0.03}

# Change at which a kernel without a limit is mentioned: more than the spread of `memory` above.
_NOTICED = 0.3

_WORDS = {"matmul": "matmul speed", "memory": "memory speed", "layers": "speed on two layers"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Seconds of one reference kernel in the profile, and before, between and after a run's steps.

    during_s  None if not timed between the steps
    """

    kernel: str
    profile_s: float
    before_s: float
    after_s: float
    during_s: float | None = None

    @property
    def speed(self) -> float:
        """Speed relative to the profile, between the run's steps; otherwise the mean of before and
        after."""
        return self.profile_s / (self.during_s or (self.before_s + self.after_s) / 2)

    @property
    def disturbed(self) -> bool:
        """Whether the change exceeds the kernel's limit."""
        return abs(self.speed - 1) > LIMITS.get(self.kernel, float("inf"))


def drifts_of(prediction: Prediction, measured: Measurement) -> tuple[Drift, ...]:
    """One entry per reference kernel timed in both the profile and the run."""
    before = {point.kernel: point.time_s for point in measured.references_before}
    during = {point.kernel: point.time_s for point in measured.references_during}
    after = {point.kernel: point.time_s for point in measured.references_after}
    return tuple(
        Drift(
            kernel=point.kernel,
            profile_s=point.time_s,
            before_s=before[point.kernel],
            after_s=after[point.kernel],
            during_s=during.get(point.kernel),
        )
        for point in prediction.references
        if before.get(point.kernel, 0.0) > 0 and after.get(point.kernel, 0.0) > 0
    )


def drift_sentence(drifts: tuple[Drift, ...]) -> str:
    """The change of the machine's speed as text, or "" without a common reference kernel."""
    if not drifts:
        return ""
    speeds = [f"{_WORDS.get(drift.kernel, drift.kernel)} {drift.speed:.2f}" for drift in drifts]
    changed = f"Against the profile, during the run: {', '.join(speeds)}"
    if any(drift.disturbed for drift in drifts):
        return (
            f"{changed}: the machine's speed changed during the run, so these errors include that "
            "drift. Profile and run again."
        )
    moved = [_WORDS.get(d.kernel, d.kernel) for d in drifts if abs(d.speed - 1) > _NOTICED]
    if moved:
        return (
            f"{changed}: layers ran as fast as when profiled, {' and '.join(moved)} changed; "
            "errors of parts that depend on it may include that."
        )
    return f"{changed}: unchanged."


# Share of the measured step. If parts are off by more than this in both directions, their errors
# cancel, and a step inside its interval proves little. Assumed: the allowed error of a step.
CANCELLING = 0.06
# Relative error in CPU time of forward and backward passes above which a profile is outdated: runs
# within minutes of their profile were within 6 % (make demo).
OUTDATED = 0.06
_PASSES = "forward and backward"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One quantity, predicted and measured, in `unit`: `s` or `bytes`.

    measured_cpu   CPU time, None if not meaningful
    predicted_cpu  CPU time in the prediction, None if all of it is CPU time
    inside  whether the measurement is in the predicted interval, None without an interval
    """

    name: str
    unit: str
    predicted: float
    measured: float
    measured_cpu: float | None = None
    predicted_cpu: float | None = None
    inside: bool | None = None

    @property
    def error(self) -> float:
        """(predicted - measured) / measured, by wall time; 0 without a measurement."""
        return (self.predicted - self.measured) / self.measured if self.measured else 0.0

    @property
    def cpu_error(self) -> float | None:
        """(predicted - measured) / measured, by CPU time; None without CPU times."""
        if not self.measured_cpu:
            return None
        predicted = self.predicted if self.predicted_cpu is None else self.predicted_cpu
        return (predicted - self.measured_cpu) / self.measured_cpu


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A prediction and its measurement; the first row is the step.

    drifts         change of the machine's speed between profile and run; rows are not corrected
    micro_batches  per step: number of forwards and backwards of each stage
    critical_rank  the rank predicted to end last; the rows `step: ...` are parts of its step
    """

    model: str
    cluster: str
    critical_rank: int
    rows: tuple[Row, ...]
    undisturbed_steps: int
    steps: int
    gradients_passed: bool | None
    drifts: tuple[Drift, ...] = ()
    micro_batches: int = 1

    @property
    def step(self) -> Row:
        """The row of the whole step."""
        return self.rows[0]

    @property
    def has_cpu_times(self) -> bool:
        """Whether the ranks computed on CPUs, so that their CPU time is meaningful."""
        return any(row.measured_cpu is not None for row in self.rows)

    @property
    def cancelling(self) -> tuple[Row, Row] | None:
        """The parts with the largest positive and negative error, if these cancel; otherwise None.

        They cancel if the step is inside its interval, but each error exceeds `CANCELLING` of the
        step. Parts are those of a step, and a stage's forward and backward pass, whose seconds are
        per micro-batch and count `micro_batches` times.
        """
        if not self.step.inside or not self.step.measured:
            return None
        parts = [row for row in self.rows if row.name.startswith(("step: ", "stage "))]

        def off_s(row: Row) -> float:
            times = self.micro_batches if row.name.startswith("stage ") else 1
            return times * (row.predicted - row.measured)

        slow, fast = max(parts, key=off_s, default=None), min(parts, key=off_s, default=None)
        limit = CANCELLING * self.step.measured
        if slow is None or fast is None or off_s(slow) < limit or off_s(fast) > -limit:
            return None
        return slow, fast


def compare_run(answer: PlanFile, measured: Measurement) -> Comparison:
    """Comparison of the prediction in a plan file with a run of its plan.

    Raises DocumentError for a plan file without prediction, MismatchError for a run of another
    plan.
    """
    plan, prediction = answer.plan, answer.prediction
    if plan is None or prediction is None:
        raise DocumentError("the plan file has no prediction to compare with; plan again")
    if content_hash(plan) != measured.plan_hash:
        raise MismatchError(
            f"the run is of another plan: its hash is {measured.plan_hash}, the plan's is "
            f"{content_hash(plan)}; run this plan, or pass the plan that was run"
        )
    rows = [_step_row(prediction, measured)]
    rows += _part_rows(plan, prediction, measured)
    rows += _stage_rows(prediction, measured)
    rows += _rank_rows(prediction, measured)
    return Comparison(
        model=plan.model,
        cluster=plan.cluster,
        critical_rank=critical_rank(prediction),
        rows=tuple(rows),
        undisturbed_steps=sum(not step.disturbed for step in measured.steps),
        steps=len(measured.steps),
        gradients_passed=measured.gradient_check.passed if measured.gradient_check else None,
        drifts=drifts_of(prediction, measured),
        micro_batches=plan.num_microbatches,
    )


def outdated_profile(comparison: Comparison) -> str:
    """Why the profile is outdated, or "".

    A shared machine changes its speed within minutes. Then the CPU time of forward and backward
    passes differs from the profile."""
    rows = (row for row in comparison.rows if row.name == f"step: {_PASSES}")
    error = next((row.cpu_error for row in rows), None)
    if error is None or abs(error) <= OUTDATED:
        return ""
    slower = "slower" if error < 0 else "faster"
    return f"{_PASSES} ran {format_percent(abs(error))} {slower} than profiled, in CPU time"


def _step_row(prediction: Prediction, measured: Measurement) -> Row:
    step = prediction.step_time_s
    return Row(
        name="step",
        unit="s",
        predicted=step.value,
        measured=measured.step_wall_s,
        inside=step.low <= measured.step_wall_s <= step.high,
    )


def _part_rows(plan: Plan, prediction: Prediction, measured: Measurement) -> list[Row]:
    """The parts of the critical rank's step that a run can measure separately.

    Recomputation, launches and communication inside blocks are in `forward and backward` on both
    sides. The run's bubble is the idle time of the plan's schedule with the measured stage times
    (breakdown.py). The rest of its waiting is compared with the predicted sends.
    """
    rank = critical_rank(prediction)
    run = {parts.rank: parts for parts in measured_parts(plan, measured)}.get(rank)
    expected = {parts.rank: parts for parts in predicted_parts(plan, prediction)}.get(rank)
    if run is None or expected is None:
        return []
    cpu_s = plan.num_microbatches * sum(
        s.forward_cpu_s + s.backward_cpu_s for s in measured.stages if s.rank == rank
    )
    runtime_s = plan.num_microbatches * sum(
        s.runtime_s for s in prediction.stages if s.rank == rank
    )
    rows = [
        replace(
            _seconds(_PASSES, expected.busy_s, run.busy_s, cpu_s if _on_cpus(measured) else None),
            predicted_cpu=expected.busy_s - runtime_s if runtime_s else None,
        )
    ]
    bubble_s = measured_bubble_s(plan, measured, run) if plan.degrees.pp > 1 else None
    if bubble_s is not None:
        expected_s = min(prediction.seconds.get(Part.BUBBLE, 0.0), expected.waiting_s)
        rest_s = expected.waiting_s - expected_s
        rows.append(_seconds("bubble", expected_s, bubble_s))
        rows.append(_seconds("sends and other waiting", rest_s, run.waiting_s - bubble_s))
    else:
        rows.append(_seconds("waiting", expected.waiting_s, run.waiting_s))
    if expected.gradient_exchange_s > 0:
        rows.append(
            _seconds("gradient exchange", expected.gradient_exchange_s, run.gradient_exchange_s)
        )
    rows.append(_seconds("optimizer", expected.optimizer_s, run.optimizer_s))
    return rows


def _on_cpus(measured: Measurement) -> bool:
    """Whether the ranks computed on CPUs; otherwise CPU time is the host's launch time."""
    return measured.backend == "gloo"


def _seconds(
    part: str, predicted_s: float, measured_s: float, measured_cpu_s: float | None = None
) -> Row:
    return Row(
        name=f"step: {part}",
        unit="s",
        predicted=predicted_s,
        measured=measured_s,
        measured_cpu=measured_cpu_s,
    )


def _stage_rows(prediction: Prediction, measured: Measurement) -> list[Row]:
    samples = {sample.stage: sample for sample in measured.stages}
    rows = []
    for stage in prediction.stages:
        sample = samples.get(stage.stage)
        if sample is None:
            continue
        for name in ("forward", "backward"):
            rows.append(
                Row(
                    name=f"stage {stage.stage} {name}",
                    unit="s",
                    predicted=getattr(stage, f"{name}_s"),
                    measured=getattr(sample, f"{name}_wall_s"),
                    measured_cpu=getattr(sample, f"{name}_cpu_s") if _on_cpus(measured) else None,
                )
            )
    return rows


def _rank_rows(prediction: Prediction, measured: Measurement) -> list[Row]:
    """Optimizer, gradient exchange and peak memory of each pipeline rank's first process."""
    samples = {sample.rank: sample for sample in measured.ranks}
    tails = {stage.rank: stage for stage in prediction.stages}
    rows = []
    for memory in prediction.ranks:
        sample, tail = samples.get(memory.rank), tails.get(memory.rank)
        if sample is None or tail is None:
            continue
        values = [("optimizer", "s", tail.optimizer_s, sample.optimizer_s)]
        if tail.data_parallel_s > 0:
            values.append(("gradient exchange", "s", tail.data_parallel_s, sample.data_parallel_s))
        if sample.peak_memory_bytes > 0:
            values.append(("peak memory", "bytes", memory.peak_bytes, sample.peak_memory_bytes))
        rows += [
            Row(name=f"rank {memory.rank} {name}", unit=unit, predicted=expected, measured=taken)
            for name, unit, expected, taken in values
        ]
    return rows


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain values for JSON; each row has its numbers and two errors.

    `error` is by wall time, `cpu_error` by CPU time; each is null without a measurement.
    `measured_cpu` and `inside` are null if not meaningful.
    """
    rows = [
        {
            **dict.fromkeys(("measured_cpu", "predicted_cpu", "inside")),
            **encode(row),
            "error": row.error if row.measured else None,
            "cpu_error": row.cpu_error,
        }
        for row in comparison.rows
    ]
    drifts = [
        {**encode(drift), "speed": drift.speed, "disturbed": drift.disturbed}
        for drift in comparison.drifts
    ]
    return {"gradients_passed": None, **encode(comparison), "rows": rows, "drifts": drifts}
