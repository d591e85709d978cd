"""The time of one op on one device.

    time = max(compute, memory) / utilisation, and at least one kernel launch

Compute is FLOPs over the dense peak, memory is bytes over the memory's peak: the roofline
(Williams et al., CACM 52(4), 2009). Utilisation is what measured points of the same family reach of
it, interpolated in log-shape space by inverse distance over the nearest points: exact at a measured
shape, held outside what was measured, so that a rate is never extrapolated upwards. Each cost says
`measured`, `interpolated` or `assumed`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from profiles.hardware.device import Device, Measurements
from profiles.hardware.fit import Curve, fit_curve
from profiles.model.graph import DTYPE_BYTES, AttentionShape, MatmulShape, Op, OpKind, Phase

_NEAREST = 6
# A backward of fused attention does five products where the forward does two (FlashAttention-2,
# arXiv 2307.08691, section 3.1.2).
_ATTENTION_BACKWARD_RATIO = 2.5

# Where neither the device nor its relative was measured. Shares of the datasheet peak, with the
# half-width of the 90 % interval: the best matmul shapes reach 0.6 to 0.9 of peak on nine devices
# (best achievable matmul rates published by ml-engineering, compute/accelerator, 2026), attention
# kernels 0.35 to 0.75 (FlashAttention-2, figures 4 to 6), streams 0.8 to 0.95.
ASSUMED = {"matmul": (0.65, 0.30), "attention": (0.5, 0.40), "memory": (0.85, 0.20)}
# A borrowed utilisation is that of another device: a third wider (assumed, no study yet).
_BORROWED_WIDER = 1.33
_LEAST_WIDTH = 0.03

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """Seconds with a 90 % interval, what limits, and what the number rests on."""

    time_s: float
    low_s: float
    high_s: float
    limit: str
    method: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Surface:
    """Utilisation at measured shapes in log2 space, with its leave-one-out error."""

    points: Array
    utilisation: Array
    error: float

    def at(self, shape: Array) -> tuple[float, bool]:
        """(utilisation, whether the shape was measured)."""
        distance = np.abs(self.points - shape).sum(axis=1)
        nearest = int(distance.argmin())
        if distance[nearest] < 1e-9:
            return float(self.utilisation[nearest]), True
        order = np.argpartition(distance, min(_NEAREST, len(distance) - 1))[:_NEAREST]
        weight = 1.0 / distance[order] ** 2
        logs = np.log(self.utilisation[order])
        return float(np.exp((weight * logs).sum() / weight.sum())), False


@functools.lru_cache(maxsize=200_000)
def price_op(op: Op, device: Device) -> OpCost:
    """What the op costs on the device.

    Raises InputError where the device has no rate for the op's data type and the op needs one.
    """
    if op.kind is OpKind.VIEW:
        # The host still issues it; an accelerator's queue hides that, a CPU pays.
        time_s = device.launch_s.value if device.type == "cpu" else 0.0
        return OpCost(
            time_s=time_s,
            low_s=0.0,
            high_s=2 * time_s,
            limit="launch",
            method="assumed",
            source="no device work",
        )
    memory_s = (op.read_bytes + op.written_bytes) / device.memory_bandwidth_bytes_per_s.value
    compute_s = 0.0
    if op.work_flop:
        compute_s = op.work_flop / device.peak(_rate_dtype(op.dtype, device)).value
    ideal_s = max(compute_s, memory_s)
    limit = "compute" if compute_s > memory_s else "memory"
    if op.attention is not None:
        utilisation, width, method, source = _attention(op, op.attention, device)
    elif op.matmul is not None and op.work_flop:
        utilisation, width, method, source = _matmul(op.matmul, op.dtype, device)
    else:
        return _memory_cost(op, device)
    return _cost(ideal_s / utilisation, width, limit, method, source, device)


def _cost(
    time_s: float, width: float, limit: str, method: str, source: str, device: Device
) -> OpCost:
    launch_s = device.launch_s.value
    if time_s < launch_s:
        time_s, limit = launch_s, "launch"
    return OpCost(
        time_s=time_s,
        low_s=time_s * max(0.0, 1.0 - width),
        high_s=time_s * (1.0 + width),
        limit=limit,
        method=method,
        source=source,
    )


def _rate_dtype(dtype: str, device: Device) -> str:
    """The rate that a data type computes at: fp16 and bf16 are one where only one is listed."""
    if dtype in device.peak_flop_per_s:
        return dtype
    twin = {"float16": "bfloat16", "bfloat16": "float16"}.get(dtype, dtype)
    return twin if twin in device.peak_flop_per_s else dtype


# --- products ---------------------------------------------------------------------------------


def _matmul(shape: MatmulShape, dtype: str, device: Device) -> tuple[float, float, str, str]:
    found = _lookup(device, lambda d: _matmul_surface(d, dtype))
    if found is None:
        return (*ASSUMED["matmul"], "assumed", "no measured matmul on this device or a relative")
    surface, borrowed, source = found
    place = np.log2([max(1, shape.batch), max(1, shape.m), max(1, shape.n), max(1, shape.k)])
    utilisation, exact = surface.at(place)
    return _judged(utilisation, exact, surface.error, borrowed, source)


@functools.cache
def _matmul_surface(device: Device, dtype: str) -> _Surface | None:
    measured = device.measurements
    if measured is None:
        return None
    twins = (dtype, {"float16": "bfloat16", "bfloat16": "float16"}.get(dtype, dtype))
    for name in twins:
        points = [p for p in measured.matmul if p.dtype == name]
        if points:
            size = DTYPE_BYTES[name]
            rows, values = [], []
            for p in points:
                flop = 2.0 * p.batch * p.m * p.n * p.k
                moved = size * p.batch * (p.m * p.k + p.k * p.n + p.m * p.n)
                ideal = max(
                    flop / device.peak(_rate_dtype(name, device)).value,
                    moved / device.memory_bandwidth_bytes_per_s.value,
                )
                rows.append([p.batch, p.m, p.n, p.k])
                values.append(ideal / p.time_s)
            return _surface(rows, values)
    return None


# --- attention --------------------------------------------------------------------------------


def _attention(op: Op, shape: AttentionShape, device: Device) -> tuple[float, float, str, str]:
    phase = "backward" if op.phase is Phase.BACKWARD and "backward" in op.name else "forward"
    found = _lookup(device, lambda d: _attention_surface(d, op.dtype, phase))
    derived = False
    if found is None and phase == "backward":
        found = _lookup(device, lambda d: _attention_surface(d, op.dtype, "forward"))
        derived = True
    if found is None:
        return (*ASSUMED["attention"], "assumed", "no measured attention on this device")
    surface, borrowed, source = found
    utilisation, exact = surface.at(_attention_place(shape))
    if derived:
        # Public tables hold the forward only. The backward reaches about the same share of peak
        # less a tenth (FlashAttention-2, figures 4 and 5: 0.73 against 0.63 at best on A100).
        judged = _judged(utilisation * 0.86, False, max(surface.error, 0.2), True, source)
        return judged[0], judged[1], "assumed", f"{source}; backward from the forward's rate"
    return _judged(utilisation, exact, surface.error, borrowed, source)


def _attention_place(shape: AttentionShape) -> Array:
    return np.log2(
        [
            shape.batch * shape.heads,
            max(1, shape.heads // max(1, shape.kv_heads)),
            shape.q_len,
            shape.kv_len,
            shape.head_dim,
        ]
    )


@functools.cache
def _attention_surface(device: Device, dtype: str, phase: str) -> _Surface | None:
    measured = device.measurements
    if measured is None:
        return None
    twin = {"float16": "bfloat16", "bfloat16": "float16"}.get(dtype, dtype)
    points = [p for p in measured.attention if p.dtype in (dtype, twin) and p.phase == phase]
    if not points:
        return None
    rows, values = [], []
    ratio = _ATTENTION_BACKWARD_RATIO if phase == "backward" else 1.0
    for p in points:
        flop = 4.0 * ratio * p.batch * p.heads * p.q_len * p.kv_len * p.head_dim
        flop *= 0.5 if p.causal else 1.0
        ideal = flop / device.peak(_rate_dtype(dtype, device)).value
        place = [p.batch * p.heads, max(1, p.heads // max(1, p.kv_heads)), p.q_len, p.kv_len]
        rows.append([*place, p.head_dim])
        values.append(ideal / p.time_s)
    return _surface(rows, values)


# --- memory-bound ops -------------------------------------------------------------------------

_REDUCTIONS = ("norm", "softmax", "sum", "mean", "max", "min", "loss", "var", "prod", "cumsum")
_COPIES = ("copy", "clone", "cat", "embedding", "index", "gather", "scatter", "fill", "zero")
_COPIES += ("contiguous", "pad", "constant", "repeat", "roll", "stack", "where", "new_", "ones")


def memory_family(name: str) -> str:
    """`elementwise`, `reduction` or `copy`, by the op's name."""
    if any(word in name for word in _REDUCTIONS):
        return "reduction"
    return "copy" if any(word in name for word in _COPIES) else "elementwise"


