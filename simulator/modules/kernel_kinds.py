"""Kernels that enough measured steps have for their price to be known, and those that are not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from profiles.model.steps.module_step import Kernel, StepOp
from simulator.modules.step_arrays import Array

MUCH = 0.05
"""Share of its kernels' time from which on a step is one of a kind of kernel."""
_IMAGES = 2  # dimensions
_JOINED = frozenset(
    (
        Kernel.BATCH_NORM,
        Kernel.ROW_NORM,
        Kernel.SOFTMAX,
        Kernel.REDUCTION,
        Kernel.COPY,
        Kernel.TRANSPOSE,
        Kernel.GATHER,
        Kernel.FILL,
        Kernel.ELEMENTWISE,
    )
)
# Steps are 9 % off in the mean when their family is left out, 20 of them together 2 %: that is 40 %
# of a kernel of a twentieth of their time. Fewer say little of it.
_ENOUGH_STEPS = 20


def kernel_kind(op: StepOp) -> str:
    """What an op's constants stand for: its kernel, and how a convolution differs from those of
    images, which libraries run by other algorithms.

    >>> from profiles.model.graph import Phase
    >>> from profiles.model.steps.module_step import Kernel
    >>> volumes = dict(op="convolution", phase=Phase.FORWARD, dtype="float32", spatial=3, taps=27)
    >>> kernel_kind(StepOp(kernel=Kernel.CONV, **volumes))
    'conv 3-d'
    >>> kernel_kind(StepOp(kernel=Kernel.CONV, **volumes, dilation=2))
    'dilated conv 3-d'
    """
    words = [op.kernel.value]
    if op.spatial not in (0, _IMAGES):
        words.append(f"{op.spatial}-d")
    if op.dilation > 1 and op.taps > 1:
        words.insert(0, "dilated")
    return " ".join(words)


def seconds_by_kind(ops: Sequence[StepOp], seconds: Array) -> dict[str, float]:
    """Seconds of a step's kernels by kind; `seconds` of each op, all its runs together."""
    found: dict[str, float] = {}
    for op, taken in zip(ops, seconds.tolist(), strict=True):
        if taken > 0:
            kind = kernel_kind(op)
            found[kind] = found.get(kind, 0.0) + taken
    return found


def unmeasured(
    by_kind: Mapping[str, float], measured: Mapping[str, int], *, compiled: bool
) -> dict[str, float]:
    """The kinds that too few steps of the fit are of, with their share of this step's kernels'
    time.

    measured  kind -> steps of it;  compiled  kernels that only move bytes are joined with others,
              as in no step of the fit
    """
    total = sum(by_kind.values())
    joined = _JOINED if compiled else frozenset()
    return {
        kind: taken / total
        for kind, taken in sorted(by_kind.items())
        if kind in joined or measured.get(kind, 0) < _ENOUGH_STEPS
    }
