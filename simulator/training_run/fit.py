"""Fitting the coefficients of described runs to measured step times.

Least squares of the logarithm of predicted over measured, each coefficient drawn towards its kind's
mean and that towards where it starts, in units of the spread that its kind is given (a hierarchical
prior, as in Gelman and Hill 2007, chapter 12): what the rows do not determine stays where it was.
Residuals are capped softly (Cauchy's loss): published tables hold mistakes, and runs with trouble
that no figure of theirs shows, up to a hundred times slower than their like.

Where the network may stall (message_stalls.py), a run counts as the case that it is nearer to: it
stalled or it did not (a mixture of two, hard assignments). How often it did is fitted afterwards.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.training_run.coefficients import KINDS, Assigned
from simulator.training_run.features import Features
from simulator.training_run.message_stalls import may_stall
from simulator.training_run.stall_odds import fit_hazards
from simulator.training_run.step_time import step_parts

Array = NDArray[np.float64]
Claims = NDArray[np.bool_]

# The noise floor of published step times is about 5 % (same configuration measured again: 6 %
# median, NVIDIA's own tables); residuals are counted in these units.
_NOISE = 0.05
# Beyond so many units a residual pulls less and less.
_CAP = 4.0
# Which case a run is nearer to is asked before the first fit and once more after it.
_ROUNDS = 2
# Logarithm of the ratio of two cases that noise does not confuse.
_APART = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """values  [coefficients] in the order of `Assigned.names`; kind_values by kind name;
    residual  mean absolute error of the rows fitted on, each in the case (stalled or not) that it
    is nearer to, nan without any."""

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
    cases = _Cases(rows, index, target)
    begin = np.log(assigned.starts() if start is None else start)
    theta = np.concatenate([begin, kind_start])
    for _ in range(_ROUNDS):
        trouble = cases.nearer(np.exp(theta[:count]))

        def residuals(theta: Array, trouble: Claims = trouble) -> Array:
            miss = cases.miss(np.exp(theta[:count]), trouble) / _NOISE
            # Cauchy's loss by hand, so that the prior stays quadratic.
            soft = np.sign(miss) * _CAP * np.sqrt(np.log1p((miss / _CAP) ** 2))
            centre = theta[count:][kind_of] if given is None else given
            own = (theta[:count] - centre) / spreads
            of_kind = (theta[count:] - kind_start) / kind_spread
            return np.concatenate([root * soft, own, of_kind])

        found = least_squares(residuals, theta, method="trf", x_scale="jac", max_nfev=40)
        theta = found.x
        if not cases.any:
            break
    values = np.exp(theta[:count])
    trouble = cases.nearer(values)
    miss = cases.miss(values, trouble)
    if prior is None:
        troubled, told = np.zeros((2, len(measured_s)), dtype=np.bool_)
        troubled[used], told[used] = trouble, cases.apart(values)
        values = fit_hazards(x, assigned, values, troubled, told)
    return Fitted(
        values=values,
        kind_values={kind.name: float(np.exp(theta[count + i])) for i, kind in enumerate(KINDS)},
        residual=float(np.abs(np.expm1(miss)).mean()) if used.size else math.nan,
    )


class _Cases:
    """Runs with and without trouble of the network.

    rows, index  the runs fitted on and which coefficients they take;  target  log of their times
    """

    def __init__(self, rows: Features, index: dict[str, NDArray[np.intp]], target: Array) -> None:
        self.rows, self.index, self.target = rows, index, target
        self.possible = may_stall(rows)

    @property
    def any(self) -> bool:
        """Whether there is a run that trouble would slow down."""
        return bool(self.possible.any())

    def miss(self, values: Array, trouble: Claims) -> Array:
        """[rows] log of predicted over measured."""
        c = {kind: values[i] for kind, i in self.index.items()}
        return np.asarray(np.log(step_parts(self.rows, c, trouble).total_s) - self.target)

    def nearer(self, values: Array) -> Claims:
        """[rows] whether the case with trouble is the nearer."""
        with_it, without = self._both(values)
        return np.asarray(np.abs(with_it) < np.abs(without))

    def apart(self, values: Array) -> Claims:
        """[rows] whether the cases are so far apart that the time tells which it was."""
        with_it, without = self._both(values)
        return np.asarray(with_it - without > _APART)

    def _both(self, values: Array) -> tuple[Array, Array]:
        possible = self.possible
        return self.miss(values, possible), self.miss(values, np.zeros_like(possible))
