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
from simulator.training_run.explain.predict_runs import RunPrediction, predict_runs
from simulator.training_run.run.training_run import TrainingRun
from simulator.values.prediction import Interval

_DAY_S = 86400.0
OK = "ok"
Settle = Callable[[TrainingRun, PublishedRun], TrainingRun]


@dataclass(frozen=True, slots=True, kw_only=True)
class CasePrediction:
    """What is predicted of a whole run; None where nothing is.

    status    `ok`, or `unsupported: ` and why;  defaults  what was assumed, in words
    num_devices   of the case; `run` may have fewer
    run       as it was completed;  step_time_s  its step;  steps  of the whole run
    whole     None for steady hours
    """

    id: str
    days: Interval | None = None
    device_hours: Interval | None = None
    status: str = OK
    defaults: tuple[str, ...] = ()
    num_devices: int = 0
    run: TrainingRun | None = None
    step_time_s: Interval | None = None
    steps: float = 0.0
    whole: TimeToTrain | None = None


def predict_cases(
    cases: Sequence[PublishedCase],
    *,
    settle: Settle | None = None,
    inputs: ReliabilityInputs = DEFAULT,
) -> tuple[CasePrediction, ...]:
    """A prediction per case, in their order.

    settle  the layout of a completed run and the row that it was completed from, where the row
            prints none; None leaves the reader's own answers
    """
    return tuple(_predicted(case, settle, inputs) for case in cases)


def _predicted(
    case: PublishedCase, settle: Settle | None, inputs: ReliabilityInputs
) -> CasePrediction:
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
        return CasePrediction(id=case.run.id, status=f"unsupported: {error}", defaults=tuple(said))
    run, step = made.run, made.step_time_s
    if run is None or step is None:
        return CasePrediction(
            id=case.run.id, status=f"unsupported: {made.why_not}", defaults=tuple(said)
        )
    steps = asked.tokens / (run.global_batch * run.seq_len)
    assumed = [*said, *run.defaults]
    counted = inputs
    if not case.counts_downtime:
        counted = replace(inputs.sure(), contingency_spread=inputs.contingency_spread)
        assumed.append("hours of the steady step, as the source counts them: no downtime in them")
    whole = time_to_train(step, steps, devices, run.device, run.model.parameters, counted)
    days = whole.days if case.counts_downtime else _steady_days(whole, step, steps)
    return CasePrediction(
        id=case.run.id,
        days=days,
        device_hours=days.scaled(24.0 * devices),
        defaults=tuple(assumed),
        num_devices=devices,
        run=run,
        step_time_s=step,
        steps=steps,
        whole=whole if case.counts_downtime else None,
    )


def _on_fewer(asked: CaseRun, settle: Settle | None, said: list[str]) -> RunPrediction:
    """The step on the case's devices, or where no layout is found on the largest power of two
    below them that has one, down to a sixteenth: device-hours hardly depend on it."""
    devices = asked.run.num_devices or 1
    first = made = _step_of(asked, settle)
    fewer = 2 ** int(math.log2(max(1, devices - 1)))
    while made.run is None and 16 * fewer >= devices > fewer >= 1:
        made = _step_of(replace(asked, run=replace(asked.run, num_devices=fewer)), settle)
        made = _on(made, devices, said)
        fewer //= 2
    begin = begun(asked) if made.run is None else None
    if begin is not None:
        # The search then starts from what the reader can complete, and keeps only what is printed.
        made = _step_of(asked, settle, begin)
        made = _on(made, devices, said)
    return first if made.run is None else made


def _step_of(
    asked: CaseRun, settle: Settle | None, begin: PublishedRun | None = None
) -> RunPrediction:
    altered = None if settle is None else lambda run: settle(run, asked.run)
    (made,) = predict_runs([begin or asked.run], altered=altered)
    return made


def _on(made: RunPrediction, devices: int, said: list[str]) -> RunPrediction:
    """The step of a run on other devices than its own, as long as all work equally well."""
    if made.run is None or made.step_time_s is None or made.run.degrees.num_devices == devices:
        return made
    said.append(
        f"a layout of {made.run.degrees.num_devices} devices, none of {devices} being found"
    )
    return replace(
        made, step_time_s=made.step_time_s.scaled(made.run.degrees.num_devices / devices)
    )


def _steady_days(whole: TimeToTrain, step: Interval, steps: float) -> Interval:
    """The days of steady steps, as far apart as those of the whole run."""
    days = steps * step.value / _DAY_S
    low, high = whole.days.low / whole.days.value, whole.days.high / whole.days.value
    return Interval(value=days, low=days * low, high=days * high)
