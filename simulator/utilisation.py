"""Utilisation: the share of the speed of light that a kernel reaches, between measured shapes.

A measured kernel of shape x took t seconds where the device's rates allow t_min; u = t_min / t. At
another shape u is the mean of the nearest points in log-shape space, weighted by the inverse
fourth power of their distance (Shepard 1968, Proc. 23rd ACM Nat. Conf., p. 517, with Franke and
Nielson's restriction to near points): exact at the points, never above the largest of them.
Outside the box of the points the shape is moved to the box's edge, so u is held there.

Half-widths of the 90 % interval come from leaving each point out, as in profiles/hardware/fit.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profiles.errors import InputError

Array = npt.NDArray[np.float64]

_NEAREST = 6
_POWER = 4
_SAME = 1e-9
_LEFT_OUT = 400  # points that are left out one by one, evenly taken from all


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """log u of a kernel, and the half-width of its 90 % interval in log u.

    method  `measured`, `interpolated`, or `assumed` outside the measured shapes
    """

    log_value: float
    log_half_width: float
    method: str


class UtilisationMap:
    """Measured utilisation over log shapes.

    log_shapes  [points, axes]; log_values  [points]
    """

    def __init__(self, shapes: Sequence[Sequence[float]], values: Sequence[float]) -> None:
        if len(shapes) == 0 or len(shapes) != len(values):
            raise InputError("a utilisation map needs one value per measured shape")
        points: Array = np.asarray(shapes, dtype=float)
        known: Array = np.asarray(values, dtype=float)
        if not all((a > 0).all() and np.isfinite(a).all() for a in (points, known)):
            raise InputError("measured shapes and times must be above 0 and finite")
        self.log_shapes: Array = np.log(points)
        self.log_values: Array = np.log(known)
        self.low: Array = self.log_shapes.min(axis=0)
        self.high: Array = self.log_shapes.max(axis=0)
        self.error = self._left_out_error()

    def at(self, shape: Sequence[float]) -> Utilisation:
        """The utilisation at `shape` (all above 0)."""
        asked = np.log(np.asarray(shape, dtype=float))
        held = np.clip(asked, self.low, self.high)
        outside = float(np.abs(asked - held).max())
        value, gap = self._mean(held, self.log_shapes, self.log_values)
        if gap <= _SAME and outside <= _SAME:
            return Utilisation(log_value=value, log_half_width=0.0, method="measured")
        if outside <= _SAME:
            return Utilisation(log_value=value, log_half_width=self.error, method="interpolated")
        # A factor e beyond the points is as unknown as a gap between them, and so on outwards.
        width = self.error * (1.0 + outside)
        return Utilisation(log_value=value, log_half_width=width, method="assumed")

    @staticmethod
    def _mean(at: Array, shapes: Array, values: Array) -> tuple[float, float]:
        """log u at a shape, and the distance of the nearest point."""
        distance = np.sqrt(((shapes - at) ** 2).sum(axis=1))
        if distance.size > _NEAREST:
            near = np.argpartition(distance, _NEAREST - 1)[:_NEAREST]
            near.sort()
            distance, values = distance[near], values[near]
        gap = float(distance.min())
        if gap <= _SAME:
            return float(values[distance <= _SAME].mean()), 0.0
        weight = (gap / distance) ** _POWER
        return float((weight * values).sum() / weight.sum()), gap

    def _left_out_error(self) -> float:
        """The conformal 90 % quantile of |log u - log u predicted from the other points|.

        With fewer than three points nothing is known: a factor of two.
        """
        count = len(self.log_values)
        if count < 3:
            return math.log(2.0)
        step = max(1, count // _LEFT_OUT)
        errors = []
        for index in range(0, count, step):
            others = np.arange(count) != index
            value, _ = self._mean(
                self.log_shapes[index], self.log_shapes[others], self.log_values[others]
            )
            errors.append(abs(value - float(self.log_values[index])))
        rank = min(math.ceil(0.9 * (len(errors) + 1)), len(errors))
        return sorted(errors)[rank - 1]