def _memory_cost(op: Op, device: Device) -> OpCost:
    moved = op.read_bytes + op.written_bytes
    return moved_cost(memory_family(op.name), moved, device)


@functools.lru_cache(maxsize=100_000)
def moved_cost(family: str, moved_bytes: float, device: Device) -> OpCost:
    """What it costs to read and write so many bytes in an op of the family.

    family  `elementwise`, `reduction`, `copy` or `optimizer`
    """
    if moved_bytes <= 0:
        return _cost(0.0, 0.5, "launch", "assumed", "launch only", device)
    curve = _memory_curve(device, family)
    if curve is None:
        share, width = ASSUMED["memory"]
        time_s = moved_bytes / device.memory_bandwidth_bytes_per_s.value / share
        source = "share of the memory's peak bandwidth"
        return _cost(time_s, width, "memory", "assumed", source, device)
    value = curve.at(float(moved_bytes))
    width = max(_LEAST_WIDTH, (value.high - value.low) / 2 / value.value)
    method = "measured" if value.method == "measured" else "interpolated"
    if value.method == "extrapolated":
        method = "assumed"
    measured = device.measurements
    assert measured is not None
    return _cost(value.value, width, "memory", method, measured.source, device)


@functools.cache
def _memory_curve(device: Device, family: str) -> Curve | None:
    if device.measurements is None:
        return None
    points = [p for p in device.measurements.memory if p.op == family]
    if not points:
        return None
    return fit_curve([float(p.moved_bytes) for p in points], [p.time_s for p in points])


