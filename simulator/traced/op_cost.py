"""The time of one op on one device.

    time = max( speed of light / utilization , launch )

The speed of light of the op (traced/utilisation.py) is divided by the utilization of kernels of
its shape (traced/utilisation.py). The host's launch time is a lower limit, because a shorter kernel
waits for the next launch. Memory-bound ops are read from measured curves of time over moved bytes
(kernels/fit.py), of the op or its family, if there are any. The utilization of matmuls and
attention comes from the device's own points (a profile of this machine), or from measured surfaces
of the accelerator or its relative (simulator/kernel_speed.py). A device that is a variant of a
catalog device uses that device's surfaces. On a CPU, every op includes the host time of autograd.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.device import ACROSS, Device, Measurements, twin_type
from profiles.hardware.kernels.fit import Curve
from profiles.hardware.kernels.gemm_surface import load_surface
from profiles.model.graph import (
    CHANNELS_LAST,
    DTYPE_BYTES,
    RECURRENCES,
    AttentionShape,
    MatmulShape,
    Op,
    OpKind,
    Phase,
)
from simulator.kernel_speed import (
    attention_half_width,
    attention_s,
    borrowed_from,
    is_on_surfaces,
    matmul_half_width,
    matmul_s,
)
from simulator.traced.cost import Cost
from simulator.traced.utilisation import (
    BORROWED_LOG_HALF_WIDTH,
    DEFAULT_ATTENTION,
    DEFAULT_MATMUL,
    DEFAULT_MEMORY,
    SUBSTITUTE_LOG_HALF_WIDTH,
    SpeedOfLight,
    Utilisation,
    attention_axes,
    attention_maps,
    conv_axes,
    conv_maps,
    conv_pass,
    matmul_maps,
    memory_curves,
    memory_family,
)


def price_op(op: Op, device: Device) -> Cost:
    """The cost of `op` on `device`, cached per shape and device."""
    return pricer_of(device).price(op)


def moved_cost(family: str, moved_bytes: float, device: Device) -> Cost:
    """The cost of reading and writing this many bytes in one kernel.

    family  `elementwise`, `reduction`, `copy` or `optimizer`
    """
    return pricer_of(device).move(family, moved_bytes)


def surfaces_of(device: Device) -> str:
    """The device whose kernel surfaces apply: itself, or the one that it is a variant of; "" for
    none."""
    names = (device.name, device.efficiency_of)
    return next((name for name in names if is_on_surfaces(name)), "")


class OpPricer:
    """Prices ops on one device, with a cache; obtained from `pricer_of`."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.light = SpeedOfLight(device)
        self._known: dict[tuple[object, ...], Cost] = {}
        self._surfaces = "" if device.type == "cpu" else surfaces_of(device)
        points = device.measurements or Measurements(source="", date="")
        self._source = points.source
        self._matmul = matmul_maps(points.matmul, self.light)
        self._attention = attention_maps(points.attention, self.light)
        self._conv = conv_maps(points.conv, self.light)
        self._curves = memory_curves(points.memory)
        self._host = {(p.kind, p.phase): p.time_s for p in points.host}

    def price(self, op: Op) -> Cost:
        """The cost of an op."""
        moved = op.read_bytes + op.written_bytes
        shape = (op.matmul, op.attention, op.conv)
        key = (op.name, op.kind, op.phase, op.dtype, shape, op.work_flop, moved)
        cost = self._known.get(key)
        if cost is None:
            cost = self._price(op, moved)
            if op.kind is not OpKind.VIEW:
                # Host time of autograd, which is part of a CPU's op.
                cost = cost.plus(self._host.get(("op", str(op.phase)), 0.0))
            self._known[key] = cost
        return cost

    def module_s(self) -> float:
        """Measured host seconds of the call of a module; 0 without a measurement."""
        return self._host.get(("module", str(Phase.FORWARD)), 0.0)

    def checkpoint_s(self) -> float:
        """Measured host seconds of a checkpointed call, forward and backward; 0 without a
        measurement."""
        return sum(self._host.get(("checkpoint", str(phase)), 0.0) for phase in Phase)

    def move(self, name: str, moved_bytes: float, dtype: str = "float32") -> Cost:
        """The cost of moving bytes in one kernel of a family, or of an aten op by its name.

        An op without points in a type takes as long as in float32 on as many elements.
        """
        curve, wider = self._curve(name, dtype)
        if curve is None or moved_bytes <= 0:
            return self._cost(moved_bytes / self.light.bandwidth, DEFAULT_MEMORY)
        read = curve.at(moved_bytes * wider)
        used = Utilisation(
            log_value=0.0,
            log_half_width=math.log(read.high / read.value),
            method="assumed" if read.method == "extrapolated" else read.method,
        )
        return self._cost(read.value, used)

    def _curve(self, name: str, dtype: str) -> tuple[Curve | None, float]:
        """The curve of an op, otherwise of its family, and the factor on the bytes at which to read
        it."""
        names = (name, name.removesuffix(ACROSS), name.rstrip("_"), memory_family(name))
        for own in dict.fromkeys(names):
            if (own, dtype) in self._curves:
                return self._curves[own, dtype], 1.0
            if (own, "float32") in self._curves:
                wider = DTYPE_BYTES["float32"] / DTYPE_BYTES.get(dtype, 4.0)
                # Curves of accelerators are over bytes of any type: the memory binds there.
                return self._curves[own, "float32"], wider if self.device.type == "cpu" else 1.0
        return None, 1.0

    # --- kinds --------------------------------------------------------------------------------

    def _price(self, op: Op, moved: int) -> Cost:
        if op.kind is OpKind.VIEW:
            return self.view(op.phase)
        if op.attention is not None:
            light_s = self.light.attention(op.attention, op.dtype, op.phase)
            return self._cost(light_s, self._attention_used(op.attention, op.dtype, op.phase))
        if op.conv is not None and op.matmul is not None and self._conv:
            return self._of_kind(op, moved, op.conv.kind(op.matmul.k), conv_pass(op))
        kind = RECURRENCES.get(op.name, "")
        if (kind, str(op.phase), "float32") in self._conv:
            return self._of_kind(op, moved, kind, str(op.phase))
        if op.matmul is not None:
            used = self._matmul_used(op.matmul, op.dtype)
            light_s = self.light.matmul(op.matmul, op.dtype)
            return self._cost(light_s, _substitute(used) if op.kind is OpKind.CONV else used)
        if op.kind is OpKind.MEMORY:
            return self.move(op.name, moved, op.dtype)
        return self._cost(self.light.of(op.work_flop, moved, op.dtype), DEFAULT_MATMUL)

    def _of_kind(self, op: Op, moved: int, kind: str, phase: str) -> Cost:
        """The cost at the utilization of measured convolutions or recurrences of a kind and pass,
        otherwise of dense convolutions."""
        assert op.matmul is not None
        own = kind if (kind, phase, "float32") in self._conv else kind.removesuffix(CHANNELS_LAST)
        dtype = op.dtype if (own, phase, op.dtype) in self._conv else "float32"
        asked = (own, phase, dtype)
        read = next((k for k in (asked, ("dense", phase, dtype)) if k in self._conv), None)
        read = read or next(iter(self._conv))
        wider = DTYPE_BYTES[dtype] / DTYPE_BYTES.get(op.dtype, 4.0)
        light_s = self.light.of(op.work_flop, wider * moved, dtype)
        images, stride = (op.conv.images, op.conv.stride) if op.conv is not None else (1, 1)
        product = (op.matmul.m, op.matmul.n, op.matmul.k)
        used = self._conv[read].at(conv_axes(read[0], images, stride, product))
        same = (*read, dtype) == (kind, phase, dtype, op.dtype)
        return self._cost(light_s, used if same else _substitute(used))

    def view(self, phase: Phase) -> Cost:
        """The cost of a view: no device work. Only a CPU pays the host time."""
        launch_s = self.device.launch_s.value if self.device.type == "cpu" else 0.0
        time_s = self._host.get(("view", str(phase)), launch_s)
        return Cost(
            value=time_s,
            low=0.0,
            high=2 * time_s,
            method="assumed",
            source="host time of a view" if time_s else "no device work",
            launch_bound=True,
        )

    def _matmul_used(self, shape: MatmulShape, dtype: str) -> Utilisation:
        """Utilization from this device's points, otherwise of another data type, otherwise from the
        surface."""
        axes = (shape.batch, shape.m, shape.n, shape.k)
        own = self._matmul.get(dtype) or self._matmul.get(twin_type(dtype))
        if own is not None:
            return own.at(axes)
        if self._matmul:
            return _substitute(self._matmul[min(self._matmul)].at(axes))
        if not self._surfaces:
            return DEFAULT_MATMUL
        # Products of a batch fill the device together: at the speed of one of as many rows.
        sizes = (shape.batch * shape.m, shape.n, shape.k)
        m, n, k = (np.asarray([float(max(1, size))]) for size in sizes)
        light_s = self._surface_light().matmul(shape, dtype)
        width = matmul_half_width(self._surfaces, dtype)
        return self._read(light_s, float(matmul_s(self._surfaces, dtype, m, n, k)[0]), width)

    def _attention_used(self, shape: AttentionShape, dtype: str, phase: Phase) -> Utilisation:
        """Utilization from this device's points, nearest by pass, type and mask, otherwise from the
        surface.

        On surfaces, queries and keys of different length count as a square with as many scores; the
        backward is derived (attention_surface.backward_ratio).
        """
        asked = (dtype, str(phase), shape.causal)
        if self._attention:
            nearest = min(
                self._attention,
                key=lambda k: (k[1] != asked[1], k[0] != dtype, k[2] != shape.causal, k),
            )
            used = self._attention[nearest].at(attention_axes(shape))
            return used if nearest == asked else _substitute(used)
        if not self._surfaces:
            return DEFAULT_ATTENTION
        length = math.sqrt(shape.q_len * shape.kv_len)
        sizes = (shape.batch, length, shape.heads, shape.kv_heads)
        batch, seq, heads, kv_heads = (np.asarray([float(size)]) for size in sizes)
        both = attention_s(
            self._surfaces, dtype, shape.head_dim, batch, seq, heads, kv_heads, causal=shape.causal
        )
        backward = phase is Phase.BACKWARD
        light_s = self._surface_light().attention(shape, dtype, phase)
        used = self._read(light_s, float(both[backward][0]), attention_half_width(self._surfaces))
        return _substitute(used) if backward or shape.q_len != shape.kv_len else used

    def _surface_light(self) -> SpeedOfLight:
        """Speed of light of the device in the catalog: a variant keeps its utilization."""
        return SpeedOfLight(get_device(self._surfaces))

    def _read(self, light_s: float, time_s: float, half_width: float) -> Utilisation:
        """Utilization of a kernel, given its time on the surfaces."""
        surface, lent = load_surface(self._surfaces), self._surfaces != self.device.name
        borrowed = bool(borrowed_from(self._surfaces)) + lent
        source = f"kernel surfaces of {surface.measured_on}: {surface.source}"
        return Utilisation(
            log_value=math.log(light_s / time_s),
            log_half_width=math.log1p(half_width) + borrowed * BORROWED_LOG_HALF_WIDTH,
            method="assumed" if borrowed else "interpolated",
            source=f"utilisation as on {self._surfaces}: {source}" if lent else source,
        )

    def _cost(self, light_s: float, used: Utilisation) -> Cost:
        time_s, factor = light_s * math.exp(-used.log_value), math.exp(used.log_half_width)
        launch = self.device.launch_s
        floor_low = launch.value * max(0.0, 1.0 - launch.uncertainty)
        low_s, high_s = max(time_s / factor, floor_low), time_s * factor
        if time_s >= launch.value:
            return Cost(
                value=time_s,
                low=min(low_s, time_s),
                high=high_s,
                method=used.method,
                source=used.source or self._source,
            )
        return Cost(
            value=launch.value,
            low=min(low_s, launch.value),
            high=max(high_s, launch.value * (1.0 + launch.uncertainty)),
            method="measured" if launch.method == "measured" else "assumed",
            source=launch.source,
            launch_bound=True,
        )


_PRICERS: dict[int, OpPricer] = {}
_PRICERS_KEPT = 64


def pricer_of(device: Device) -> OpPricer:
    """The pricer of a device, cached while the device value is in use."""
    found = _PRICERS.get(id(device))
    if found is not None and found.device is device:
        return found
    made = OpPricer(device)
    if len(_PRICERS) >= _PRICERS_KEPT:
        _PRICERS.pop(next(iter(_PRICERS)))
    # The pricer holds the device, so that its id is not given to another value meanwhile.
    _PRICERS[id(device)] = made
    return made


def _substitute(used: Utilisation) -> Utilisation:
    width = used.log_half_width + SUBSTITUTE_LOG_HALF_WIDTH
    return replace(used, log_half_width=width, method="assumed")
