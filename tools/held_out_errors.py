"""Errors of a fit on rows that it had not seen."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from profiles.hardware.kernels.kernel_surface import HeldOut


def errors_of(
    split: str,
    predicted: NDArray[np.float64],
    measured: NDArray[np.float64],
    parts: Mapping[str, NDArray[np.bool_]],
) -> tuple[HeldOut, ...]:
    """One HeldOut per part."""
    ratio = predicted / measured - 1.0
    return tuple(
        HeldOut(
            split=split,
            where=where,
            rows=int(mask.sum()),
            median=round(float(np.median(np.abs(ratio[mask]))), 4),
            p90=round(float(np.quantile(np.abs(ratio[mask]), 0.9)), 4),
            bias=round(float(np.median(ratio[mask])), 4),
        )
        for where, mask in parts.items()
    )
