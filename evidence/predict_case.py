"""`predict_cases`: device-hours and days of published training runs, from their descriptions.

    device-hours = steps x seconds per step x devices / productive time x contingency

Steps are tokens divided by tokens per step. The fitted model predicts the step time of the row
(predict_runs.py), `time_to_train` the rest. If the published hours count steady steps only, the
last two factors are 1; the spread of runs around their prediction (`contingency_spread`) remains.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from evidence.case_run import CaseRun, by_parameters, case_run, initial_layout
from evidence.published_case import PublishedCase
from profiles.errors import ShardwrightError
from shardwright.runs.predict_runs import PredictedRow, predict_runs
from shardwright.runs.run import PublishedRun
from simulator.goodput.reliability_inputs import DEFAULT, ReliabilityInputs
from simulator.goodput.time_to_train import TimeToTrain, time_to_train
from simulator.training_run.run.training_run import TrainingRun
from simulator.values.prediction import Interval, Prediction

_DAY_S = 86400.0
OK = "ok"
Settle = Callable[[TrainingRun, PublishedRun], TrainingRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedCase:
    """Prediction of a published training run; None for an unsupported one.

    status    `ok`, or `unsupported: ` and the reason;  defaults  assumptions as text
    num_devices   of the case; `run` may have fewer
    run       the completed run, with its prediction;  steps  of the whole run
    whole     None if the case counts steady steps only
    """

    id: str
    days: Interval | None = None
    device_hours: Interval | None = None
    status: str = OK
    defaults: tuple[str, ...] = ()
    num_devices: int = 0
    run: TrainingRun | None = None
    prediction: Prediction | None = None
    steps: float = 0.0
    whole: TimeToTrain | None = None

    @property
    def step_time_s(self) -> Interval | None:
        """Step time of the run scaled to the case's number of devices."""
        if self.run is None or self.prediction is None:
            return None
        return on_devices(self.prediction, self.run, self.num_devices)


def predict_cases(
    cases: Sequence[PublishedCase],
    *,
    settle: Settle | None = None,
    inputs: ReliabilityInputs = DEFAULT,
) -> tuple[PredictedCase, ...]:
    """A prediction per case, in order.

    settle  returns the completed run with a layout, given that run and its row, if the row has no
            layout; None keeps the reader's defaults
    """
    return tuple(_predicted(case, settle, inputs) for case in cases)


def _predicted(
    case: PublishedCase, settle: Settle | None, inputs: ReliabilityInputs
) -> PredictedCase:
    assumed: list[str] = []
    try:
        case_row = case_run(case, assumed)
        devices = case_row.run.num_devices or 1
        made = _on_fewer(case_row, settle, assumed)
        simpler = by_parameters(case, assumed) if made.run is None else None
        if simpler is not None:
            # Inconsistent model figures are replaced by those of the nearest known model.
            case_row = case_run(simpler, assumed)
            devices = case_row.run.num_devices or 1
            made = _on_fewer(case_row, settle, assumed)
    except ShardwrightError as error:
        return PredictedCase(
            id=case.run.id, status=f"unsupported: {error}", defaults=tuple(assumed)
        )
    run = made.run
    if run is None or made.prediction is None:
        return PredictedCase(
            id=case.run.id, status=f"unsupported: {made.why_not}", defaults=tuple(assumed)
        )
    step = on_devices(made.prediction, run, devices)
    steps = case_row.tokens / (run.global_batch * run.seq_len)
    defaults = [*assumed, *run.defaults]
    counted = inputs
    if not case.counts_downtime:
        counted = replace(inputs.sure(), contingency_spread=inputs.contingency_spread)
        defaults.append("hours of steady steps without downtime, as counted by the source")
    whole = time_to_train(step, steps, devices, run.device, run.model.parameters, counted)
    days = whole.days if case.counts_downtime else _steady_days(whole, step, steps)
    return PredictedCase(
        id=case.run.id,
        days=days,
        device_hours=days.scaled(24.0 * devices),
        defaults=tuple(defaults),
        num_devices=devices,
        run=run,
        prediction=made.prediction,
        steps=steps,
        whole=whole if case.counts_downtime else None,
    )


def _on_fewer(case_row: CaseRun, settle: Settle | None, assumed: list[str]) -> PredictedRow:
    """The step on the case's devices. Without a layout for them: on the largest smaller power of
    two with a layout, down to 1/16. Device-hours hardly depend on it."""
    devices = case_row.run.num_devices or 1
    first = made = _step_of(case_row, settle)
    fewer = 2 ** int(math.log2(max(1, devices - 1)))
    while made.run is None and 16 * fewer >= devices > fewer >= 1:
        made = _step_of(replace(case_row, run=replace(case_row.run, num_devices=fewer)), settle)
        _on(made, devices, assumed)
        fewer //= 2
    start = initial_layout(case_row) if made.run is None else None
    if start is not None:
        # The reader can complete this layout; the search keeps only the printed values.
        made = _step_of(case_row, settle, start)
        _on(made, devices, assumed)
    return first if made.run is None else made


def _step_of(
    case_row: CaseRun, settle: Settle | None, start: PublishedRun | None = None
) -> PredictedRow:
    altered = None if settle is None else lambda run: settle(run, case_row.run)
    (made,) = predict_runs([start or case_row.run], altered=altered)
    return made


def _on(made: PredictedRow, devices: int, assumed: list[str]) -> None:
    """Appends an assumption if the run has other devices than the case."""
    if made.run is not None and made.run.degrees.num_devices != devices:
        assumed.append(
            f"a layout of {made.run.degrees.num_devices} devices, as there is none of {devices}"
        )


def on_devices(made: Prediction, run: TrainingRun, devices: int) -> Interval:
    """Step time of a run scaled to `devices` devices, with equal time x devices."""
    return made.step_time_s.scaled(run.degrees.num_devices / devices)


def _steady_days(whole: TimeToTrain, step: Interval, steps: float) -> Interval:
    """Days of steady steps, with the relative interval of the whole run."""
    days = steps * step.value / _DAY_S
    low, high = whole.days.low / whole.days.value, whole.days.high / whole.days.value
    return Interval(value=days, low=days * low, high=days * high)
