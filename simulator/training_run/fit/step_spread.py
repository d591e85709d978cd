"""The uncertainty of a predicted step time, from the fit.

The variance of the logarithm of measured over predicted is the sum of the parts of the fitted model
(evidence/coefficient_fit.py): the uncertainty of the common coefficients (to first order, slopes x
covariance x slopes; Seber and Wild, Nonlinear Regression, Wiley 1989, section 2.1), the deviation
of a new source from them (slope squared x variance between sources, per kind), the effect of its
cluster, and the noise of a row. A coefficient without rows has its kind's prior variance around its
family or start, so a run on an unknown device is as uncertain as the part of its step that depends
on the device.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from profiles.hardware.kernels.gemm_surface import load_surface
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficient_kinds import BY_NAME, KINDS, Kind
from simulator.training_run.step.coefficients import (
    COEFFICIENTS_FILE,
    Assigned,
    shipped_coefficients,
)
from simulator.training_run.step.step_slopes import log_slopes
from simulator.training_run.step.step_time import PricedRuns, price_runs

Array = NDArray[np.float64]

COVARIANCE_FILE = COEFFICIENTS_FILE.with_name("run_covariance.npz")
# Standard deviation of the logarithm of a step if the row does not give the framework
# (TrainingRun.stack_assumed): frameworks of one kind differ by the prior spread of `level`, and a
# framework inferred from a layout may be of another kind, taken as twice that. Assumed.
_ASSUMED = {
    "fork": BY_NAME["level"].spread,
    "dated": BY_NAME["level"].spread,
    "inferred": 2.0 * BY_NAME["level"].spread,
}


# Standard deviation of the logarithm of a step on a device of an architecture without fitted runs.
# With each architecture left out in turn, the medians of the sources' rows are off by 18 % (root
# mean square of 41, 2026-11-24); on a known device, those of a new source by 12 %.
_NEW_ARCHITECTURE = 0.15
# The same without measured kernels, from a data sheet alone. Measured devices reach 0.3 to 0.8 of
# their peak in long matmuls (profiles/data/kernels), about two standard deviations either way.
_DATA_SHEET = 0.3


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """The uncertainty of the coefficients of a fit.

    names        of coefficients and of their families
    covariance   [names, names] of their logarithms
    between      by kind: standard deviation between sources
    noise        standard deviation of the logarithm of a row within its source
    logged       coefficients that were fitted to the logs of a single source
    """

    names: tuple[str, ...]
    covariance: Array
    between: Mapping[str, float]
    noise: float
    logged: frozenset[str] = frozenset()

    @functools.cached_property
    def places(self) -> dict[str, int]:
        """Name -> index of its row."""
        return {name: place for place, name in enumerate(self.names)}


def new_cluster(between: Mapping[str, float], cluster: float) -> dict[str, float]:
    """Standard deviations between sources by kind, for a source on a new cluster."""
    return {**between, "level": math.hypot(between["level"], cluster)}


def step_spreads(priced: PricedRuns, known: Knowledge) -> Array:
    """[runs] standard deviation of the logarithm of measured over predicted step times."""
    runs, x, assigned = priced.runs, priced.x, priced.assigned
    slopes = log_slopes(x, priced.c)
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
        # Two kinds share no coefficient, so no entry is set twice.
        found = places[index]
        each[rows, np.maximum(found, 0)] += np.where(found >= 0, slopes[kind], 0.0)
        variance += slopes[kind] ** 2 * own[index]
    return np.asarray(np.sqrt(variance + np.sum((each @ known.covariance) * each, axis=1)))


@functools.cache
def _device_spread(device: str) -> float:
    measured = load_surface(device).method != "assumed"
    return _NEW_ARCHITECTURE if measured else _DATA_SHEET


def run_spreads(runs: Sequence[TrainingRun]) -> Array:
    """[runs] standard deviation of the logarithm of measured over predicted step times, with the
    shipped coefficients."""
    return step_spreads(price_runs(runs, all_fit=True), shipped_knowledge())


# Share of the prior variance of a family's members that is between families.
FAMILY_SHARE = 0.5


def prior_spread(kind: Kind, *, in_family: bool) -> float:
    """Prior standard deviation of the logarithm of a coefficient around its family or start."""
    return kind.spread * math.sqrt(1.0 - FAMILY_SHARE if in_family else 1.0)


def coefficient_spreads(assigned: Assigned, known: Knowledge) -> Array:
    """[coefficients] standard deviation of the logarithm of each for a new source."""
    places, own = _placed(assigned, known)
    fitted = np.where(places >= 0, np.diag(known.covariance)[places], 0.0)
    return np.asarray(np.sqrt(fitted + own))


def _placed(assigned: Assigned, known: Knowledge) -> tuple[NDArray[np.intp], Array]:
    """Two arrays [coefficients]: the row of the covariance for the coefficient, otherwise for its
    family, otherwise -1; and the variance of the coefficient that this row does not contain."""
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
    """The uncertainty of the shipped coefficients."""
    file = shipped_coefficients()
    names, covariance = read_covariance(COVARIANCE_FILE)
    return Knowledge(
        names=names,
        covariance=covariance,
        between=new_cluster(
            {**{name: kind.between for name, kind in BY_NAME.items()}, **file.between}, file.cluster
        ),
        noise=file.noise,
    )


def read_covariance(path: Path) -> tuple[tuple[str, ...], Array]:
    """Names and covariance from a file written by `evidence.fit_spread.covariance_bytes`."""
    with np.load(path, allow_pickle=False) as file:
        names = tuple(file["names"].tolist())
        matrix = np.zeros((len(names), len(names)))
        lower = np.tril_indices(len(names))
        matrix[lower] = file["lower"]
        matrix.T[lower] = file["lower"]
    return names, matrix
