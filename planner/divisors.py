"""`divisors`: what degrees and micro-batches are drawn from."""

from __future__ import annotations

import math


def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive number, rising.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [value for value in range(1, math.isqrt(number) + 1) if number % value == 0]
    return tuple(sorted({*small, *(number // value for value in small)}))
