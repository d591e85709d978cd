"""The uncertainty of the sum of many kernels, from the uncertainty of each.

Kernels of one kind are read from one curve or map, so their errors are correlated and add up. Kinds
are measured independently, so their sums are combined by the root of the sum of squares. The
machine's speed during the measurement is a common error of all kernels, estimated from reference
kernels (`ReferencePoint.spread`). Of 30 different modules on one profiled machine, 29 steps were
inside the interval in each of two runs in float32, 28 in bfloat16 (two cores, torch 2.13,
2026-11-23). With fully correlated kinds it was 30, 29 and 29, in intervals 1.5 to 1.8 times as
wide.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from profiles.hardware.catalogue.device import Measurements
from profiles.model.graph import Op, OpKind
from simulator.log_interval import total
from simulator.traced.cost import Cost
from simulator.traced.utilisation import conv_pass
from simulator.values.prediction import Interval

_REFERENCE = "layers"
KindSeconds = Mapping[str, Interval]
"""Seconds of kernels by kind: one curve or map gives the times of a kind."""


def kind_seconds(costs: Iterable[tuple[Op, Cost]]) -> KindSeconds:
    """The seconds of ops by kind, in order of first appearance."""
    found: defaultdict[str, list[Interval]] = defaultdict(list)
    for op, cost in costs:
        found[_kind(op)].append(cost)
    return {kind: total(*own) for kind, own in found.items()}


def joint_share(parts: Iterable[KindSeconds], measured: Measurements | None) -> tuple[float, float]:
    """Uncertainty of the sum, downwards and upwards, divided by the sum of all errors: 1 for full
    correlation, above 1 if the machine's speed is less certain than its kernels.

    measured  of the device; without reference kernels, full correlation is assumed
    """
    references = measured.references if measured is not None else ()
    speed = next((r.spread for r in references if r.kernel == _REFERENCE), None)
    by_kind: defaultdict[str, list[Interval]] = defaultdict(list)
    for part in parts:
        for kind, seconds in part.items():
            by_kind[kind].append(seconds)
    if speed is None or not by_kind:
        return 1.0, 1.0
    kinds = [total(*own) for own in by_kind.values()]
    speed_s = speed * sum(each.value for each in kinds)

    def share(errors: list[float]) -> float:
        return math.hypot(*errors, speed_s) / sum(errors) if sum(errors) else 1.0

    return share([x.value - x.low for x in kinds]), share([x.high - x.value for x in kinds])


def _kind(op: Op) -> str:
    """The name of the curve or map that gives an op's time (simulator/traced/op_cost.py)."""
    if op.kind is OpKind.VIEW:
        return "view"
    if op.conv is not None and op.matmul is not None:
        return f"convolution {op.conv.kind(op.matmul.k)} {conv_pass(op)}"
    if op.attention is not None:
        return f"attention {op.phase}"
    if op.matmul is not None:
        return f"matmul {op.dtype}"
    return f"{op.name.rstrip('_')} {op.dtype}"
