"""The error of pricing a kernel without measured steps like the most similar kernel, estimated on
kernels that measured steps have."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from profiles.model.kernels import Kernel
from simulator.traced.kernel_seconds import group_seconds
from tools.module_fit import Array, MeasuredSteps

# As a convolution of volumes is priced as one of images.
_MOST_LIKE = {
    Kernel.CONV_1X1: Kernel.CONV,
    Kernel.CONV: Kernel.CONV_1X1,
    Kernel.GROUPED: Kernel.CONV,
    Kernel.DEPTHWISE: Kernel.CONV,
    Kernel.MATMUL: Kernel.BATCHED_MATMUL,
    Kernel.BATCHED_MATMUL: Kernel.MATMUL,
    Kernel.BATCH_NORM: Kernel.ROW_NORM,
    Kernel.ROW_NORM: Kernel.BATCH_NORM,
    Kernel.POOL: Kernel.ELEMENTWISE,
    Kernel.SOFTMAX: Kernel.ROW_NORM,
    Kernel.REDUCTION: Kernel.ELEMENTWISE,
    Kernel.COPY: Kernel.ELEMENTWISE,
    Kernel.TRANSPOSE: Kernel.COPY,
    Kernel.GATHER: Kernel.COPY,
    Kernel.SCATTER: Kernel.GATHER,
    Kernel.FILL: Kernel.COPY,
    Kernel.ELEMENTWISE: Kernel.COPY,
}


def borrowed_errors(data: MeasuredSteps, values: Mapping[str, float]) -> dict[Kernel, float]:
    """log(seconds as the most alike / seconds as fitted) of each kernel, in the middle of rows."""
    found = {}
    for kernel, other in _MOST_LIKE.items():
        if kernel in data.kernels:
            own, as_other = (_sums(data, kernel, k, values) for k in (kernel, other))
            has = own > 0
            found[kernel] = float(np.median(np.log(as_other[has] / own[has])))
    return found


def _sums(
    data: MeasuredSteps, kernel: Kernel, priced_as: Kernel, values: Mapping[str, float]
) -> Array:
    places, group = data.kernels[kernel]
    seconds = group_seconds(priced_as, group, values) * group.count
    return np.asarray(np.bincount(data.row[places], seconds, len(data.measured_s)), float)
