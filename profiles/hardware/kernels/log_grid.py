"""A small table of corrections over log2 of a shape: read by multilinear interpolation.

The kernel surfaces (gemm_surface.py, attention_surface.py) are a formula with few physical
parameters times exp(correction); the correction is what the formula misses, in whole per cent of
the natural logarithm of time, so that a file of it can be read by eye.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from profiles.errors import InputError

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogGrid:
    """ln(measured time / formula), in per cent, at nodes of a shape; three axes.

    axes     the nodes of each axis, ascending sizes (not logarithms)
    percent  [first axis][second axis][third axis]

    Raises InputError for an axis that does not ascend or a table of another size.
    """

    axes: tuple[tuple[float, ...], ...]
    percent: tuple[tuple[tuple[int, ...], ...], ...]

    def __post_init__(self) -> None:
        if len(self.axes) != 3:
            raise InputError(f"a correction grid has three axes, found {len(self.axes)}")
        for axis in self.axes:
            if len(axis) < 2 or axis[0] <= 0 or any(a >= b for a, b in itertools.pairwise(axis)):
                raise InputError(f"the nodes of an axis must ascend from above 0, found {axis}")
        want = tuple(len(axis) for axis in self.axes)
        rows = [row for plane in self.percent for row in plane]
        fits = len(self.percent) == want[0] and all(len(p) == want[1] for p in self.percent)
        if not fits or any(len(row) != want[2] for row in rows):
            raise InputError(f"the correction grid must be {want[0]}x{want[1]}x{want[2]}")

    def __hash__(self) -> int:
        return hash((self.axes, self.percent))

    def log_factor(self, *sizes: Array) -> Array:
        """ln of the factor on time at each shape; the edge value is held outside the nodes."""
        table, logs = _arrays(self)
        places = [locate(np.log2(size), nodes) for size, nodes in zip(sizes, logs, strict=True)]
        found = np.zeros(np.broadcast_shapes(*(size.shape for size in sizes)))
        for index, weight in corners(places, table.shape):
            found = found + weight * table.ravel()[index]
        return found


@functools.lru_cache(maxsize=128)
def _arrays(grid: LogGrid) -> tuple[Array, tuple[Array, ...]]:
    table = np.asarray(grid.percent, dtype=np.float64) / 100.0
    return table, log_nodes(grid.axes)


def log_nodes(axes: Sequence[Sequence[float]]) -> tuple[Array, ...]:
    """log2 of the nodes of each axis."""
    return tuple(np.log2(np.asarray(axis, dtype=np.float64)) for axis in axes)


def locate(position: Array, nodes: Array) -> tuple[NDArray[np.intp], Array]:
    """The node below each position and the fraction of the way to the next, inside the nodes."""
    held = np.clip(position, nodes[0], nodes[-1])
    below = np.clip(np.searchsorted(nodes, held, side="right") - 1, 0, len(nodes) - 2)
    return below, (held - nodes[below]) / (nodes[below + 1] - nodes[below])


def corners(
    places: Sequence[tuple[NDArray[np.intp], Array]], shape: tuple[int, ...]
) -> list[tuple[NDArray[np.intp], Array]]:
    """Flat index and weight of each of the cell's corners; the weights of a position sum to 1."""
    found = []
    for corner in itertools.product((0, 1), repeat=len(shape)):
        index: Any = 0
        weight: Any = 1.0
        for (below, fraction), upper, length in zip(places, corner, shape, strict=True):
            index = index * length + below + upper
            weight = weight * (fraction if upper else 1.0 - fraction)
        found.append((index, weight))
    return found
