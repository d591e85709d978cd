"""90 % intervals of predicted step times.

The interval follows from the fitted model (step_spread.py). Its half width in standard deviations,
`CoefficientFile.quantile`, is the one that contains nine of ten rows of sources that were left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from simulator.training_run.fit.recalibration import (
    Calibration,
    calibrated,
    calibrated_knowledge,
)
from simulator.training_run.fit.step_spread import run_spreads, step_spreads
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import shipped_coefficients
from simulator.training_run.step.step_time import PricedRuns, price_runs
from simulator.values.prediction import Interval

# Relative uncertainty of the seconds that no fitted run has: levels beyond the network, host
# memory, compression, local steps, layers in bf16, uneven experts and recurrences of states.
# Assumed. The optimizer in host memory was within 13 % of its measurement (host_offload.py) and
# Mamba-2 layers within about 20 %; the others were never measured.
UNFITTED_UNCERTAINTY = 0.5
# Rule of Mamba-2, measured through runs of Nemotron 3 in the fit.
_MEASURED_RULE = "ssd"


def step_interval(run: TrainingRun, time_s: float, spread: float | None = None) -> Interval:
    """The 90 % interval of a predicted step time.

    spread  standard deviation of its logarithm (step_spread.py); by default, with the shipped
            coefficients
    """
    if spread is None:
        spread = float(run_spreads([run])[0])
    factor = math.exp(shipped_coefficients().quantile * spread)
    return Interval(value=time_s, low=time_s / factor, high=time_s * factor)


def run_intervals(priced: PricedRuns, calibration: Calibration | None = None) -> list[Interval]:
    """The 90 % interval of each run's predicted step time, with the calibration used for it."""
    spreads = step_spreads(priced, calibrated_knowledge(calibration)).tolist()
    return step_intervals(priced.runs, priced.parts.total_s.tolist(), spreads, calibration)


def step_intervals(
    runs: Sequence[TrainingRun],
    times_s: Sequence[float],
    spreads: Sequence[float],
    calibration: Calibration | None = None,
) -> list[Interval]:
    """The 90 % interval of each run's predicted step time. Half of the seconds without a fitted run
    are added on either side.

    spreads      standard deviations of the logarithms of the times (step_spread.py)
    calibration  used for the times
    """
    unfitted = unfitted_s(runs, times_s, calibration)
    found = []
    for run, time_s, spread, part_s in zip(runs, times_s, spreads, unfitted, strict=True):
        off_s = UNFITTED_UNCERTAINTY * abs(part_s)
        plain = step_interval(run, time_s, spread)
        low = max(plain.low - off_s, min(plain.low, 0.5 * time_s))
        found.append(Interval(value=time_s, low=low, high=plain.high + off_s))
    return found


def unfitted_s(
    runs: Sequence[TrainingRun],
    totals: Sequence[float],
    calibration: Calibration | None = None,
) -> list[float]:
    """Seconds of each run's step that no fitted run has: the effect of its unusual options, and
    recurrences of an unmeasured kind.

    calibration  used for the totals
    """
    seconds = [0.0] * len(runs)
    unusual = [place for place, run in enumerate(runs) if run.as_published() != run]
    if unusual:
        published = [runs[place].as_published() for place in unusual]
        usual = price_runs(published, calibrated(calibration)).parts.total_s
        for place, time_s in zip(unusual, usual.tolist(), strict=True):
            seconds[place] = abs(totals[place] - time_s)
    for place, run in enumerate(runs):
        state = run.model.state
        if state is not None and state.rule != _MEASURED_RULE:
            seconds[place] += _state_s(run, calibration)
    return seconds


def _state_s(run: TrainingRun, calibration: Calibration | None) -> float:
    """Seconds per step of the recurrences of the busiest stage's layers."""
    priced = price_runs([run], calibrated(calibration))
    x = priced.x
    each = priced.c["state"] * (x.state_forward + x.state_backward)
    return float((x.microbatches * x.layers * each)[0])
