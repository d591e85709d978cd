"""90 % intervals of predicted step times.

The interval follows from the fitted model (step_spread.py). Its half width in standard deviations,
`CoefficientFile.quantile`, is the one that contains nine of ten rows of sources that were left out.
"""

from __future__ import annotations

import math

from simulator.training_run.fit.step_spread import run_spreads
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import shipped_coefficients
from simulator.values.prediction import Interval

# Relative uncertainty of the seconds that no fitted run informs: levels beyond the network, host
# memory, compression, local steps, layers in bf16, uneven experts and recurrences of states.
# Assumed. The optimizer in host memory was within 13 % of its measurement (host_offload.py) and
# Mamba-2 layers within about 20 %; the others were never measured.
UNFITTED_UNCERTAINTY = 0.5


def step_interval(run: TrainingRun, time_s: float, spread: float | None = None) -> Interval:
    """The 90 % interval of a predicted step time.

    spread  of its logarithm (step_spread.py); None for that of the shipped coefficients
    """
    if spread is None:
        spread = float(run_spreads([run])[0])
    factor = math.exp(shipped_coefficients().quantile * spread)
    return Interval(value=time_s, low=time_s / factor, high=time_s * factor)


def widened(found: Interval, unfitted_s: float) -> Interval:
    """The interval of a step, wider on either side by half of the seconds without a fitted run."""
    off_s = UNFITTED_UNCERTAINTY * abs(unfitted_s)
    low = max(found.low - off_s, min(found.low, 0.5 * found.value))
    return Interval(value=found.value, low=low, high=found.high + off_s)
