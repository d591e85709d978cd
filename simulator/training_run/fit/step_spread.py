"""How far a predicted step time may lie from a measured one.

The variance of the logarithm of measured over predicted is the sum of the parts of the fitted model
(fit.py): the uncertainty of the common coefficients (to first order, slopes x covariance x slopes;
Seber and Wild, Nonlinear Regression, Wiley 1989, section 2.1), the deviation of a new source from
them (slope squared x variance between sources, per kind), the effect of its cluster, and the noise
of a row. A coefficient without rows has its kind's prior variance around its family or start, so a
run on an unknown device is as uncertain as the part of its step that depends on the device.
"""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from profiles.hardware.kernels.gemm_surface import load_surface
from simulator.training_run.fit.fit import Fitted, Origin, prior_spread
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficient_kinds import BY_NAME, KINDS
from simulator.training_run.step.coefficients import (
    COEFFICIENTS_FILE,
    Assigned,
    assign,
    shipped_coefficients,
)
from simulator.training_run.step.features import Features, features
from simulator.training_run.step.step_slopes import log_slopes

Array = NDArray[np.float64]

COVARIANCE_FILE = COEFFICIENTS_FILE.with_name("run_covariance.npz")
# Standard deviation of the logarithm of a step for a framework that the row does not name as such
# (TrainingRun.stack_assumed): frameworks of one kind differ by the prior spread of `level`, and one
# inferred from a layout may be of another kind, taken as twice that. Assumed.
_ASSUMED = {
    "fork": BY_NAME["level"].spread,
    "dated": BY_NAME["level"].spread,
    "inferred": 2.0 * BY_NAME["level"].spread,
}


# Standard deviation of the logarithm of a step on a device of whose architecture no run was fitted.
# With each architecture left out in turn the medians of the sources' rows are 18 % off (root mean
# square of 41, 2026-11-24); a new source on a known device has 12 % of that.
_NEW_ARCHITECTURE = 0.15
# The same without measured kernels: only a data sheet is known. Measured devices reach 0.3 to 0.8
# of their peak in long matmuls (profiles/data/kernels), about two standard deviations either way.
_DATA_SHEET = 0.3


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What a fit knows of its coefficients.

    names        of coefficients and of their families
    covariance   [names, names] of their logarithms
    between      by kind, standard deviation between sources
    noise        standard deviation of the logarithm of a row within its source
    logged       coefficients that hold for one source, which its logs gave
    """

    names: tuple[str, ...]
    covariance: Array
    between: Mapping[str, float]
    noise: float
    logged: frozenset[str] = frozenset()

    @functools.cached_property
    def places(self) -> dict[str, int]:
        """name -> its row."""
        return {name: place for place, name in enumerate(self.names)}


def knowledge_of(assigned: Assigned, fitted: Fitted, used: NDArray[np.intp]) -> Knowledge:
    """What a fit knows, for runs of a source that it has not seen.

    used  the rows that it was fitted on: coefficients of other rows alone are unknown
    """
    variances = fitted.variances
    names = (*assigned.names, *assigned.family_kinds)
    places = fitted_places(assigned, used)
    return Knowledge(
        names=tuple(names[i] for i in places),
        covariance=fitted.covariance[np.ix_(places, places)],
        between=_new_cluster(variances.between, variances.cluster),
        noise=variances.noise,
    )


def fitted_places(assigned: Assigned, used: NDArray[np.intp]) -> list[int]:
    """Of coefficients and then families, those that the rows `used` depend on."""
    own = {i for index in assigned.index.values() for i in index[used].tolist()}
    families = {assigned.families[i] for i in own}
    names = enumerate(assigned.family_kinds, start=len(assigned.names))
    return sorted(own) + [place for place, name in names if name in families]


def _new_cluster(between: Mapping[str, float], cluster: float) -> dict[str, float]:
    """Standard deviations between sources by kind; a new source's cluster is new too."""
    return {**between, "level": math.hypot(between["level"], cluster)}


def step_spreads(
    runs: Sequence[TrainingRun], x: Features, assigned: Assigned, values: Array, known: Knowledge
) -> Array:
    """[runs] standard deviation of the logarithm of measured over predicted step times.

    values  [coefficients] that the steps are predicted with
    """
    slopes = log_slopes(x, assigned.of(values))
    places, own = _placed(assigned, known)
    rows = np.arange(x.microbatches.size)
    each = np.zeros((rows.size, len(known.names)))
    assumed = np.asarray([_ASSUMED.get(run.stack_assumed, 0.0) for run in runs])
    variance = known.noise**2 + assumed**2
    unknown = places[assigned.index["power"]] < 0
    variance += (
        np.asarray(
            [
                _device_spread(run.device) if new else 0.0
                for run, new in zip(runs, unknown, strict=True)
            ]
        )
        ** 2
    )
    for kind, index in assigned.index.items():
        # Two kinds share no coefficient, so no place is set twice.
        found = places[index]
        each[rows, np.maximum(found, 0)] += np.where(found >= 0, slopes[kind], 0.0)
        variance += slopes[kind] ** 2 * own[index]
    return np.asarray(np.sqrt(variance + np.sum((each @ known.covariance) * each, axis=1)))


