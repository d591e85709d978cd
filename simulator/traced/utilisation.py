"""Utilisation: the share of the speed of light that a kernel reaches, between measured shapes.

A measured kernel of shape x took t seconds, of which the device's rates require t_min; u = t_min /
t. At another shape, log u is a trend, a quadratic in the log sizes (least squares over all points),
plus the residuals of the trend at the nearest points, weighted by the inverse square of their
distance (Shepard 1968, Proc. 23rd ACM Nat. Conf., p. 517, over near points only). It is exact at
the points, and limited to the range of measured u. A shape outside of the box of points is moved to
its edge. With fewer points the trend is linear, with few it is their mean. Intervals extend at most
a factor of two beyond the range of measured u.

On 600 of 17,871 published H100 matmuls, from 400 others (github.com/ai-dynamo/aiconfigurator,
gemm_perf, m >= 256, read 2026-11-21): median error 5.7 %, 90 % quantile 16 %; without the trend
6.2 % and 23 %.

The speed of light of an op is its least time by the device's peak rate and memory bandwidth.

Roofline: Williams, Waterman and Patterson, CACM 52(4), 2009. A matmul of b products [m, k] x [k, n]
works 2 b m n k flop and moves b (m k + k n + m n) elements; attention works 4 b h s_q s_kv d flop
forward (half where causal) and 2.5 times that backward (Dao, FlashAttention-2, arXiv 2307.08691,
section 4.1).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from profiles.errors import InputError
from profiles.hardware.catalogue.device import (
    WEIGHT_PASS,
    AttentionPoint,
    ConvPoint,
    Device,
    MatmulPoint,
    MemoryPoint,
    twin_type,
)
from profiles.hardware.kernels.attention_surface import BACKWARD_FLOP
from profiles.hardware.kernels.fit import Curve, fit_curve
from profiles.model.graph import DTYPE_BYTES, RECURRENCES, AttentionShape, MatmulShape, Op, Phase


@dataclass(frozen=True, slots=True)
class SpeedOfLight:
    """Least seconds of ops on one device."""

    device: Device

    @property
    def bandwidth(self) -> float:
        """Bytes per second of the main memory."""
        return self.device.memory_bandwidth_bytes_per_s.value

    def rate(self, dtype: str) -> float:
        """Dense peak flop/s for a data type.

        A type without a rate (an fp32 product inside a bf16 model on a device that lists none) runs
        at the slowest rate of the device.
        """
        peaks = self.device.peak_flop_per_s
        for name in (dtype, twin_type(dtype)):
            if name in peaks:
                return peaks[name].value
        return min(peak.value for peak in peaks.values())

    def of(self, work_flop: float, moved_bytes: float, dtype: str) -> float:
        """Roofline seconds of an op with this work and traffic."""
        return max(work_flop / self.rate(dtype), moved_bytes / self.bandwidth)

    def matmul(self, shape: MatmulShape, dtype: str) -> float:
        """Roofline seconds of a batch of matmuls."""
        work = 2.0 * shape.batch * shape.m * shape.n * shape.k
        elements = shape.m * shape.k + shape.k * shape.n + shape.m * shape.n
        return self.of(work, shape.batch * elements * DTYPE_BYTES.get(dtype, 4.0), dtype)

    def attention(self, shape: AttentionShape, dtype: str, phase: Phase) -> float:
        """Roofline seconds of a fused attention call."""
        work = 4.0 * shape.batch * shape.heads * shape.q_len * shape.kv_len * shape.head_dim
        work *= 0.5 if shape.causal else 1.0
        rows = 2 * shape.heads * shape.q_len + 2 * shape.kv_heads * shape.kv_len
        moved = shape.batch * shape.head_dim * rows * DTYPE_BYTES.get(dtype, 4.0)
        if phase is Phase.BACKWARD:
            # It reads q, k, v, o and do and writes dq, dk and dv: twice the forward's tensors.
            work, moved = BACKWARD_FLOP * work, 2 * moved
        return self.of(work, moved, dtype)


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
    source  of the number, "" for the device's own measurement
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
        """The utilization at `shape` (all sizes above 0)."""
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
        """The conformal 90 % quantile of the errors in log u at left-out points.

        Leaving a point out of the trend moves the trend's residual by 1 / (1 - leverage) (Allen's
        PRESS, Technometrics 16(1), 1974); values are limited to the range as in `at`. With fewer
        than three points: a factor of two.
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
# 90 % quantile (median over the 28 pairs): widening of an interval by borrowing.
BORROWED_LOG_HALF_WIDTH = 0.23
# Assumed: widening if one kernel is used for another (a matmul for the convolution that it equals,
# a forward for its backward, one data type for another).
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


