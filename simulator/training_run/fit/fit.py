"""Fitting the coefficients of described runs to measured step times.

Least squares of the logarithm of predicted over measured, each coefficient drawn towards its kind's
mean and that towards where it starts, in units of the spread that its kind is given (a hierarchical
prior, as in Gelman and Hill 2007, chapter 12): what the rows do not determine stays where it was.
Residuals are capped softly (Cauchy's loss): published tables hold mistakes, and runs with trouble
that no figure of theirs shows, up to a hundred times slower than their like.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from simulator.training_run.step.coefficient_kinds import KINDS, Kind
from simulator.training_run.step.coefficients import Assigned
from simulator.training_run.step.features import Features
from simulator.training_run.step.step_slopes import NUDGE
from simulator.training_run.step.step_time import step_parts

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Array = NDArray[np.float64]

# The noise floor of published step times is about 5 % (same configuration measured again: 6 %
# median, NVIDIA's own tables); residuals are counted in these units.
_NOISE = 0.05
# Beyond so many units a residual pulls less and less.
_CAP = 4.0
# The search ends when a step gains less than this share of the sum of squares.
_GAIN = 1e-7
_MOST_STEPS = 200
# Share of the variance between members of a kind that lies between their families. Frameworks of
# one generation are hardly more alike than those of two: with 0.1, 0.25 and 0.5 the errors of whole
# sources left out are 13.8, 13.9 and 14.5 % on average (22 sources, 2026-11-22).
_FAMILY, _FAMILY_OF_STACKS = 0.5, 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """values  [coefficients] in the order of `Assigned.names`; family_values in that of
    `Assigned.family_names`; kind_values by kind name; residual  mean absolute error of the rows
    fitted on, nan without any.

    information  [coefficients, families, kinds] squared: the normal matrix at the optimum, whose
                 inverse is the covariance of the logarithms of all three
    """

    values: Array
    family_values: Array
    kind_values: dict[str, float]
    residual: float
    information: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tree:
    """What each coefficient, then each family, is drawn towards: its parent's place among
    [coefficients, families, kinds], and how far it may lie from it. The variance that a kind allows
    its members is shared between the family and the member, so that it is the same with a family
    and without."""

    parents: NDArray[np.intp]
    spreads: Array

    @classmethod
    def of(cls, assigned: Assigned) -> _Tree:
        count, families = len(assigned.names), len(assigned.family_names)
        kinds = np.asarray((*assigned.kinds, *assigned.family_kinds), dtype=np.intp)
        family = np.asarray((*assigned.families, *[-1] * families), dtype=np.intp)
        of_family = np.asarray([share_of_family(kind) for kind in KINDS])[kinds]
        is_family = np.arange(kinds.size) >= count
        shared = np.where(is_family, of_family, np.where(family >= 0, 1.0 - of_family, 1.0))
        return cls(
            parents=np.where(family >= 0, count + family, count + families + kinds),
            spreads=np.sqrt(shared) * np.asarray([kind.spread for kind in KINDS])[kinds],
        )


def share_of_family(kind: Kind) -> float:
    """Share of the variance of a kind's members that lies between their families."""
    return _FAMILY_OF_STACKS if kind.owner.startswith("stack") else _FAMILY


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
    # Here, since most that reads this module fits nothing.
    from scipy.sparse import csr_array

    count, family_count = len(assigned.names), len(assigned.family_names)
    tree = _Tree.of(assigned)
    kind_start = np.log(np.asarray([kind.start for kind in KINDS]))
    kind_spread = np.asarray([kind.spread for kind in KINDS])
    used = np.flatnonzero(weights > 0)
    rows = x.rows(used)
    index = {kind: found[used] for kind, found in assigned.index.items()}
    target = np.log(measured_s[used])
    root = np.sqrt(weights[used])
    given = None if prior is None else np.log(prior)
    below = count + family_count
    begin = np.log(assigned.starts() if start is None else start)
    theta = np.concatenate([begin, kind_start[list(assigned.family_kinds)], kind_start])
    low, high = _bounds(assigned)

    def missed(values: Array, nudged: str = "") -> Array:
        """[used] log of predicted over measured, all coefficients of one kind a little larger."""
        c = {kind: values[i] for kind, i in index.items()}
        if nudged:
            c[nudged] = c[nudged] * math.exp(NUDGE)
        return np.asarray(np.log(step_parts(rows, c).total_s) - target)

    def residuals(theta: Array) -> Array:
        miss = missed(np.exp(theta[:count])) / _NOISE
        # Cauchy's loss by hand, so that the prior stays quadratic.
        soft = np.sign(miss) * _CAP * np.sqrt(np.log1p((miss / _CAP) ** 2))
        own = (theta[:below] - theta[tree.parents]) / tree.spreads
        if given is not None:
            own[:count] = (theta[:count] - given) / tree.spreads[:count]
        of_kind = (theta[below:] - kind_start) / kind_spread
        return np.concatenate([root * soft, own, of_kind])

    def slopes(theta: Array) -> csr_array:
        """[residuals, theta]: a run takes one coefficient of each kind, so one more prediction per
        kind gives every column, and a row has as many entries as there are kinds."""
        values = np.exp(theta[:count])
        base = missed(values)
        miss = base / _NOISE
        soft = np.abs(_CAP * np.sqrt(np.log1p((miss / _CAP) ** 2)))
        # d soft / d miss, 1 where both vanish.
        bend = np.divide(
            np.abs(miss), soft * (1 + (miss / _CAP) ** 2), out=np.ones_like(miss), where=soft > 0
        )
        run = np.arange(used.size)
        entries = []
        for kind, i in index.items():
            slope = (missed(values, kind) - base) / NUDGE / _NOISE
            entries.append((run, i, root * bend * slope))
        own = np.arange(below)
        entries.append((used.size + own, own, 1 / tree.spreads))
        held = own if given is None else own[count:]
        entries.append((used.size + held, tree.parents[held], -1 / tree.spreads[held]))
        kinds = below + np.arange(len(KINDS))
        entries.append((used.size + kinds, kinds, 1 / kind_spread))
        lines, columns, each = (np.concatenate(part) for part in zip(*entries, strict=True))
        shape = (used.size + theta.size, theta.size)
        return csr_array((each, (lines, columns)), shape=shape)

    theta = _descend(residuals, slopes, theta, low, high)
    values = np.exp(theta[:count])
    miss = missed(values)
    jacobian = slopes(theta)
    return Fitted(
        values=values,
        family_values=np.exp(theta[count:below]),
        kind_values={kind.name: float(np.exp(theta[below + i])) for i, kind in enumerate(KINDS)},
        residual=float(np.abs(np.expm1(miss)).mean()) if used.size else math.nan,
        information=(jacobian.T @ jacobian).toarray(),
    )


