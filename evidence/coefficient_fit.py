"""Fit of the coefficients of described runs to measured step times.

A hierarchical model of the logarithm of a step time (Gelman and Hill 2007, chapters 12 and 13):

    log t = log f(x; theta + u_s) + v_(s, device) + e

theta are the common coefficients, drawn towards their families and those towards physical starting
values. u_s is the deviation of source s from them, one per kind of coefficient, with variances that
the fit estimates. v is the effect of a device within its source. Whatever is peculiar to one source
ends up in u_s and v, not in theta; a run of a new source is predicted with u = v = 0. Residuals e
have a Cauchy-like likelihood: published tables contain mistakes, and runs with trouble that none of
their columns shows, up to a hundred times slower than similar ones.

The variances are estimated by expectation-maximization on the linearized model (Dempster, Laird and
Rubin 1977), each with an inverse-gamma prior around its kind's `between`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from simulator.training_run.fit.step_spread import FAMILY_SHARE
from simulator.training_run.step.coefficient_kinds import KINDS
from simulator.training_run.step.coefficients import Assigned
from simulator.training_run.step.features import Features
from simulator.training_run.step.step_slopes import log_slopes
from simulator.training_run.step.step_time import step_parts

Array = NDArray[np.float64]
Places = NDArray[np.intp]

# Residuals beyond so many standard deviations count less and less.
_CAP = 3.0
# Prior weight of a variance, in members: three sources' worth.
_PRIOR_MEMBERS = 3.0
# Where the noise of a row within its source starts: published step times agree to about 5 %.
_NOISE = 0.06
# Where the spread of the level between devices of one source starts: assumed, estimated by the fit.
_CLUSTER = 0.06
# Median of the absolute value of a standard normal variable.
_NORMAL_MEDIAN = 0.6745
_ROUNDS = 4
# A descent ends when a step gains less than this share of the objective.
_GAIN = 1e-5
_MOST_STEPS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Variances:
    """Standard deviations of logarithms: coefficients between sources by kind, the level between
    devices of one source, and a row within its source."""

    between: Mapping[str, float] = field(
        default_factory=lambda: {kind.name: kind.between for kind in KINDS}
    )
    cluster: float = _CLUSTER
    noise: float = _NOISE


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """Common coefficients and the effects of the sources that they were fitted on.

    values         [coefficients] in the order of `Assigned.names`
    family_values  in the order of `Assigned.family_kinds`
    variances      estimated
    covariance     [coefficients, families] squared: of the logarithms, sources' effects integrated
                   out (Laplace approximation)
    residual       median absolute relative error of the fitted rows without their source's effect
    deviations     by source [kinds] u_s;  clusters  by (source, device) v
    joint          covariance of coefficients, families, deviations and clusters
    """

    values: Array
    family_values: Array
    variances: Variances
    covariance: Array
    residual: float
    deviations: Mapping[str, Array]
    clusters: Mapping[tuple[str, str], float]
    joint: Array

    def values_of(self, assigned: Assigned, origin: Origin) -> dict[str, Array]:
        """Per kind the value of every run, with the deviations of its own source where known."""
        none = np.zeros(len(KINDS))
        deviations = np.asarray([self.deviations.get(s, none) for s in origin.sources])
        values = assigned.of(self.values)
        return {
            kind.name: np.clip(
                values[kind.name] * np.exp(deviations[:, place]), kind.least, kind.most
            )
            for place, kind in enumerate(KINDS)
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """[runs] the source of each row and the device that it ran on."""

    sources: Sequence[str]
    devices: Sequence[str]

    def rows(self, index: Places) -> Origin:
        """The origin of some of the rows."""
        return Origin(
            sources=[self.sources[i] for i in index], devices=[self.devices[i] for i in index]
        )


def fit_coefficients(
    x: Features,
    assigned: Assigned,
    measured_s: Array,
    origin: Origin,
    *,
    weights: Array,
    start: Fitted | None = None,
) -> Fitted:
    """The coefficients, effects and variances under which measured step times are most likely.

    weights  [runs] of each run in the likelihood, 0 leaves it out
    start    a fit of other rows: the search begins at its coefficients and keeps its variances
    """
    used = np.flatnonzero(weights > 0)
    problem = _Problem(x, assigned, measured_s, origin, weights, used)
    theta = problem.start(start)
    variances = Variances() if start is None else start.variances
    for _ in range(_ROUNDS if start is None else 0):
        theta = _descend(problem, theta, variances)
        variances = problem.estimated(theta, variances)
    theta = _descend(problem, theta, variances)
    return problem.fitted(theta, variances)


class _Problem:
    """The rows with the place of every unknown: coefficients, families, deviations, clusters."""

    def __init__(
        self,
        x: Features,
        assigned: Assigned,
        measured_s: Array,
        origin: Origin,
        weights: Array,
        used: Places,
    ) -> None:
        own = origin.rows(used)
        self.x = x.rows(used)
        self.index = {kind: found[used] for kind, found in assigned.index.items()}
        self.target = np.log(measured_s[used])
        self.weights = weights[used]
        self.assigned = assigned
        self.sources = sorted(set(own.sources))
        self.pairs = sorted(set(zip(own.sources, own.devices, strict=True)))
        place = {name: i for i, name in enumerate(self.sources)}
        self.source = np.asarray([place[name] for name in own.sources], dtype=np.intp)
        pair = {name: i for i, name in enumerate(self.pairs)}
        self.pair = np.asarray(
            [pair[key] for key in zip(own.sources, own.devices, strict=True)], dtype=np.intp
        )
        self.count = len(assigned.names)
        family_places = {name: self.count + i for i, name in enumerate(assigned.family_kinds)}
        self.common = self.count + len(family_places)
        self.clusters = self.common + len(KINDS) * len(self.sources)
        self.size = self.clusters + len(self.pairs)
        kinds = [KINDS[k] for k in (*assigned.kinds, *assigned.family_kinds.values())]
        self.parent = np.full(self.common, -1, dtype=np.intp)
        self.parent[: self.count] = [family_places.get(name, -1) for name in assigned.families]
        self.center = np.asarray(
            [
                0.0 if parent >= 0 else math.log(kind.start)
                for kind, parent in zip(kinds, self.parent, strict=True)
            ]
        )
        has_members = np.arange(self.common) >= self.count
        self.spread = np.asarray([kind.spread for kind in kinds]) * np.where(
            self.parent >= 0,
            math.sqrt(1.0 - FAMILY_SHARE),
            np.where(has_members, math.sqrt(FAMILY_SHARE), 1.0),
        )
        self.limits = {k.name: (k.least, k.most) for k in KINDS}

    def start(self, other: Fitted | None) -> Array:
        """Where the search begins."""
        theta = np.zeros(self.size)
        families = [KINDS[k].start for k in self.assigned.family_kinds.values()]
        theta[: self.common] = np.log(
            (*self.assigned.starts(), *families)
            if other is None
            else (*other.values, *other.family_values)
        )
        if other is not None:
            for place, name in enumerate(self.sources):
                if name in other.deviations:
                    theta[self._deviations(place)] = other.deviations[name]
            for place, key in enumerate(self.pairs):
                theta[self.clusters + place] = other.clusters.get(key, 0.0)
        return theta

    def _deviations(self, source: int) -> slice:
        begin = self.common + source * len(KINDS)
        return slice(begin, begin + len(KINDS))

    def coefficients(self, theta: Array) -> tuple[dict[str, Array], dict[str, NDArray[np.bool_]]]:
        """Per kind [used] the value of every run, and whether it lies inside its limits."""
        values, inside = {}, {}
        for k, (kind, index) in enumerate(self.index.items()):
            least, most = self.limits[kind]
            raw = np.exp(theta[index] + theta[self.common + self.source * len(KINDS) + k])
            values[kind] = np.clip(raw, least, most)
            inside[kind] = (raw >= least) & (raw <= most)
        return values, inside

    def missed(self, theta: Array) -> Array:
        """[used] logarithm of predicted over measured."""
        values, _ = self.coefficients(theta)
        total = step_parts(self.x, values).total_s
        return np.asarray(np.log(total) + theta[self.clusters + self.pair] - self.target)

    def prior(self, theta: Array, variances: Variances) -> Array:
        """[unknowns] distance from the prior mean in standard deviations."""
        parents = np.where(self.parent >= 0, theta[self.parent], self.center)
        common = (theta[: self.common] - parents) / self.spread
        return np.concatenate([common, theta[self.common :] / self.effects(variances)])

    def effects(self, variances: Variances) -> Array:
        """[deviations, clusters] prior standard deviations."""
        each = [variances.between[kind] for kind in self.index]
        return np.concatenate(
            [np.tile(each, len(self.sources)), np.full(len(self.pairs), variances.cluster)]
        )

    def objective(self, theta: Array, variances: Variances) -> float:
        """Minus twice the logarithm of the posterior, but for a constant."""
        miss = self.missed(theta) / variances.noise
        robust = _CAP**2 * np.log1p((miss / _CAP) ** 2)
        prior = self.prior(theta, variances)
        return float(self.weights @ robust + prior @ prior)

    def normal(self, theta: Array, variances: Variances) -> tuple[Array, Array]:
        """The Gauss-Newton matrix of the objective's half and minus its gradient."""
        from scipy.sparse import csr_array

        values, inside = self.coefficients(theta)
        slopes = log_slopes(self.x, values)
        run = np.arange(self.target.size)
        columns, entries = [self.clusters + self.pair], [np.ones(run.size)]
        for k, (kind, index) in enumerate(self.index.items()):
            slope = np.where(inside[kind], slopes[kind], 0.0)
            columns += [index, self.common + self.source * len(KINDS) + k]
            entries += [slope, slope]
        jacobian = csr_array(
            (np.concatenate(entries), (np.tile(run, len(columns)), np.concatenate(columns))),
            shape=(run.size, self.size),
        )
        miss = self.missed(theta)
        # Iteratively reweighted least squares of Cauchy's loss.
        weight = self.weights / (1.0 + (miss / variances.noise / _CAP) ** 2)
        weight = weight / variances.noise**2
        scaled = jacobian.multiply(np.sqrt(weight)[:, None]).tocsr()
        matrix = (scaled.T @ scaled).toarray()
        downhill = -(jacobian.T @ (weight * miss))
        common = np.arange(self.common)
        inverse = 1.0 / self.spread**2
        matrix[common, common] += inverse
        held = np.flatnonzero(self.parent >= 0)
        np.add.at(matrix, (self.parent[held], self.parent[held]), inverse[held])
        np.add.at(matrix, (held, self.parent[held]), -inverse[held])
        np.add.at(matrix, (self.parent[held], held), -inverse[held])
        distance = self.prior(theta, variances)
        pull = distance[: self.common] / self.spread
        downhill[: self.common] -= pull
        np.add.at(downhill, self.parent[held], pull[held])
        spread = self.effects(variances)
        rest = np.arange(self.common, self.size)
        matrix[rest, rest] += 1.0 / spread**2
        downhill[self.common :] -= distance[self.common :] / spread
        return matrix, downhill

    def estimated(self, theta: Array, variances: Variances) -> Variances:
        """The variances that the effects and residuals at `theta` suggest."""
        matrix, _ = self.normal(theta, variances)
        squares = theta**2 + np.diag(np.linalg.inv(matrix))
        members = len(self.sources)
        between = {}
        for k, kind in enumerate(KINDS):
            mine = squares[self.common + k : self.clusters : len(KINDS)]
            total = _PRIOR_MEMBERS * kind.between**2 + mine.sum()
            between[kind.name] = math.sqrt(total / (_PRIOR_MEMBERS + members))
        clusters = _PRIOR_MEMBERS * _CLUSTER**2 + squares[self.clusters :].sum()
        miss = np.abs(self.missed(theta))
        return Variances(
            between=between,
            cluster=math.sqrt(clusters / (_PRIOR_MEMBERS + len(self.pairs))),
            noise=max(0.02, _weighted_median(miss, self.weights) / _NORMAL_MEDIAN),
        )

    def fitted(self, theta: Array, variances: Variances) -> Fitted:
        """The result at the optimum."""
        matrix, _ = self.normal(theta, variances)
        joint = np.asarray(np.linalg.inv(matrix), dtype=np.float64)
        alone = theta.copy()
        alone[self.common :] = 0.0
        miss = np.abs(np.expm1(self.missed(alone)))
        return Fitted(
            values=np.exp(theta[: self.count]),
            family_values=np.exp(theta[self.count : self.common]),
            variances=variances,
            covariance=joint[: self.common, : self.common],
            residual=_weighted_median(miss, self.weights),
            deviations={
                name: theta[self._deviations(place)] for place, name in enumerate(self.sources)
            },
            clusters={
                key: float(theta[self.clusters + place]) for place, key in enumerate(self.pairs)
            },
            joint=joint,
        )


def _weighted_median(values: Array, weights: Array) -> float:
    """The median of values that count by their weights; nan without any."""
    if not values.size:
        return math.nan
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, 0.5 * total[-1])])


def _descend(problem: _Problem, theta: Array, variances: Variances) -> Array:
    """The minimum of the objective from `theta` downwards: Levenberg-Marquardt with the damping of
    Madsen, Nielsen and Tingleff (Methods for Non-Linear Least Squares Problems, DTU 2004)."""
    cost = problem.objective(theta, variances)
    damping = 1e-3
    for _ in range(_MOST_STEPS):
        matrix, downhill = problem.normal(theta, variances)
        scale = np.diag(matrix)
        gain = 0.0
        while damping < 1e6:
            tried = theta + np.linalg.solve(matrix + np.diag(damping * scale), downhill)
            gain = cost - problem.objective(tried, variances)
            if gain > 0:
                break
            damping *= 4.0
        if gain <= 0:
            break
        theta, cost = tried, cost - gain
        damping = max(damping / 5.0, 1e-9)
        if gain < _GAIN * abs(cost):
            break
    return theta