_BY_SIZE = frozenset({"grouped", "transposed", *RECURRENCES.values()})

Key = TypeVar("Key", bound=Hashable)
Axes = tuple[float, ...]


def matmul_maps(points: Iterable[MatmulPoint], light: SpeedOfLight) -> dict[str, UtilisationMap]:
    """Data type -> map over batch, m, n and k."""

    def light_s(p: MatmulPoint) -> float:
        return light.matmul(MatmulShape(batch=p.batch, m=p.m, n=p.n, k=p.k), p.dtype)

    return _maps((p.dtype, (p.batch, p.m, p.n, p.k), light_s(p) / p.time_s) for p in points)


def conv_maps(
    points: Iterable[ConvPoint], light: SpeedOfLight
) -> dict[tuple[str, str, str], UtilisationMap]:
    """(kind (ConvShape.kind), pass, data type) -> map over `conv_axes`."""
    return _maps(
        (
            (p.kind, p.phase, p.dtype),
            conv_axes(p.kind, p.images, p.stride, (p.rows, p.channels, p.patch)),
            light.of(p.work_flop, p.moved_bytes, p.dtype) / p.time_s,
        )
        for p in points
    )


def conv_axes(kind: str, images: int, stride: int, product: tuple[int, int, int]) -> Axes:
    """The axes of a convolution's utilization: m, n and k of the equivalent product, and the
    stride; for a pointwise one, m, n and k of each image's product, and the number of images.

    For recurrences, transposed and grouped convolutions, of which a profile has 2 to 7 shapes, only
    the product's size is used: with so few points in three dimensions, interpolation is little more
    than their mean. With separate maps for lines and volumes, the median error of 18 test modules
    (forward and backward) is 12.6 % (15.7 % before), of an LSTM of 4 sequences and 256 features 19
    % (34 % before; two cores, torch 2.13, 2026-11-23).
    """
    rows, channels, patch = product
    if kind in _BY_SIZE:
        return (float(rows) * channels * patch,)
    if kind == "pointwise":  # of stride 1 by its definition
        return (rows / images, channels, patch, images)
    return (rows, channels, patch, stride)


def conv_pass(op: Op) -> str:
    """The pass of a convolution, by its name in ConvPoint.phase."""
    assert op.conv is not None
    return str(op.phase) if op.conv.input_gradient else WEIGHT_PASS


def attention_maps(
    points: Iterable[AttentionPoint], light: SpeedOfLight
) -> dict[tuple[str, str, bool], UtilisationMap]:
    """(data type, pass, mask) -> map over `attention_axes`."""

    def of(p: AttentionPoint) -> tuple[tuple[str, str, bool], Axes, float]:
        shape = AttentionShape(
            batch=p.batch,
            heads=p.heads,
            kv_heads=p.kv_heads,
            q_len=p.q_len,
            kv_len=p.kv_len,
            head_dim=p.head_dim,
            causal=p.causal,
        )
        used = light.attention(shape, p.dtype, Phase(p.phase)) / p.time_s
        return (p.dtype, p.phase, p.causal), attention_axes(shape), used

    return _maps(map(of, points))


def memory_curves(points: Iterable[MemoryPoint]) -> dict[tuple[str, str], Curve]:
    """(op, data type) -> curve over the bytes moved."""
    rows: dict[tuple[str, str], list[MemoryPoint]] = {}
    for p in points:
        if p.moved_bytes > 0:
            rows.setdefault((p.op, p.dtype), []).append(p)
    return {
        key: fit_curve([p.moved_bytes for p in own], [p.time_s for p in own])
        for key, own in sorted(rows.items())
    }


def attention_axes(shape: AttentionShape) -> Axes:
    """The sizes on which the utilization of an attention call depends."""
    return (shape.batch * shape.heads, shape.q_len, shape.kv_len, shape.head_dim)


def _maps(points: Iterable[tuple[Key, Axes, float]]) -> dict[Key, UtilisationMap]:
    """Key -> map, from (key, shape, utilization) of every point."""
    rows: dict[Key, list[tuple[Axes, float]]] = {}
    for key, axes, used in points:
        rows.setdefault(key, []).append((axes, used))
    return {
        key: UtilisationMap([row[0] for row in own], [row[1] for row in own])
        for key, own in rows.items()
    }
