"""The covariance of a fit's coefficients, and the uncertainty of step times that follows."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from evidence.coefficient_fit import Fitted, Origin
from simulator.training_run.fit.step_spread import Knowledge, new_cluster
from simulator.training_run.step.coefficient_kinds import KINDS
from simulator.training_run.step.coefficients import Assigned
from simulator.training_run.step.features import Features
from simulator.training_run.step.step_slopes import log_slopes

Array = NDArray[np.float64]


def knowledge_of(assigned: Assigned, fitted: Fitted, used: NDArray[np.intp]) -> Knowledge:
    """The uncertainty of a fit, for runs of a source that is not in it.

    used  the rows that it was fitted on: coefficients of other rows alone are unknown
    """
    variances = fitted.variances
    names = (*assigned.names, *assigned.family_kinds)
    places = fitted_places(assigned, used)
    return Knowledge(
        names=tuple(names[i] for i in places),
        covariance=fitted.covariance[np.ix_(places, places)],
        between=new_cluster(variances.between, variances.cluster),
        noise=variances.noise,
    )


def fitted_places(assigned: Assigned, used: NDArray[np.intp]) -> list[int]:
    """Indices of the coefficients, then of the families, on which the rows `used` depend."""
    own = {i for index in assigned.index.values() for i in index[used].tolist()}
    families = {assigned.families[i] for i in own}
    names = enumerate(assigned.family_kinds, start=len(assigned.names))
    return sorted(own) + [place for place, name in names if name in families]


def spreads_with_effects(x: Features, assigned: Assigned, origin: Origin, fitted: Fitted) -> Array:
    """[runs] standard deviation of the logarithm of measured over predicted step times, with the
    effects of each run's own source as far as the fit knows it; x and assigned hold the values that
    `fitted` was made from."""
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
