"""The time of one op on one device.

    time = max( speed of light / utilisation , launch )

The speed of light of the op (traced/speed_of_light.py) is divided by the utilisation that kernels
of such a shape reach (traced/utilisation.py); the host's launch time is a floor, because a kernel
that ends sooner waits for the next launch. Memory-bound ops are read off measured curves of time
over moved bytes (kernels/fit.py), of the op by its name or of its family, where there are any. The
utilisation of matmuls and attention is that of an accelerator's measured surfaces, or of its
relative's (simulator/kernel_speed.py), unless the device brings points of its own (a profile of
this machine). A device that is not in the catalogue borrows from the one that it names. On a CPU
what autograd's records take on the host is added to every op.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.device import ACROSS, Device, twin_type
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
from profiles.sourced import Sourced
from simulator.kernel_speed import (
    attention_half_width,
    attention_s,
    borrowed_from,
    is_on_surfaces,
    matmul_half_width,
    matmul_s,
)
from simulator.traced.cost import Cost
from simulator.traced.op_assumptions import (
    BORROWED_LOG_HALF_WIDTH,
    DEFAULT_ATTENTION,
    DEFAULT_MATMUL,
    DEFAULT_MEMORY,
    SUBSTITUTE_LOG_HALF_WIDTH,
    memory_family,
)
from simulator.traced.point_maps import (
    attention_axes,
    attention_maps,
    conv_axes,
    conv_maps,
    conv_pass,
    matmul_maps,
    memory_curves,
)
from simulator.traced.speed_of_light import SpeedOfLight
from simulator.traced.utilisation import Utilisation, UtilisationMap


def price_op(op: Op, device: Device) -> Cost:
    """The cost of `op` on `device`; remembered per shape and device."""
    return pricer_of(device).price(op)


def moved_cost(family: str, moved_bytes: float, device: Device) -> Cost:
    """The cost of reading and writing so many bytes in one kernel.

    family  `elementwise`, `reduction`, `copy` or `optimizer`
    """
    return pricer_of(device).move(family, moved_bytes)


class OpPricer:
    """Prices ops on one device and remembers them; obtained from `pricer_of`."""

    def __init__(self, device: Device, lender: OpPricer | None) -> None:
        self.device = device
        self.lender = lender
        self.light = SpeedOfLight(device)
        self._known: dict[tuple[object, ...], Cost] = {}
        self._matmul: dict[str, UtilisationMap] = {}
        self._attention: dict[tuple[str, str, bool], UtilisationMap] = {}
        self._curves: dict[tuple[str, str], Curve] = {}
        self._conv: dict[tuple[str, str, str], UtilisationMap] = {}
        self._host: dict[tuple[str, str], float] = {}
        points = device.measurements
        self.source = points.source if points else ""
        self._on_surfaces = device.type != "cpu" and not (points and points.matmul)
        self._on_surfaces = self._on_surfaces and is_on_surfaces(device.name)
        if self._on_surfaces:
            surface = load_surface(device.name)
            self.source = f"kernel surfaces of {surface.measured_on}: {surface.source}"
        if points is not None:
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
            cost = self._known[key] = self._with_host(self._price(op, moved), op)
        return cost

    def module_s(self) -> float:
        """Host seconds of the call of a module, where they were measured."""
        return self._host.get(("module", str(Phase.FORWARD)), 0.0)

    def checkpoint_s(self) -> float:
        """Host seconds of a checkpointed call, forward and backward, where they were measured."""
        return sum(self._host.get(("checkpoint", str(phase)), 0.0) for phase in Phase)

    def move(self, name: str, moved_bytes: float, dtype: str = "float32") -> Cost:
        """The cost of moving bytes in one kernel of a family, or of an aten op by its name.

        An op without points in a type takes as long as in float32 on as many elements.
        """
        ratio, extra, source = 1.0, 0.0, self.source
        curve, wider = self._curve(name, dtype)
        if curve is None and self.lender is not None:
            curve, wider = self.lender._curve(name, dtype)
            ratio = self.lender.light.bandwidth / self.light.bandwidth
            extra = BORROWED_LOG_HALF_WIDTH
            source = f"as on {self.lender.device.name}: {self.lender.source}"
        if curve is None or moved_bytes <= 0:
            light_s = moved_bytes / self.light.bandwidth
            return self._cost(light_s, _default(DEFAULT_MEMORY), DEFAULT_MEMORY.source)
        read = curve.at(moved_bytes * wider)
        used = Utilisation(
            log_value=0.0,
            log_half_width=math.log(read.high / read.value) + extra,
            method="assumed" if extra or read.method == "extrapolated" else read.method,
        )
        return self._cost(read.value * ratio, used, source)

    def _curve(self, name: str, dtype: str) -> tuple[Curve | None, float]:
        """The curve of an op, else of its family, and how many times the bytes to read it at."""
        names = (name, name.removesuffix(ACROSS), name.rstrip("_"), memory_family(name))
        for own in dict.fromkeys(names):
            if (own, dtype) in self._curves:
                return self._curves[own, dtype], 1.0
            if (own, "float32") in self._curves:
                wider = DTYPE_BYTES["float32"] / DTYPE_BYTES.get(dtype, 4.0)
                # Curves of accelerators are over bytes of any type: the memory binds there.
                return self._curves[own, "float32"], wider if self.device.type == "cpu" else 1.0
        return None, 1.0

    def _with_host(self, cost: Cost, op: Op) -> Cost:
        """With what autograd adds on the host, which a CPU's op waits for."""
        more_s = self._host.get(("op", str(op.phase)), 0.0)
        return cost if op.kind is OpKind.VIEW or not more_s else cost.scaled(1.0, more_s)

    # --- kinds --------------------------------------------------------------------------------

    def _price(self, op: Op, moved: int) -> Cost:
        if op.kind is OpKind.VIEW:
            return self._view(op.phase)
        if op.attention is not None:
            shape = op.attention
            light_s = self.light.attention(shape, op.dtype, op.phase)
            used, source = self._lent(
                lambda pricer: pricer.attention_utilisation(shape, op.dtype, op.phase),
                DEFAULT_ATTENTION,
            )
            return self._cost(light_s, used, source)
        if op.conv is not None and self._conv:
            return self._convolution(op, moved)
        kind = RECURRENCES.get(op.name, "")
        if (kind, str(op.phase), "float32") in self._conv:
            return self._of_kind(op, moved, kind, str(op.phase))
        if op.matmul is not None:
            product = op.matmul
            light_s = self.light.matmul(product, op.dtype)
            used, source = self._lent(
                lambda pricer: pricer.matmul_utilisation(product, op.dtype), DEFAULT_MATMUL
            )
            if op.kind is OpKind.CONV:
                used = _substitute(used)
            return self._cost(light_s, used, source)
        if op.kind is OpKind.MEMORY:
            return self.move(op.name, moved, op.dtype)
        light_s = self.light.of(op.work_flop, moved, op.dtype)
        return self._cost(light_s, _default(DEFAULT_MATMUL), DEFAULT_MATMUL.source)

    def _convolution(self, op: Op, moved: int) -> Cost:
        """At the utilisation of measured convolutions of its kind and pass, or of dense ones."""
        assert op.conv is not None
        assert op.matmul is not None
        return self._of_kind(op, moved, op.conv.kind(op.matmul.k), conv_pass(op))

    def _of_kind(self, op: Op, moved: int, kind: str, phase: str) -> Cost:
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
        return self._cost(light_s, used if same else _substitute(used), self.source)

    def _view(self, phase: Phase) -> Cost:
        """No device work. An accelerator's queue hides the host's part, a CPU pays it."""
        launch_s = self.device.launch_s.value if self.device.type == "cpu" else 0.0
        time_s = self._host.get(("view", str(phase)), launch_s)
        return Cost(
            time_s=time_s,
            low_s=0.0,
            high_s=2 * time_s,
            method="assumed",
            source="host time of a view" if time_s else "no device work",
            launch_bound=True,
        )

    def matmul_utilisation(self, shape: MatmulShape, dtype: str) -> Utilisation | None:
        """From the surface or this device's own points, of another data type where there are none
        of this."""
        if self._on_surfaces:
            return self._surface_matmul(shape, dtype)
        axes = (shape.batch, shape.m, shape.n, shape.k)
        own = self._matmul.get(dtype) or self._matmul.get(twin_type(dtype))
        if own is not None:
            return own.at(axes)
        for other in sorted(self._matmul):
            return _substitute(self._matmul[other].at(axes))
        return None

    def attention_utilisation(
        self, shape: AttentionShape, dtype: str, phase: Phase
    ) -> Utilisation | None:
        """From the surface or this device's own points: of this pass, type and mask, or of what
        comes nearest."""
        if self._on_surfaces:
            return self._surface_attention(shape, dtype, phase)
        axes = attention_axes(shape)
        exact = self._attention.get((dtype, str(phase), shape.causal))
        if exact is not None:
            return exact.at(axes)
        ranked = sorted(
            self._attention,
            key=lambda key: (key[1] != str(phase), key[0] != dtype, key[2] != shape.causal, key),
        )
        return _substitute(self._attention[ranked[0]].at(axes)) if ranked else None

    # --- surfaces -----------------------------------------------------------------------------

    def _surface_matmul(self, shape: MatmulShape, dtype: str) -> Utilisation:
        """Products of a batch fill the device together: at the speed of one of as many rows."""
        name = self.device.name
        sizes = (shape.batch * shape.m, shape.n, shape.k)
        m, n, k = (np.asarray([float(max(1, size))]) for size in sizes)
        light_s = self._of_catalogue().light.matmul(shape, dtype)
        width = matmul_half_width(name, dtype)
        return self._read(light_s, float(matmul_s(name, dtype, m, n, k)[0]), width)

    def _surface_attention(self, shape: AttentionShape, dtype: str, phase: Phase) -> Utilisation:
        """Queries and keys of unlike length as a square of as many scores; the backward is derived
        (attention_surface.backward_ratio)."""
        name = self.device.name
        length = math.sqrt(shape.q_len * shape.kv_len)
        sizes = (shape.batch, length, shape.heads, shape.kv_heads)
        batch, seq, heads, kv_heads = (np.asarray([float(size)]) for size in sizes)
        both = attention_s(
            name, dtype, shape.head_dim, batch, seq, heads, kv_heads, causal=shape.causal
        )
        backward = phase is Phase.BACKWARD
        light_s = self._of_catalogue().light.attention(shape, dtype, phase)
        used = self._read(light_s, float(both[backward][0]), attention_half_width(name))
        return _substitute(used) if backward or shape.q_len != shape.kv_len else used

    def _of_catalogue(self) -> OpPricer:
        """That of the device as the catalogue has it: a what-if of it keeps the utilisation."""
        return pricer_of(get_device(self.device.name))

    def _read(self, light_s: float, time_s: float, half_width: float) -> Utilisation:
        borrowed = borrowed_from(self.device.name)
        return Utilisation(
            log_value=math.log(light_s / time_s),
            log_half_width=math.log1p(half_width) + (BORROWED_LOG_HALF_WIDTH if borrowed else 0.0),
            method="assumed" if borrowed else "interpolated",
        )

    # --- putting together ---------------------------------------------------------------------

    def _lent(
        self, ask: Callable[[OpPricer], Utilisation | None], default: Sourced
    ) -> tuple[Utilisation, str]:
        """The utilisation and its source: own points, the lender's, or the default."""
        own = ask(self)
        if own is not None:
            return own, self.source
        borrowed = ask(self.lender) if self.lender is not None else None
        if self.lender is None or borrowed is None:
            return _default(default), default.source
        width = borrowed.log_half_width + BORROWED_LOG_HALF_WIDTH
        source = f"utilisation as on {self.lender.device.name}: {self.lender.source}"
        return replace(borrowed, log_half_width=width, method="assumed"), source

    def _cost(self, light_s: float, used: Utilisation, source: str) -> Cost:
        time_s, factor = light_s * math.exp(-used.log_value), math.exp(used.log_half_width)
        launch = self.device.launch_s
        floor_low = launch.value * max(0.0, 1.0 - launch.uncertainty)
        low_s, high_s = max(time_s / factor, floor_low), time_s * factor
        if time_s >= launch.value:
            return Cost(
                time_s=time_s,
                low_s=min(low_s, time_s),
                high_s=high_s,
                method=used.method,
                source=source,
            )
        return Cost(
            time_s=launch.value,
            low_s=min(low_s, launch.value),
            high_s=max(high_s, launch.value * (1.0 + launch.uncertainty)),
            method="measured" if launch.method == "measured" else "assumed",
            source=launch.source,
            launch_bound=True,
        )


_PRICERS: dict[int, OpPricer] = {}
_PRICERS_KEPT = 64


def pricer_of(device: Device) -> OpPricer:
    """The pricer of a device, made once per device value while that value is in use."""
    found = _PRICERS.get(id(device))
    if found is not None and found.device is device:
        return found
    made = OpPricer(device, _lender_of(device))
    if len(_PRICERS) >= _PRICERS_KEPT:
        _PRICERS.pop(next(iter(_PRICERS)))
    # The pricer holds the device, so that its id is not given to another value meanwhile.
    _PRICERS[id(device)] = made
    return made


def _lender_of(device: Device) -> OpPricer | None:
    if not device.efficiency_of or device.efficiency_of == device.name:
        return None
    lender = get_device(device.efficiency_of)
    known = lender.measurements is not None or is_on_surfaces(lender.name)
    return pricer_of(lender) if known else None


def _default(number: Sourced) -> Utilisation:
    return Utilisation(
        log_value=math.log(number.value),
        log_half_width=math.log1p(number.uncertainty),
        method="assumed",
    )


def _substitute(used: Utilisation) -> Utilisation:
    width = used.log_half_width + SUBSTITUTE_LOG_HALF_WIDTH
    return replace(used, log_half_width=width, method="assumed")
