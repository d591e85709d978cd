"""How often jobs stall, from runs of which it is known: the hazards of `message_stalls.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from simulator.training_run.step.coefficient_kinds import KINDS
from simulator.training_run.step.coefficients import Assigned
from simulator.training_run.step.features import Features
from simulator.training_run.step.message_stalls import crosses_nodes, hazard

Array = NDArray[np.float64]

HAZARDS = tuple(kind for kind in KINDS if kind.hazard)


def fit_hazards(
    x: Features,
    assigned: Assigned,
    values: Array,
    troubled: NDArray[np.bool_],
    told: NDArray[np.bool_],
) -> Array:
    """The coefficients with the hazards that make what happened likeliest.

    values    [coefficients];  troubled  [runs] what happened;  told  [runs] where that is known

    Runs between nodes that fit in memory count: the others stall for a reason of their own.
    Poisson's likelihood with the kinds' log-normal priors, a stack at a time.
    """
    from scipy.optimize import minimize

    counted = told & crosses_nodes(x) & (x.over_memory == 0)
    index = np.stack([assigned.index[kind.name] for kind in HAZARDS])
    found = values.copy()
    for owner in np.unique(index[:, counted], axis=1).T:
        mine = np.flatnonzero(counted & (index == owner[:, None]).all(axis=0))
        rows, happened = x.rows(mine), troubled[mine]
        begin = np.log(assigned.starts()[owner])
        spreads = assigned.spreads()[owner]

        def unlikely(
            theta: Array,
            rows: Features = rows,
            happened: NDArray[np.bool_] = happened,
            begin: Array = begin,
            spreads: Array = spreads,
        ) -> float:
            c = {kind.name: np.exp(theta[i]) for i, kind in enumerate(HAZARDS)}
            expected = np.maximum(hazard(rows, c), 1e-12)
            log_chance = np.where(happened, np.log(-np.expm1(-expected)), -expected)
            return float(0.5 * np.sum(((theta - begin) / spreads) ** 2) - np.sum(log_chance))

        found[owner] = np.exp(minimize(unlikely, begin, method="BFGS").x)
    return found
