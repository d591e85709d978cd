"""A correction grid (profiles/hardware/kernels/kernel_surface.py) fitted to measured times."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from profiles.hardware.kernels.kernel_surface import Array, LogGrid, corners, locate, log_nodes

_ITERATIONS = 6
# Residuals below 2 % are timing noise and count as squares, above as absolute values.
_SOFT = 0.02
# A node far from all rows is drawn to no correction, this weakly.
_TO_ZERO = 1e-3


def fit_log_grid(
    sizes: Sequence[Array],
    log_residual: Array,
    axes: Sequence[Sequence[float]],
    *,
    weights: Array,
    stiffness: float = 1.0,
) -> LogGrid:
    """The grid that minimises the weighted absolute residual (medians, not means).

    Iteratively reweighted least squares for the L1 norm (Holland and Welsch 1977, Commun. Stat.
    A6:813), with `stiffness` times the squared second difference along each axis as the prior, so
    that cells without rows continue their neighbours.
    """
    logs = log_nodes(axes)
    shape = tuple(len(nodes) for nodes in logs)
    count = math.prod(shape)
    places = [locate(np.log2(size), nodes) for size, nodes in zip(sizes, logs, strict=True)]
    cell = corners(places, shape)
    indices = np.stack([index for index, _ in cell])
    values = np.stack([weight for _, weight in cell])
    prior = _stiffness(logs, stiffness)
    current: Array = weights.astype(np.float64)
    found = np.zeros(count)
    for _ in range(_ITERATIONS):
        weighted = (values * current * log_residual).ravel()
        right = np.bincount(indices.ravel(), weighted, minlength=count)
        left = prior.ravel().copy()
        for one, weight in cell:
            for other, other_weight in cell:
                product = current * weight * other_weight
                left += np.bincount(one * count + other, product, minlength=count * count)
        found = np.asarray(np.linalg.solve(left.reshape(count, count), right))
        rest = np.abs(log_residual - (values * found[indices]).sum(axis=0))
        current = np.asarray(weights * (_SOFT / np.maximum(rest, _SOFT)))
    table = np.rint(100.0 * found).astype(int).reshape(shape)
    return LogGrid(
        axes=tuple(tuple(float(node) for node in axis) for axis in axes),
        percent=tuple(tuple(tuple(int(v) for v in row) for row in plane) for plane in table),
    )


def _stiffness(logs: Sequence[Array], stiffness: float) -> Array:
    shape = tuple(len(nodes) for nodes in logs)
    count = math.prod(shape)
    numbers = np.arange(count).reshape(shape)
    prior = _TO_ZERO * np.eye(count)
    for axis, nodes in enumerate(logs):
        if len(nodes) < 3:
            continue
        along = np.moveaxis(numbers, axis, 0)
        for place in range(1, len(nodes) - 1):
            before, after = nodes[place] - nodes[place - 1], nodes[place + 1] - nodes[place]
            parts = (
                (along[place - 1].ravel(), after / (before + after)),
                (along[place].ravel(), -1.0),
                (along[place + 1].ravel(), before / (before + after)),
            )
            for one, a in parts:
                for other, b in parts:
                    prior[one, other] += stiffness * a * b
    return prior


def no_correction() -> LogGrid:
    """A grid of zeros."""
    return LogGrid(axes=((1.0, 2.0),) * 3, percent=(((0, 0), (0, 0)), ((0, 0), (0, 0))))
