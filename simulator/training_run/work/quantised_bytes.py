"""Bytes that casting to 8 or 4 bits moves: what a matmul of lower precision costs beside itself.

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
from typing import Protocol


class Product(Protocol):
    """[m, k] x [k, n], `count` times, in `dtype`."""

    @property
    def m(self) -> float: ...
    @property
    def n(self) -> float: ...
    @property
    def k(self) -> float: ...
    @property
    def count(self) -> float: ...
    @property
    def dtype(self) -> str: ...


CAST_BYTES = {
    "fp8": 2.0 + 2.0 + 2.0,
    "mxfp8": 2.0 + 2.0 * (1.0 + 1.0 / 32.0),
    "nvfp4": 2.0 + 2.0 + 2.0 * (0.5 + 1.0 / 16.0),
}
_LOW = ("float8", "float4")


def quantised_bytes(precision: str, products: Iterable[Product]) -> tuple[float, float]:
    """Bytes of the casts of a layer's products, forward and backward; 0 at 16 bits and more."""
    each = CAST_BYTES.get(precision, 0.0)
    if not each:
        return 0.0, 0.0
    low = [x for x in products if x.dtype.startswith(_LOW)]
    inputs = sum(x.m * x.k * x.count for x in low)
    gradients = sum(x.m * x.n * x.count for x in low)
    return each * inputs, each * gradients
