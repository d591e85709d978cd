"""Errors of a fitted surface on rows that its fit had not seen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Errors |predicted / measured - 1| on one part of the held-out rows.

    split   how rows were held out: `shapes` (a random third of the rows) or `blocks` (whole
            neighbourhoods: 3x3 blocks of (n, k) of matmuls, all calls of a (heads, kv_heads) pair
            of attention)
    where   the part of the rows; the derive script says what each name means
    bias    median of predicted / measured - 1
    """

    split: str
    where: str
    rows: int
    median: float
    p90: float
    bias: float


def half_width(errors: tuple[HeldOut, ...], where: str) -> float:
    """Relative half-width of a 90 % interval: p90 of the held-out blocks of that part, else 1."""
    found = [error.p90 for error in errors if error.split == "blocks" and error.where == where]
    return found[0] if found else 1.0
