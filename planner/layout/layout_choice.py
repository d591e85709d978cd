"""Predictions of layouts: intervals, money, energy, and why a layout is slower than the best."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from planner.layout.layout_answer import LayoutChoice, LayoutFile
from planner.layout.refined_layout import PricedLayout
from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.energy.grid_carbon import grid_of
from profiles.sourced import Sourced
from profiles.units import format_time
from simulator.goodput.reliability import Reliability, reliability
from simulator.goodput.reliability_inputs import DEFAULT, ReliabilityInputs
from simulator.memory.footprint import footprint
from simulator.step_prediction import with_energy, with_price
from simulator.training_run.explain.run_prediction import run_prediction
from simulator.training_run.fit.interval import run_intervals
from simulator.training_run.fit.recalibration import Calibration, calibrated
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.step_time import price_runs
from simulator.values.prediction import Component, Prediction


def choice_of(
    layout: PricedLayout,
    best: PricedLayout | None,
    cluster: Cluster,
    calibration: Calibration | None = None,
) -> LayoutChoice:
    """The layout with its prediction (`layout_prediction`), and why it is not the best."""
    run = layout.run
    return LayoutChoice(
        run=run,
        prediction=layout_prediction(run, cluster, calibration=calibration),
        reliability=_reliability(run, DEFAULT),
        why_not_first="" if best is None else why_not_first(layout, best),
        idle_devices=cluster.num_devices - run.degrees.num_devices,
    )


def layout_prediction(
    run: TrainingRun,
    cluster: Cluster,
    price: Sourced | None = None,
    *,
    calibration: Calibration | None = None,
) -> Prediction:
    """The prediction of a layout on a cluster.

    price        US dollars per device-hour, None for no dollars; includes idle devices, as energy
                 does
    calibration  changes of the shipped coefficients

    Raises InputError if the framework's file does not describe the run's memory.
    """
    priced = price_runs([run], calibrated(calibration))
    (step,) = run_intervals(priced, calibration)
    made = run_prediction(run, step, priced.parts.components(), footprint(run))
    made = with_energy(made, cluster, power_mfu(run, made.mfu.value, cluster.num_devices))
    return with_price(made, cluster.num_devices, price)


def with_layout_price(
    answer: LayoutFile,
    price: Sourced | None,
    inputs: ReliabilityInputs = DEFAULT,
    region: str = "",
) -> LayoutFile:
    """The answer with dollars at a price, and with the failures and preemptions of `inputs`; None
    removes the dollars. The best layout does not depend on the price.

    region  of the power grid, for carbon; "" for none. Raises UnknownNameError.
    """
    chosen = answer.chosen
    return replace(
        answer,
        chosen=None if chosen is None else priced_choice(chosen, price, inputs, region),
        alternatives=tuple(
            priced_choice(other, price, inputs, region) for other in answer.alternatives
        ),
    )


def priced_choice(
    choice: LayoutChoice,
    price: Sourced | None,
    inputs: ReliabilityInputs = DEFAULT,
    region: str = "",
) -> LayoutChoice:
    """A layout with dollars, energy and carbon, as in `with_layout_price`."""
    if region:
        grid_of(region)  # raises for an unknown one
    devices = choice.run.degrees.num_devices + choice.idle_devices
    return replace(
        choice,
        prediction=with_price(choice.prediction, devices, price),
        reliability=_reliability(choice.run, inputs),
        region=region,
    )


def _reliability(run: TrainingRun, inputs: ReliabilityInputs) -> Reliability:
    return reliability(run.model.parameters, run.degrees.num_devices, run.device, inputs)


def power_mfu(run: TrainingRun, mfu: float, num_devices: int) -> float:
    """MFU relative to the 16-bit peak of all devices, including idle ones; it determines the
    power."""
    device = get_device(run.device)
    low_precision = device.peak(run.precision).value / device.peak_or_twins("bfloat16").value
    return mfu * max(1.0, low_precision) * run.degrees.num_devices / num_devices


def why_not_first(layout: PricedLayout, best: PricedLayout) -> str:
    """The reason as text: `2.1 % slower: bubble +1.3 s`."""
    return slower_by(layout.parts, best.parts, layout.step_time_s / best.step_time_s - 1)


def slower_by(mine: Iterable[Component], first: Iterable[Component], slower: float) -> str:
    """The fraction by which a step is slower, and the part that differs most."""
    before = {part.name: part.time_s for part in first}
    more = [(part.time_s - before.get(part.name, 0.0), part.name.words) for part in mine]
    more_s, words = max(more, key=lambda pair: pair[0])
    if slower < 5e-4 or more_s <= 0:
        return f"{slower:.1%} slower"
    return f"{slower:.1%} slower: {words} +{format_time(more_s)}"