def _bounds(assigned: Assigned) -> tuple[Array, Array]:
    """[coefficients, families, kinds] logarithms between which each must lie, as physics has it."""
    kinds = [KINDS[k] for k in (*assigned.kinds, *assigned.family_kinds, *range(len(KINDS)))]
    low = np.asarray([math.log(kind.least) if kind.least else -np.inf for kind in kinds])
    return low, np.log(np.asarray([kind.most for kind in kinds]))


def _descend(
    residuals: Callable[[Array], Array],
    slopes: Callable[[Array], csr_array],
    theta: Array,
    low: Array,
    high: Array,
) -> Array:
    """Where the sum of squared residuals is least between bounds, from `theta` downwards:
    Levenberg-Marquardt with the damping of Madsen, Nielsen and Tingleff (Methods for Non-Linear
    Least Squares Problems, DTU 2004, algorithm 3.16), steps cut off at the bounds and what lies
    at one and points outwards left out. The prior has a term in every direction, so the normal
    equations are well posed; on them a step takes a twentieth of scipy's bounded least_squares,
    which decomposes the Jacobian (46 s a fit against 2, 2026-11-22)."""
    theta = np.clip(theta, low, high)
    missed = residuals(theta)
    cost = float(missed @ missed)
    damping, growth = 1e-3, 2.0
    jacobian = slopes(theta)
    normal, downhill = (jacobian.T @ jacobian).toarray(), -jacobian.T @ missed
    for _ in range(_MOST_STEPS):
        scale = damping * np.diag(normal)
        held = ((theta <= low) & (downhill < 0)) | ((theta >= high) & (downhill > 0))
        free = np.flatnonzero(~held)
        step = np.zeros(theta.size)
        step[free] = np.linalg.solve(
            normal[np.ix_(free, free)] + np.diag(scale[free]), downhill[free]
        )
        step = np.clip(theta + step, low, high) - theta
        tried = residuals(theta + step)
        gain = cost - float(tried @ tried)
        if gain > 0:
            expected = float(2 * step @ downhill - step @ normal @ step)
            damping *= max(1 / 3, 1 - (2 * gain / expected - 1) ** 3) if expected > 0 else 1.0
            growth = 2.0
            theta, missed, cost = theta + step, tried, cost - gain
            if gain < _GAIN * cost:
                break
            jacobian = slopes(theta)
            normal, downhill = (jacobian.T @ jacobian).toarray(), -jacobian.T @ missed
        else:
            damping, growth = damping * growth, growth * 2
            if growth > 2.0**40:
                break
    return theta