# --- shared -----------------------------------------------------------------------------------


def _lookup(
    device: Device, surface_of: Callable[[Device], _Surface | None]
) -> tuple[_Surface, bool, str] | None:
    """The device's own surface, or its relative's: (surface, borrowed, source)."""
    own = surface_of(device)
    if own is not None and device.measurements is not None:
        return own, False, device.measurements.source
    relative = relative_of(device)
    if relative is None:
        return None
    found = surface_of(relative)
    if found is None or relative.measurements is None:
        return None
    return found, True, f"utilisation of {relative.name}: {relative.measurements.source}"


@functools.cache
def relative_of(device: Device) -> Device | None:
    """The device whose measured utilisation is borrowed, if one is named."""
    if not device.efficiency_of:
        return None
    from profiles.hardware.catalog import get_device

    return get_device(device.efficiency_of)


def _judged(
    utilisation: float, exact: bool, error: float, borrowed: bool, source: str
) -> tuple[float, float, str, str]:
    if borrowed:
        return utilisation, max(0.1, error * _BORROWED_WIDER), "assumed", source
    if exact:
        return utilisation, max(_LEAST_WIDTH, error / 2), "measured", source
    return utilisation, max(_LEAST_WIDTH, error), "interpolated", source


def _surface(rows: list[list[int]], values: list[float]) -> _Surface:
    points = np.log2(np.asarray(rows, dtype=float))
    utilisation = np.asarray(values)
    bare = _Surface(points=points, utilisation=utilisation, error=0.0)
    return _Surface(points=points, utilisation=utilisation, error=_leave_one_out(bare))


def _leave_one_out(surface: _Surface) -> float:
    """90 % quantile of the relative error at a point that is left out; 0.3 under four points."""
    count = len(surface.utilisation)
    if count < 4:
        return 0.3
    errors = []
    for i in range(0, count, max(1, count // 100)):
        keep = np.arange(count) != i
        rest = _Surface(
            points=surface.points[keep], utilisation=surface.utilisation[keep], error=0.0
        )
        value, _ = rest.at(surface.points[i])
        errors.append(abs(math.log(value / surface.utilisation[i])))
    return float(np.expm1(np.quantile(errors, 0.9)))


def measured_source(measurements: Measurements | None) -> str:
    return measurements.source if measurements is not None else ""
