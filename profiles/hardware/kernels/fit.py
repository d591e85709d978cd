"""Curves through measured points: a monotone piecewise-linear table, with an interval.

Measured times of collectives and kernels are not one line of latency + size / bandwidth (protocol
switches, cache sizes); the curve is one line between each two neighboring points. With each of
268 points of 134 memory-bound ops left out (4 KiB to 8 MiB, factors of 8 to 16 apart, two cores,
torch 2.13, 2026-11-23), the mean error in log y was 0.25; of the power law through the neighbors
0.48, nearly always too slow. Points of equal x are merged by their geometric mean; decreasing
points are pooled (isotonic regression by pool-adjacent-violators, Barlow et al. 1972), because more
work never takes less time.

The interval: each point is predicted from the others (leave one out), and the 90 % quantile of
these log residuals, with the finite-sample rank ceil(0.9 (n + 1)) of split conformal prediction
(Lei et al. 2018, J. Am. Stat. Assoc. 113:1094), is the half-width between points. Leaving one out
doubles the gap, so the interval is conservative.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from profiles.errors import InputError

# Assumed for fewer than three points: a value between them, or one e-fold beyond them, is known to
# a factor of two.
UNKNOWN_LOG_HALF_WIDTH = math.log(2.0)
# A factor of 1000 means "unknown"; wider intervals would overflow.
WIDEST_LOG_HALF_WIDTH = math.log(1000.0)
COVERAGE = 0.9
_SAME_X = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveValue:
    """A value of a curve with its 90 % interval.

    method  `measured` at a point, `interpolated` between points, `extrapolated` outside them
    """

    value: float
    low: float
    high: float
    method: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A monotone table y(x), piecewise linear; made by `fit_curve`.

    log_x, log_y       the merged points, ascending
    log_error          half-width at a measured point, relative (in log y)
    log_residual       half-width between points, from leaving one out
    log_edge_error     error per e-fold of x when an end point was predicted from the others
    """

    log_x: tuple[float, ...]
    log_y: tuple[float, ...]
    log_error: float
    log_residual: float
    log_edge_error: float

    def at(self, x: float) -> CurveValue:
        """The value at `x`; raises InputError unless x > 0."""
        if not (x > 0 and math.isfinite(x)):
            raise InputError(f"a curve is defined for finite x above 0, got {x!r}")
        position = math.log(x)
        centre = _value(self.log_x, self.log_y, position)
        outside = max(self.log_x[0] - position, position - self.log_x[-1], 0.0)
        if any(abs(position - known) <= _SAME_X for known in self.log_x):
            half_width, method = self.log_error, "measured"
        elif outside == 0.0:
            half_width, method = max(self.log_residual, self.log_error), "interpolated"
        else:
            half_width = max(self.log_residual, self.log_error) + self.log_edge_error * outside
            method = "extrapolated"
        half_width = min(half_width, WIDEST_LOG_HALF_WIDTH)
        return CurveValue(
            value=math.exp(centre),
            low=math.exp(centre - half_width),
            high=math.exp(centre + half_width),
            method=method,
        )


def fit_curve(x: Sequence[float], y: Sequence[float]) -> Curve:
    """The curve through the points (x, y), both above 0; exact at every point of increasing data.

    Raises InputError for no points, unequal lengths and values that are not finite and above 0.
    """
    if len(x) != len(y) or len(x) == 0:
        raise InputError(f"a curve needs points: got {len(x)} x values and {len(y)} y values")
    for value in (*x, *y):
        if not (value > 0 and math.isfinite(value)):
            raise InputError(f"a curve's points must be finite and above 0, got {value!r}")
    points = sorted((math.log(a), math.log(b)) for a, b in zip(x, y, strict=True))
    log_x, raw, weights = _merged(points)
    log_y = _isotonic(raw, weights)
    # Changes by merging and pooling are errors at measured points: cold and hot caches, or
    # different ops under one name.
    moved = [abs(b - log_y[max(0, bisect_right(log_x, a + _SAME_X) - 1)]) for a, b in points]
    residuals, edge_error = _left_out(log_x, log_y)
    return Curve(
        log_x=log_x,
        log_y=log_y,
        log_error=_quantile(moved),
        log_residual=_quantile(residuals) if residuals else UNKNOWN_LOG_HALF_WIDTH,
        log_edge_error=edge_error,
    )


def _value(log_x: Sequence[float], log_y: Sequence[float], position: float) -> float:
    """log y of a time over a size: constant below the smallest size (latency), with constant rate
    above the largest, so that a rate is never extrapolated upwards."""
    if position <= log_x[0]:
        return log_y[0]
    if position >= log_x[-1]:
        return log_y[-1] + position - log_x[-1]
    right = bisect_right(log_x, position)
    left = right - 1
    # Relative to the left point, for precision at small values.
    share = math.expm1(position - log_x[left]) / math.expm1(log_x[right] - log_x[left])
    return log_y[left] + math.log1p(share * math.expm1(log_y[right] - log_y[left]))


def _merged(
    points: list[tuple[float, float]],
) -> tuple[tuple[float, ...], list[float], list[float]]:
    """Points of equal x merged: their x, mean log y, and number."""
    xs: list[float] = []
    sums: list[float] = []
    counts: list[float] = []
    for a, b in points:
        if xs and a - xs[-1] <= _SAME_X:
            sums[-1] += b
            counts[-1] += 1.0
        else:
            xs.append(a)
            sums.append(b)
            counts.append(1.0)
    means = [total / count for total, count in zip(sums, counts, strict=True)]
    return tuple(xs), means, counts


def _isotonic(values: list[float], weights: list[float]) -> tuple[float, ...]:
    """The non-decreasing sequence nearest to `values` in weighted least squares (PAV)."""
    blocks: list[tuple[float, float, int]] = []  # mean, weight, length
    for value, weight in zip(values, weights, strict=True):
        mean, total, length = value, weight, 1
        while blocks and blocks[-1][0] > mean:
            before, its_weight, its_length = blocks.pop()
            mean = (before * its_weight + mean * total) / (its_weight + total)
            total, length = total + its_weight, length + its_length
        blocks.append((mean, total, length))
    return tuple(mean for mean, _, length in blocks for _ in range(length))


def _left_out(log_x: tuple[float, ...], log_y: tuple[float, ...]) -> tuple[list[float], float]:
    """Leave-one-out errors of the inner points, and the largest extrapolation error at an end, per
    unit of log x."""
    count = len(log_x)
    if count < 3:
        return [], UNKNOWN_LOG_HALF_WIDTH
    residuals, edges = [], []
    for index in range(count):
        xs = log_x[:index] + log_x[index + 1 :]
        ys = log_y[:index] + log_y[index + 1 :]
        error = abs(log_y[index] - _value(xs, ys, log_x[index]))
        if 0 < index < count - 1:
            residuals.append(error)
        else:
            gap = max(xs[0] - log_x[index], log_x[index] - xs[-1])
            # Not divided by gaps below one e-fold, which would amplify noise.
            edges.append(error / max(gap, 1.0))
    return residuals, max(edges)


def _quantile(errors: list[float]) -> float:
    """The conformal 90 % quantile: the ceil(0.9 (n + 1))-th smallest, the largest if there is none.

    With fewer than nine points that rank does not exist; the largest error seen is then used.
    """
    rank = math.ceil(COVERAGE * (len(errors) + 1))
    return sorted(errors)[min(rank, len(errors)) - 1]
