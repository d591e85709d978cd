"""Fitting the coefficients of described runs to measured step times.

Least squares of the logarithm of predicted over measured, each coefficient drawn towards its kind's
mean and that towards where it starts, in units of the spread that its kind is given (a hierarchical
prior, as in Gelman and Hill 2007, chapter 12): what the rows do not determine stays where it was.
Residuals are capped softly (Cauchy's loss): published tables hold mistakes, and runs with trouble
that no figure of theirs shows, up to a hundred times slower than their like.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.training_run.coefficients import KINDS, Assigned
from simulator.training_run.features import Features
from simulator.training_run.step_time import step_parts

Array = NDArray[np.float64]

# The noise floor of published step times is about 5 % (same configuration measured again: 6 %
# median, NVIDIA's own tables); residuals are counted in these units.
_NOISE = 0.05
# Beyond so many units a residual pulls less and less.
_CAP = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """values  [coefficients] in the order of `Assigned.names`; kind_values by kind name;
    residual  mean absolute error of the rows fitted on, nan without any."""

    values: Array
    kind_values: dict[str, float]
    residual: float


def fit_coefficients(
    x: Features,
    assigned: Assigned,
    measured_s: Array,
    *,
    weights: Array,
    start: Array | None = None,
    prior: Array | None = None,
) -> Fitted:
    """The coefficients under which predicted step times come nearest to the measured ones.

    weights  [runs] of each run's squared residual, 0 leaves it out
    start    [coefficients] where the search begins;  prior  [coefficients] instead of the kinds'
    """
    from scipy.optimize import least_squares

    count = len(assigned.names)
    kind_of = np.asarray(assigned.kinds, dtype=np.intp)
    spreads = assigned.spreads()
    kind_start = np.log(np.asarray([kind.start for kind in KINDS]))
    kind_spread = np.asarray([kind.spread for kind in KINDS])
    used = np.flatnonzero(weights > 0)
    rows = x.rows(used)
    index = {kind: found[used] for kind, found in assigned.index.items()}
    target = np.log(measured_s[used])
    root = np.sqrt(weights[used])
    given = None if prior is None else np.log(prior)

    def residuals(theta: Array) -> Array:
        values = np.exp(theta[:count])
        predicted = step_parts(rows, {kind: values[i] for kind, i in index.items()}).total_s
        miss = (np.log(predicted) - target) / _NOISE
        # Cauchy's loss by hand, so that the prior stays quadratic.
        soft = np.sign(miss) * _CAP * np.sqrt(np.log1p((miss / _CAP) ** 2))
        centre = theta[count:][kind_of] if given is None else given
        own = (theta[:count] - centre) / spreads
        of_kind = (theta[count:] - kind_start) / kind_spread
        return np.concatenate([root * soft, own, of_kind])

    begin = np.log(assigned.starts() if start is None else start)
    theta = np.concatenate([begin, kind_start])
    found = least_squares(residuals, theta, method="trf", x_scale="jac", max_nfev=40)
    values = np.exp(found.x[:count])
    predicted = step_parts(rows, {kind: values[i] for kind, i in index.items()}).total_s
    return Fitted(
        values=values,
        kind_values={kind.name: float(np.exp(found.x[count + i])) for i, kind in enumerate(KINDS)},
        residual=float(np.abs(predicted / measured_s[used] - 1).mean()) if used.size else math.nan,
    )
