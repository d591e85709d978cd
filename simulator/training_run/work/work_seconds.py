"""Seconds of many layers' matmuls and attention at once, from the kernels' surfaces."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.relatives import matmul_rate_of
from simulator.kernel_speed import attention_s, flash_2, matmul_s
from simulator.training_run.work.layer_work import LayerWork
from simulator.training_run.work.matmul import Matmul, gradient_sizes
from simulator.training_run.work.state_work import SCAN_BACKWARD

Array = NDArray[np.float64]

# Tensor cores need rows of a multiple of 16 bytes (cuBLAS documentation, "Tensor Core Usage"). The
# batched products of unfused scores, whose rows are slices of a head's width, fall back to fp32
# multiply-adds otherwise: BLOOM's prequel (chronicles-prequel.md) gives 118 s per step with 96
# heads and 157 s with 128 heads of 108, which is some 10 TFLOP/s for those products.
_ALIGNED_BYTES = 16
_NARROW_TYPES = {"tf32": 4, "float8_e4m3fn": 1}
# First of two columns of sums each: forward and backward.
_MATMULS, _GROUPED, _ATTENTION, _STATES, _PEAK = 0, 2, 4, 6, 8
# A state's recurrence is batched like scores.
_BATCHED = (_ATTENTION, _ATTENTION + 1, _STATES, _STATES + 1)
# Triton's kernels of state layers are hardly faster on Blackwell than on Hopper: two of Mamba-3
# take 0.75 and 1.02 times as long on a GB200 as on an H200, while cuBLAS takes 0.41 times as long
# (github.com/state-spaces/mamba issue 904, table of kernels; a third, 39 times slower due to a
# compiler bug, is left out). Mamba-2 is assumed to be as fast as on an H100.
_STATES_DEVICE = "h100-sxm-80gb"
_NEWER_THAN_HOPPER = ("b200", "b300", "gb200", "gb300")


@dataclass(frozen=True, slots=True)
class WorkSeconds:
    """Seconds of a LayerWork on its device at the surfaces' speed, before any coefficient.

    matmul_*      matmuls of the layer
    attention_*   the attention core (fused, or its matmuls)
    grouped_*     matmuls of experts
    state_*       the recurrence of a state, with its bytes at the full bandwidth
    peak_*        `matmul_*` at the data sheet's peak
    """

    matmul_forward_s: float
    matmul_backward_s: float
    grouped_forward_s: float
    grouped_backward_s: float
    attention_forward_s: float
    attention_backward_s: float
    state_forward_s: float
    state_backward_s: float
    peak_forward_s: float
    peak_backward_s: float


def work_seconds(works: Sequence[tuple[str, LayerWork]]) -> list[WorkSeconds]:
    """The seconds of each (device name, work); equal shapes are priced together."""
    sums = np.zeros((len(works), 10))
    products: dict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)
    calls: dict[tuple[str, str, int, bool, int], list[tuple[float, ...]]] = defaultdict(list)

    def add(device: str, x: Matmul, row: int, slot: int, *, frozen: bool = False) -> None:
        """Add a product and its gradients, without the gradient of frozen weights."""
        if x.m <= 0 or x.n <= 0 or x.k <= 0:  # no dense feed-forward: all layers have experts
            return
        m, n, k = max(1.0, x.m), max(1.0, x.n), max(1.0, x.k)
        of_input, of_weight = gradient_sizes(m, n, k)
        found = products[device, x.dtype]
        found.append((m, n, k, x.count, row, slot))
        found.append((*of_input, x.count, row, slot + 1))
        if not frozen:
            found.append((*of_weight, x.count, row, slot + 1))

    for row, (device, work) in enumerate(works):
        for matmul in work.matmuls:
            add(device, matmul, row, _MATMULS, frozen=work.frozen)
        for matmul in work.grouped:
            add(device, matmul, row, _GROUPED, frozen=work.frozen)
        for matmul in work.score_matmuls:
            add(device, matmul, row, _ATTENTION)
        for x in work.attention:
            calls[device, x.dtype, x.head_size, x.newest, x.window].append(
                (x.batch, x.seq, x.heads, x.kv_heads, x.count, row)
            )
        runs_like = _STATES_DEVICE if device.startswith(_NEWER_THAN_HOPPER) else device
        state = work.state
        for matmul in state.products:
            add(runs_like, matmul, row, _STATES)
        for matmul in state.again:
            m, n, k = (max(1.0, size) for size in (matmul.m, matmul.n, matmul.k))
            products[runs_like, matmul.dtype].append((m, n, k, matmul.count, row, _STATES + 1))
        if state.pass_bytes:
            vector = _vector_flop_per_s(device)
            moved = state.pass_bytes / get_device(device).memory_bandwidth_bytes_per_s.value
            # The backward reads the gradients in addition to the inputs of the forward.
            sums[row, _STATES] += moved + state.scan_flop / vector
            sums[row, _STATES + 1] += 2.0 * moved + SCAN_BACKWARD * state.scan_flop / vector
    for (device, dtype), shapes in products.items():
        m, n, k, count, rows, slots = np.asarray(shapes).T
        # Scores are one batched call: all products fill the device together, so that they run at
        # the speed of one with as many rows as all have.
        batched = np.isin(slots, _BATCHED)
        batch = np.where(batched, count, 1.0)
        each = matmul_s(device, dtype, batch * m, n, k) * (count / batch)
        each = np.where(
            batched & _without_tensor_cores(dtype, m, n, k),
            np.maximum(each, 2 * m * n * k * count / _vector_flop_per_s(device)),
            each,
        )
        np.add.at(sums, (rows.astype(int), slots.astype(int)), each)
        main = slots < _GROUPED
        ideal = 2 * m * n * k * count / _peak_flop_per_s(device, dtype)
        np.add.at(sums, (rows[main].astype(int), _PEAK + slots[main].astype(int)), ideal[main])
    for (device, dtype, head_size, newest, window), asked in calls.items():
        batch, seq, heads, kv_heads, count, rows = np.asarray(asked).T
        # On a device without measured kernels, the causes that slow down long matmuls (clocks under
        # the power limit, libraries) slow down attention kernels too.
        factor = 1.0 / min(1.0, matmul_rate_of(device))
        if not newest:
            device, gain = flash_2(device)
            factor /= gain
        forward, backward = attention_s(
            device, dtype, head_size, batch, seq, heads, kv_heads, window=window
        )
        forward, backward = factor * forward, factor * backward
        np.add.at(sums, (rows.astype(int), _ATTENTION), forward * count)
        np.add.at(sums, (rows.astype(int), _ATTENTION + 1), backward * count)
    return [WorkSeconds(*row) for row in sums.tolist()]


def _without_tensor_cores(dtype: str, *sizes: Array) -> NDArray[np.bool_]:
    """Whether any operand's rows are not multiples of 16 bytes."""
    elements = _ALIGNED_BYTES // _NARROW_TYPES.get(dtype, 2)
    return np.asarray(np.any([size % elements != 0 for size in sizes], axis=0), dtype=np.bool_)


def _vector_flop_per_s(device: str) -> float:
    """The datasheet's fp32 rate without tensor cores; infinite if not stated."""
    peaks = get_device(device).peak_flop_per_s
    return float(peaks["float32"].value) if "float32" in peaks else math.inf


def _peak_flop_per_s(device: str, dtype: str) -> float:
    """The data sheet's rate in flop/s; on devices without measured kernels, multiplied by the share
    that long matmuls reach. Types without a rate have that of a 16-bit type."""
    return matmul_rate_of(device) * _datasheet_flop_per_s(device, dtype)


def _datasheet_flop_per_s(device: str, dtype: str) -> float:
    peaks = get_device(device).peak_flop_per_s
    for name in (dtype, "bfloat16", "float16"):
        if name in peaks:
            return float(peaks[name].value)
    return float(max(peak.value for peak in peaks.values()))
