"""`Matmul`: a product of matrices, its gradients' sizes, and the casts to few bits before it.

Transformer Engine casts the input of every linear layer in the forward and the gradient of its
output in the backward, each once, to a copy by rows and one by columns (one kernel; transformer_
engine/common/cast, docs "Low precision training"). Weights are cast once per step and not counted.
Bytes per element, in a read of 16 bits and both copies:

    fp8     2 + 2 x 1, and one more read of 2 for the tensor's maximum (current scaling; delayed
            scaling finds it in the same pass)
    mxfp8   2 + 2 x (1 + 1/32): a scale of one byte per 32 elements
    nvfp4   2 + 2 x (1/2 + 1/16), and one more read for the maximum; a scale per 16 elements
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

CAST_BYTES = {
    "fp8": 2.0 + 2.0 + 2.0,
    "mxfp8": 2.0 + 2.0 * (1.0 + 1.0 / 32.0),
    "nvfp4": 2.0 + 2.0 + 2.0 * (0.5 + 1.0 / 16.0),
}


@dataclass(frozen=True, slots=True)
class Matmul:
    """`count` products [m, k] x [k, n] in data type `dtype`."""

    m: float
    n: float
    k: float
    dtype: str
    count: float = 1.0


def gradient_sizes(m: float, n: float, k: float) -> tuple[tuple[float, float, float], ...]:
    """(m, n, k) of the two backward products of [m, k] x [k, n]: for its input, then for its
    weights (not for frozen ones)."""
    return (m, k, n), (k, n, m)


def cast_bytes(precision: str, products: Iterable[Matmul]) -> tuple[float, float]:
    """Bytes of the casts of a layer's products, forward and backward; 0 for 16 bits or more."""
    each = CAST_BYTES.get(precision, 0.0)
    low = [x for x in products if x.dtype.startswith(("float8", "float4"))] if each else []
    inputs = sum(x.m * x.k * x.count for x in low)
    gradients = sum(x.m * x.n * x.count for x in low)
    return each * inputs, each * gradients
