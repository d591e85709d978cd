"""Utilisation: the share of the speed of light that a kernel reaches, between measured shapes.

A measured kernel of shape x took t seconds where the device's rates allow t_min; u = t_min / t. At
another shape log u is a trend, a quadratic in the log sizes (least squares over all points), plus
what the trend misses at the nearest points, weighted by the inverse square of their distance
(Shepard 1968, Proc. 23rd ACM Nat. Conf., p. 517, over near points only). Exact at the points; kept
between the least and the largest measured u; outside the box of the points the shape is moved to
the box's edge, so that u is held there. Fewer points have a linear trend, few their mean. No
interval reaches further than a factor of two beyond the least and the largest measured u.

On 600 of 17,871 published H100 matmuls, from 400 others (github.com/ai-dynamo/aiconfigurator,
gemm_perf, m >= 256, read 2026-11-21): median error 5.7 %, 90 % quantile 16 %; without the trend
6.2 % and 23 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profiles.errors import InputError

Array = npt.NDArray[np.float64]

_NEAREST = 8
_POWER = 2
_SAME = 1e-9
_POINTS_PER_TERM = 3  # fewer points for each term of the trend would be fitted, not explained
_LEFT_OUT = 400  # points that are left out one by one, evenly taken from all


@dataclass(frozen=True, slots=True, kw_only=True)
class Utilisation:
    """log u of a kernel, and the half-width of its 90 % interval in log u.

    method  `measured`, `interpolated`, or `assumed` outside the measured shapes
    source  of the number, "" where it is the device's own measurement
    """

    log_value: float
    log_half_width: float
    method: str
    source: str = ""


class UtilisationMap:
    """Measured utilisation over shapes.

    shapes  [points, axes], values  [points], all above 0. Raises InputError otherwise.
    """

    def __init__(self, shapes: Sequence[Sequence[float]], values: Sequence[float]) -> None:
        if len(shapes) == 0 or len(shapes) != len(values):
            raise InputError("a utilisation map needs one value per measured shape")
        points: Array = np.asarray(shapes, dtype=float)
        known: Array = np.asarray(values, dtype=float)
        if not all((a > 0).all() and np.isfinite(a).all() for a in (points, known)):
            raise InputError("measured shapes and times must be above 0 and finite")
        self._shapes: Array = np.log(points)
        self._values: Array = np.log(known)
        self._box = self._shapes.min(axis=0), self._shapes.max(axis=0)
        self._range = float(self._values.min()), float(self._values.max())
        terms = _terms(self._shapes)
        # Of 24 pointwise and 26 depthwise convolutions of a profile, each left out, the mean error
        # in log u is 0.51 and 0.34 with a linear trend, 0.60 and 0.39 with none (three profiles of
        # two cores, float32, torch 2.13, 2026-11-23; pointwise in bfloat16 0.42 and 0.78).
        for count in (terms.shape[1], 1 + self._shapes.shape[1], 1):
            if len(values) >= _POINTS_PER_TERM * count:
                break
        terms = terms[:, :count]
        self._trend: Array = np.asarray(np.linalg.lstsq(terms, self._values, rcond=None)[0])
        self._missed: Array = self._values - terms @ self._trend
        self.error = self._left_out_error(terms)

    def at(self, shape: Sequence[float]) -> Utilisation:
        """The utilisation at `shape` (all above 0)."""
        asked: Array = np.log(np.asarray(shape, dtype=float))
        held = np.clip(asked, *self._box)
        outside = float(np.abs(asked - held).max())
        missed, gap = _near(held, self._shapes, self._missed)
        trend = float((_terms(held[None, :])[:, : self._trend.size] @ self._trend)[0])
        value = min(max(trend + missed, self._range[0]), self._range[1])
        if outside > _SAME:
            # A factor e beyond the points is as unknown as a gap between them, and so on outwards.
            furthest = max(value - self._range[0], self._range[1] - value) + math.log(2.0)
            width = min(self.error * (1.0 + outside), furthest)
            return Utilisation(log_value=value, log_half_width=width, method="assumed")
        if gap <= _SAME:
            return Utilisation(log_value=value, log_half_width=0.0, method="measured")
        return Utilisation(log_value=value, log_half_width=self.error, method="interpolated")

    def _left_out_error(self, terms: Array) -> float:
        """The conformal 90 % quantile of the errors in log u at points that are left out.

        Leaving a point out of the trend moves the trend's residual by 1 / (1 - leverage) (Allen's
        PRESS, Technometrics 16(1), 1974); what is read is kept in range as in `at`. With fewer than
        three points nothing is known: a factor of two.
        """
        count = len(self._values)
        if count < 3:
            return math.log(2.0)
        leverage: Array = np.einsum("ij,ji->i", terms, np.linalg.pinv(terms))
        errors = []
        for index in range(0, count, max(1, count // _LEFT_OUT)):
            others = np.arange(count) != index
            near, _ = _near(self._shapes[index], self._shapes[others], self._missed[others])
            miss = float(self._missed[index]) - near
            there = float(self._values[index])
            read = there - miss / max(1.0 - float(leverage[index]), 1.0 / count)
            errors.append(abs(there - min(max(read, self._range[0]), self._range[1])))
        rank = min(math.ceil(0.9 * (len(errors) + 1)), len(errors))
        return sorted(errors)[rank - 1]


def _terms(log_shapes: Array) -> Array:
    """[points, terms]: 1, each axis, each product of two axes."""
    axes = log_shapes.shape[1]
    columns = [np.ones(len(log_shapes))]
    columns += [log_shapes[:, i] for i in range(axes)]
    columns += [log_shapes[:, i] * log_shapes[:, j] for i in range(axes) for j in range(i, axes)]
    return np.stack(columns, axis=1)


def _near(at: Array, shapes: Array, values: Array) -> tuple[float, float]:
    """The weighted mean of the values at the nearest shapes, and the distance of the nearest."""
    distance: Array = np.sqrt(((shapes - at) ** 2).sum(axis=1))
    if distance.size > _NEAREST:
        near = np.sort(np.argpartition(distance, _NEAREST - 1)[:_NEAREST])
        distance, values = distance[near], values[near]
    gap = float(distance.min())
    if gap <= _SAME:
        return float(values[distance <= _SAME].mean()), 0.0
    weight = (gap / distance) ** _POWER
    return float((weight * values).sum() / weight.sum()), gap


def _assumed(share: float, uncertainty: float, source: str) -> Utilisation:
    return Utilisation(
        log_value=math.log(share),
        log_half_width=math.log1p(uncertainty),
        method="assumed",
        source=source,
    )


# Medians over 7,905 bf16 shapes with m, n, k >= 1024 on each of A100, H100, H200, L40S, B200, B300,
# GB200 and GB300 (5 % to 95 % quantile: 0.49 to 0.80), and over 21,560 causal forward attention
# calls of 2,048 tokens or more on the same devices (0.36 to 0.75); 2026-11-21.
_KERNELS = "github.com/ai-dynamo/aiconfigurator"
DEFAULT_MATMUL = _assumed(0.68, 0.35, f"median of 63,240 matmuls ({_KERNELS}, gemm_perf)")
DEFAULT_ATTENTION = _assumed(
    0.55, 0.45, f"median of 21,560 attention calls ({_KERNELS}, context_attention_perf)"
)
DEFAULT_MEMORY = _assumed(
    0.8, 0.35, "assumed: below the 0.9 of peak that BabelStream reaches (Deakin et al. 2016)"
)
# Between two of those eight devices the utilisation of one shape differs by this much in log at the
# 90 % quantile (median over the 28 pairs): what borrowing adds to an interval.
BORROWED_LOG_HALF_WIDTH = 0.23
# Assumed: what it adds where one kernel stands for another (a matmul for the convolution that it
# equals, a forward for its backward, one data type for another).
SUBSTITUTE_LOG_HALF_WIDTH = 0.3

_REDUCTIONS = ("norm", "softmax", "sum", "mean", "max", "min", "loss", "var", "prod", "cumsum")
_COPIES = (
    *("copy", "clone", "cat", "embedding", "index", "gather", "scatter", "fill", "zero"),
    *("contiguous", "pad", "repeat", "roll", "stack", "where", "new_", "ones", "slice"),
)


def memory_family(name: str) -> str:
    """The measured family of a memory-bound aten op."""
    if any(word in name for word in _REDUCTIONS):
        return "reduction"
    return "copy" if any(word in name for word in _COPIES) else "elementwise"
