"""How far the time of many kernels may be off, from how far each may be.

Kernels of one kind are read off one curve or map, so that their errors go together and add up;
those of unlike kinds come from points measured apart, and are as often of unlike sign: their sums
are combined as independent errors are, by the root of the sum of squares. What a kernel took also
depends on the machine's speed in that minute, which is common to all and was watched by reference
kernels while it was measured (`ReferencePoint.spread`). Of the steps of 30 unlike modules on one
profiled machine 29 lay inside in each of two runs in float32, 28 in bfloat16 (two cores, torch
2.13, 2026-11-23); with all errors together 30, 29 and 29, in intervals 1.5 to 1.8 times as wide.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from profiles.hardware.catalogue.device import Measurements
from profiles.model.graph import Op, OpKind
from simulator.traced.cost import Cost
from simulator.traced.point_maps import conv_pass

_REFERENCE = "layers"


@dataclass(frozen=True, slots=True, kw_only=True)
class KindError:
    """Kernels of one kind: seconds, and seconds by which they may be less or more (90 %)."""

    kind: str
    time_s: float
    less_s: float
    more_s: float


def kind_errors(costs: Iterable[tuple[Op, Cost]]) -> tuple[KindError, ...]:
    """One entry per kind of kernel, in the order in which they come up."""
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for op, cost in costs:
        each = (cost.time_s, cost.time_s - cost.low_s, cost.high_s - cost.time_s)
        sums[_kind(op)] = [a + b for a, b in zip(sums[_kind(op)], each, strict=True)]
    return tuple(
        KindError(kind=kind, time_s=time_s, less_s=less_s, more_s=more_s)
        for kind, (time_s, less_s, more_s) in sums.items()
    )


def joint_share(errors: Iterable[KindError], measured: Measurements | None) -> tuple[float, float]:
    """What part of the sum of all errors the whole may be off by, downwards and upwards: 1 where
    they all go together. More than 1 where the machine's speed is less certain than its kernels.

    measured  of the device; without reference kernels nothing is known of its speed, nor was it
              ever checked that errors of kinds are independent: they are taken to go together
    """
    by_kind: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    time_s = 0.0
    for error in errors:
        time_s += error.time_s
        so_far = by_kind[error.kind]
        by_kind[error.kind] = [so_far[0] + error.less_s, so_far[1] + error.more_s]
    references = measured.references if measured is not None else ()
    speed = next((r.spread for r in references if r.kernel == _REFERENCE), None)
    if speed is None or not time_s:
        return 1.0, 1.0
    shares = []
    for end in (0, 1):
        parts = [ends[end] for ends in by_kind.values()]
        joint = math.hypot(*parts, speed * time_s)
        shares.append(joint / sum(parts) if sum(parts) else 1.0)
    return shares[0], shares[1]


def _kind(op: Op) -> str:
    """What is read off one curve or map (simulator/traced/op_cost.py)."""
    if op.kind is OpKind.VIEW:
        return "view"
    if op.conv is not None and op.matmul is not None:
        return f"convolution {op.conv.kind(op.matmul.k)} {conv_pass(op)}"
    if op.attention is not None:
        return f"attention {op.phase}"
    if op.matmul is not None:
        return f"matmul {op.dtype}"
    return f"{op.name.rstrip('_')} {op.dtype}"
