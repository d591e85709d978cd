"""`predict_cases`: device-hours and days of whole published runs, from what is said of them.

    device-hours = steps x seconds per step x devices / productive time x contingency

Steps are tokens over tokens per step; a step takes what the fitted model predicts of its row
(predict_runs.py), the rest is `time_to_train`. Where the published hours are those of the steady
step alone, nothing is lost and the last two factors are 1; the run's own difference from a
predicted step (`contingency_spread`) stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from profiles.errors import ShardwrightError
from profiles.published.case import PublishedCase
from profiles.published.run import PublishedRun
from simulator.goodput.reliability_inputs import DEFAULT, ReliabilityInputs
from simulator.goodput.time_to_train import TimeToTrain, time_to_train
from simulator.training_run.cases.case_run import CaseRun, begun, by_parameters, case_run
from simulator.training_run.explain.predict_runs import PredictedRow, predict_runs
from simulator.training_run.run.training_run import TrainingRun
from simulator.values.prediction import Interval, Prediction

_DAY_S = 86400.0
OK = "ok"
Settle = Callable[[TrainingRun, PublishedRun], TrainingRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedCase:
    """What is predicted of a whole run; None where nothing is.

    status    `ok`, or `unsupported: ` and why;  defaults  what was assumed, in words
    num_devices   of the case; `run` may have fewer
    run       as it was completed, with its prediction;  steps  of the whole run
    whole     None for steady hours
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
        """The run's step on the case's devices, as long as all work equally well."""
        if self.run is None or self.prediction is None:
            return None
        return on_devices(self.prediction, self.run, self.num_devices)


def predict_cases(
    cases: Sequence[PublishedCase],
    *,
    settle: Settle | None = None,
    inputs: ReliabilityInputs = DEFAULT,
) -> tuple[PredictedCase, ...]:
    """A prediction per case, in their order.

    settle  the layout of a completed run and the row that it was completed from, where the row
            prints none; None leaves the reader's own answers
    """
    return tuple(_predicted(case, settle, inputs) for case in cases)


def _predicted(
    case: PublishedCase, settle: Settle | None, inputs: ReliabilityInputs
) -> PredictedCase:
    said: list[str] = []
    try:
        asked = case_run(case, said)
        devices = asked.run.num_devices or 1
        made = _on_fewer(asked, settle, said)
        simpler = by_parameters(case, said) if made.run is None else None
        if simpler is not None:
            # Figures that make no model are left aside for those of the nearest known one.
            asked = case_run(simpler, said)
            devices = asked.run.num_devices or 1
            made = _on_fewer(asked, settle, said)
    except ShardwrightError as error:
        return PredictedCase(id=case.run.id, status=f"unsupported: {error}", defaults=tuple(said))
    run = made.run
    if run is None or made.prediction is None:
        return PredictedCase(
            id=case.run.id, status=f"unsupported: {made.why_not}", defaults=tuple(said)
        )
    step = on_devices(made.prediction, run, devices)
    steps = asked.tokens / (run.global_batch * run.seq_len)
    assumed = [*said, *run.defaults]
    counted = inputs
    if not case.counts_downtime:
        counted = replace(inputs.sure(), contingency_spread=inputs.contingency_spread)
        assumed.append("hours of the steady step, as the source counts them: no downtime in them")
    whole = time_to_train(step, steps, devices, run.device, run.model.parameters, counted)
    days = whole.days if case.counts_downtime else _steady_days(whole, step, steps)
    return PredictedCase(
        id=case.run.id,
        days=days,
        device_hours=days.scaled(24.0 * devices),
        defaults=tuple(assumed),
        num_devices=devices,
        run=run,
        prediction=made.prediction,
        steps=steps,
        whole=whole if case.counts_downtime else None,
    )


def _on_fewer(asked: CaseRun, settle: Settle | None, said: list[str]) -> PredictedRow:
    """The step on the case's devices, or where no layout is found on the largest power of two
    below them that has one, down to a sixteenth: device-hours hardly depend on it."""
    devices = asked.run.num_devices or 1
    first = made = _step_of(asked, settle)
    fewer = 2 ** int(math.log2(max(1, devices - 1)))
    while made.run is None and 16 * fewer >= devices > fewer >= 1:
        made = _step_of(replace(asked, run=replace(asked.run, num_devices=fewer)), settle)
        _on(made, devices, said)
        fewer //= 2
    begin = begun(asked) if made.run is None else None
    if begin is not None:
        # The search then starts from what the reader can complete, and keeps only what is printed.
        made = _step_of(asked, settle, begin)
        _on(made, devices, said)
    return first if made.run is None else made


def _step_of(
    asked: CaseRun, settle: Settle | None, begin: PublishedRun | None = None
) -> PredictedRow:
    altered = None if settle is None else lambda run: settle(run, asked.run)
    (made,) = predict_runs([begin or asked.run], altered=altered)
    return made


def _on(made: PredictedRow, devices: int, said: list[str]) -> None:
    """Says that a run has other devices than the case."""
    if made.run is not None and made.run.degrees.num_devices != devices:
        said.append(
            f"a layout of {made.run.degrees.num_devices} devices, none of {devices} being found"
        )


def on_devices(made: Prediction, run: TrainingRun, devices: int) -> Interval:
    """The step of a run on so many devices, as long as all work equally well."""
    return made.step_time_s.scaled(run.degrees.num_devices / devices)


def _steady_days(whole: TimeToTrain, step: Interval, steps: float) -> Interval:
    """The days of steady steps, as far apart as those of the whole run."""
    days = steps * step.value / _DAY_S
    low, high = whole.days.low / whole.days.value, whole.days.high / whole.days.value
    return Interval(value=days, low=days * low, high=days * high)
