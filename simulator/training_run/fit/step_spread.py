"""How far a predicted step time may lie off because its coefficients are known only so well.

A fit leaves its coefficients with a covariance: the inverse of the normal matrix at its optimum
(Seber and Wild, Nonlinear Regression, Wiley 1989, section 2.1; with the prior, the Laplace
approximation of Gelman et al., Bayesian Data Analysis, 3rd edition, section 4.1). A run's step
follows each of its coefficients with a slope (step_slopes.py), so that to first order its logarithm
has the variance slopes x covariance x slopes. A coefficient without rows of its own is as far from
its family's, or its kind's, as the fit lets its like be: a run on a device or with a framework that
nobody ran is the less certain, the more of its step hangs on that.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from simulator.training_run.fit.fit import share_of_family
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficient_kinds import KINDS, Kind
from simulator.training_run.step.coefficients import (
    COEFFICIENTS_FILE,
    Assigned,
    assign,
    shipped_coefficients,
)
from simulator.training_run.step.features import Features, features
from simulator.training_run.step.step_slopes import log_slopes

Array = NDArray[np.float64]

INFORMATION_FILE = COEFFICIENTS_FILE.with_name("run_information.npz")


@dataclass(frozen=True, kw_only=True)
class Information:
    """What the fitted runs say of the coefficients.

    names   of coefficients, of their families and of their kinds (`matmul.hopper.*`, `matmul.*`)
    matrix  [names, names] the inverse of the covariance of their logarithms (`Fitted.information`)
    """

    names: tuple[str, ...]
    matrix: Array

    @functools.cached_property
    def places(self) -> dict[str, int]:
        """name -> its row; of a kind with one coefficient for all that coefficient's."""
        return {name: place for place, name in reversed(tuple(enumerate(self.names)))}

    @functools.cached_property
    def covariance(self) -> Array:
        """[names, names]"""
        return np.asarray(np.linalg.inv(self.matrix))


def information_names(assigned: Assigned) -> tuple[str, ...]:
    """The names of the rows of `Fitted.information`."""
    return (*assigned.names, *assigned.family_names, *(f"{kind.name}.*" for kind in KINDS))


def step_spreads(
    runs: Sequence[TrainingRun],
    x: Features,
    assigned: Assigned,
    values: Array,
    information: Information,
) -> Array:
    """[runs] standard deviation of the logarithm of each predicted step time, were the runs fitted
    on off by the fit's noise alone.

    values  [coefficients] those that the steps are predicted with

    A framework that takes the coefficients of another (`coefficients_of`) lies as far from it as
    the members of a family from their mean.
    """
    slopes = log_slopes(x, assigned.of(values))
    places, own = _placed(assigned, information)
    rows = np.arange(len(runs))
    each = np.zeros((rows.size, len(information.names)))
    variance = np.zeros(rows.size)
    borrows = np.asarray([load_framework(run.stack).coefficients_of != "" for run in runs])
    kinds = {kind.name: kind for kind in KINDS}
    for name, index in assigned.index.items():
        # Kinds share no coefficient, so that no place is set twice.
        each[rows, places[index]] = slopes[name]
        beside = own[index]
        if kinds[name].owner.startswith("stack"):
            beside = np.maximum(beside, np.where(borrows, _around_family(kinds[name]), 0.0))
        variance += slopes[name] ** 2 * beside
    return np.asarray(np.sqrt(variance + np.sum((each @ information.covariance) * each, axis=1)))


def run_spreads(runs: Sequence[TrainingRun]) -> Array:
    """[runs] the same of completed runs under the coefficients that the project ships."""
    if not runs:
        return np.zeros(0)
    assigned = assign(runs)
    values = assigned.from_file(shipped_coefficients())
    x = features(runs, all_fit=True)
    return step_spreads(runs, x, assigned, values, shipped_information())


def coefficient_spreads(assigned: Assigned, information: Information) -> Array:
    """[coefficients] standard deviation of the logarithm of each, as in `step_spreads`, but for
    what a framework that borrows them adds."""
    places, own = _placed(assigned, information)
    return np.asarray(np.sqrt(np.diag(information.covariance)[places] + own))


def _placed(assigned: Assigned, information: Information) -> tuple[NDArray[np.intp], Array]:
    """[coefficients] the row of each, or of the family or kind whose value it takes; its variance
    around that."""
    places, own = [], []
    for name, number, family in zip(assigned.names, assigned.kinds, assigned.families, strict=True):
        kind = KINDS[number]
        family_name = assigned.family_names[family] if family >= 0 else ""
        if name in information.places:
            place, around = information.places[name], 0.0
        elif family_name in information.places:
            place, around = information.places[family_name], _around_family(kind)
        else:
            place, around = information.places[f"{kind.name}.*"], kind.spread**2
        places.append(place)
        own.append(around)
    return np.asarray(places, dtype=np.intp), np.asarray(own)


def _around_family(kind: Kind) -> float:
    """Variance of the logarithms of a family's members around their mean."""
    return (1.0 - share_of_family(kind)) * kind.spread**2


@functools.cache
def shipped_information() -> Information:
    """What the project's coefficients rest on."""
    return read_information(INFORMATION_FILE)


def read_information(path: Path) -> Information:
    """What `information_bytes` made."""
    with np.load(path, allow_pickle=False) as file:
        names = tuple(file["names"].tolist())
        matrix = np.zeros((len(names), len(names)))
        matrix[file["rows"], file["columns"]] = file["values"]
        matrix[file["columns"], file["rows"]] = file["values"]
    return Information(names=names, matrix=matrix)


def information_bytes(information: Information) -> bytes:
    """The content of a file of numpy's arrays: the names, and what is not 0 of the lower half of
    the matrix, in single precision. Equal information gives equal bytes."""
    rows, columns = np.nonzero(np.tril(information.matrix))
    stream = io.BytesIO()
    np.savez_compressed(
        stream,
        names=np.asarray(information.names),
        rows=rows.astype(np.uint16),
        columns=columns.astype(np.uint16),
        values=information.matrix[rows, columns].astype(np.float32),
    )
    return stream.getvalue()
