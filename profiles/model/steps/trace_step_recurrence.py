"""A layer of an LSTM, GRU or RNN as cuDNN runs it (Appleyard et al., arXiv 1604.01946): the
products of all inputs at once, then one product of the state at every position, each after the one
before, with the gates joined to it. The host starts the layer once."""

from __future__ import annotations

from typing import Any

from profiles.model.graph import RECURRENCES, Phase
from profiles.model.steps.module_step import Kernel, StepOp
from profiles.model.tracing.trace_ops import dtype_name


def is_recurrence(name: str) -> bool:
    """Whether the op is a layer, forward or backward (tracing/trace_recurrence.py)."""
    return name.replace("::", ".") in RECURRENCES


def recurrence_ops(name: str, args: tuple[Any, ...], phase: Phase) -> tuple[StepOp, ...]:
    """The products of x [length, batch, inputs] and weights [gates, inputs], [gates, size]."""
    backward = name.endswith("backward")
    x, w_state = (args[place + int(backward)] for place in (0, 4))
    length, batch, inputs = x.shape
    gates, size = w_state.shape

    def product(m: int, n: int, k: int, kernel: Kernel = Kernel.MATMUL, starts: int = 0) -> StepOp:
        return StepOp(
            op=name,
            kernel=kernel,
            phase=phase,
            dtype=dtype_name(x.dtype),
            work_flop=2.0 * m * n * k,
            read_bytes=float(x.element_size() * (m * k + k * n)),
            written_bytes=float(x.element_size() * m * n),
            batch=1,
            m=m,
            n=n,
            k=k,
            starts=starts,
        )

    rows = length * batch
    if not backward:
        each = product(batch, gates, size, Kernel.RECURRENCE)
        return (product(rows, gates, inputs, starts=1), *(each,) * length)
    each = product(batch, size, gates, Kernel.RECURRENCE)
    return (
        product(rows, inputs, gates, starts=1),
        product(gates, inputs, rows),
        product(gates, size, rows),
        *(each,) * length,
    )