@functools.cache
def _device_spread(device: str) -> float:
    measured = load_surface(device).method != "assumed"
    return _NEW_ARCHITECTURE if measured else _DATA_SHEET


def spreads_with_effects(x: Features, assigned: Assigned, origin: Origin, fitted: Fitted) -> Array:
    """[runs] the same with the effects of each run's own source, as far as the fit knows it; x and
    assigned hold the values that `fitted` was made from."""
    rows = np.arange(len(origin.sources))
    places = {name: place for place, name in enumerate(fitted.deviations)}
    clusters = {pair: place for place, pair in enumerate(fitted.clusters)}
    source = np.asarray([places.get(name, -1) for name in origin.sources], dtype=np.intp)
    pairs = zip(origin.sources, origin.devices, strict=True)
    cluster = np.asarray([clusters.get(pair, -1) for pair in pairs], dtype=np.intp)
    slopes = log_slopes(x, fitted.values_of(assigned, origin))
    common = len(assigned.names) + len(assigned.family_kinds)
    each = np.zeros((rows.size, fitted.joint.shape[0]))
    variance = np.full(rows.size, fitted.variances.noise**2)
    for place, kind in enumerate(KINDS):
        slope = slopes[kind.name]
        each[rows, assigned.index[kind.name]] += slope
        seen = np.flatnonzero(source >= 0)
        each[seen, common + source[seen] * len(KINDS) + place] = slope[seen]
        new = (slope * fitted.variances.between[kind.name]) ** 2
        variance += np.where(source < 0, new, 0.0)
    seen = np.flatnonzero(cluster >= 0)
    each[seen, common + len(places) * len(KINDS) + cluster[seen]] = 1.0
    variance += np.where(cluster < 0, fitted.variances.cluster**2, 0.0)
    return np.asarray(np.sqrt(variance + np.sum((each @ fitted.joint) * each, axis=1)))


def run_spreads(runs: Sequence[TrainingRun]) -> Array:
    """[runs] the same for completed runs under the shipped coefficients."""
    if not runs:
        return np.zeros(0)
    assigned = assign(runs)
    values = assigned.from_file(shipped_coefficients())
    return step_spreads(runs, features(runs, all_fit=True), assigned, values, shipped_knowledge())


def coefficient_spreads(assigned: Assigned, known: Knowledge) -> Array:
    """[coefficients] standard deviation of the logarithm of each for a new source."""
    places, own = _placed(assigned, known)
    fitted = np.where(places >= 0, np.diag(known.covariance)[places], 0.0)
    return np.asarray(np.sqrt(fitted + own))


def _placed(assigned: Assigned, known: Knowledge) -> tuple[NDArray[np.intp], Array]:
    """[coefficients] the row of each or of its family, -1 for neither, and the variance around that
    row or around the start: of the prior, and between sources unless the source's logs gave it."""
    places, own = [], []
    for name, number, family in zip(assigned.names, assigned.kinds, assigned.families, strict=True):
        kind = KINDS[number]
        variance = 0.0 if name in known.logged else known.between[kind.name] ** 2
        if name not in known.places:
            variance += prior_spread(kind, in_family=family in known.places) ** 2
        places.append(known.places.get(name, known.places.get(family, -1)))
        own.append(variance)
    return np.asarray(places, dtype=np.intp), np.asarray(own)


@functools.cache
def shipped_knowledge() -> Knowledge:
    """What the project's coefficients rest on."""
    file = shipped_coefficients()
    names, covariance = read_covariance(COVARIANCE_FILE)
    return Knowledge(
        names=names,
        covariance=covariance,
        between=_new_cluster(
            {**{name: kind.between for name, kind in BY_NAME.items()}, **file.between}, file.cluster
        ),
        noise=file.noise,
    )


def read_covariance(path: Path) -> tuple[tuple[str, ...], Array]:
    """Names and covariance that `covariance_bytes` made."""
    with np.load(path, allow_pickle=False) as file:
        names = tuple(file["names"].tolist())
        matrix = np.zeros((len(names), len(names)))
        lower = np.tril_indices(len(names))
        matrix[lower] = file["lower"]
        matrix.T[lower] = file["lower"]
    return names, matrix


def covariance_bytes(names: Sequence[str], covariance: Array) -> bytes:
    """The content of a file of numpy arrays: names, and the lower half of the covariance in single
    precision. Equal values give equal bytes."""
    stream = io.BytesIO()
    np.savez_compressed(
        stream,
        names=np.asarray(names),
        lower=covariance[np.tril_indices(len(names))].astype(np.float32),
    )
    return stream.getvalue()
