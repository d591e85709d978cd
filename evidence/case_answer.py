"""`answer_cases`: predictions of published training runs with energy and dollars, and their CSV."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from evidence.case_layout import fastest_layout
from evidence.predict_case import PredictedCase, predict_cases
from evidence.published_case import PublishedCase
from planner.layout.layout_choice import power_mfu
from profiles.csv_table import csv_text
from profiles.hardware.prices.price_table import price_or_relatives
from profiles.sourced import given
from profiles.units import format_usd
from simulator.energy import power_words, run_energy
from simulator.goodput.reliability_inputs import DEFAULT, ReliabilityInputs
from simulator.training_run.explain.run_prediction import mfu_of_run
from simulator.values.prediction import Interval

CASE_ANSWER_COLUMNS = (
    *("id", "days", "device_hours", "device_hours_low", "device_hours_high", "kwh", "usd"),
    *("status", "defaults"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseAnswer:
    """Prediction, kilowatt-hours and US dollars of a training run; None without a prediction, or if
    no provider offers the device. `assumed` lists the assumptions of both."""

    prediction: PredictedCase
    kwh: Interval | None = None
    usd: Interval | None = None
    assumed: tuple[str, ...] = ()


def answer_cases(
    cases: Sequence[PublishedCase],
    *,
    clock: Callable[[], float],
    inputs: ReliabilityInputs = DEFAULT,
) -> tuple[CaseAnswer, ...]:
    """An answer per case, in order. A missing layout is replaced by the fastest one; `clock` limits
    the time of searches."""
    predicted = predict_cases(
        cases, settle=lambda run, row: fastest_layout(run, row, clock=clock), inputs=inputs
    )
    return tuple(_answer(case, made) for case, made in zip(cases, predicted, strict=True))


def _answer(case: PublishedCase, made: PredictedCase) -> CaseAnswer:
    run, step, hours, days = made.run, made.step_time_s, made.device_hours, made.days
    if run is None or step is None or hours is None or days is None:
        return CaseAnswer(prediction=made)
    mfu = power_mfu(run, mfu_of_run(run, step).value, run.degrees.num_devices)
    pue = None if case.pue is None else given(case.pue, "the case")
    scope = "site" if case.counts_site else "board"
    kwh = run_energy(run.device, made.num_devices, days.scaled(24.0), mfu, pue, scope=scope)
    words = power_words(run.device, mfu, pue)
    assumed = [f"energy: {words}" if scope == "site" else f"energy of the boards only, of {words}"]
    usd = None
    if case.usd_per_device_hour is not None:
        usd = hours.scaled(case.usd_per_device_hour)
        assumed.append(f"{format_usd(case.usd_per_device_hour)} per device-hour, from the case")
    else:
        price = price_or_relatives(run.device)
        if price is None:
            assumed.append(f"no dollars: no provider's price of {run.device} is known")
        else:
            usd = hours.scaled(price.usd_per_hour)
            rate = format_usd(price.usd_per_hour)
            assumed.append(f"{rate} per device-hour: {price.words}; {price.range_words}")
    return CaseAnswer(prediction=made, kwh=kwh, usd=usd, assumed=tuple(assumed))


def cases_table(answers: Sequence[CaseAnswer]) -> str:
    """The answers as CSV, one row per case, in order."""
    return csv_text(CASE_ANSWER_COLUMNS, map(_cells, answers))


def _cells(answer: CaseAnswer) -> list[str]:
    made = answer.prediction
    hours = made.device_hours
    numbers = (
        made.days.value if made.days else None,
        *((hours.value, hours.low, hours.high) if hours else (None, None, None)),
        answer.kwh.value if answer.kwh else None,
        answer.usd.value if answer.usd else None,
    )
    cells = ["" if number is None else f"{number:.6g}" for number in numbers]
    return [made.id, *cells, made.status, "; ".join((*made.defaults, *answer.assumed))]
