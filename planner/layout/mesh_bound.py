"""Lower bounds on the step of all layouts of a mesh, before any of them is priced.

With S seconds per micro-batch for the whole model on one rank, m micro-batches and p ranks, a step
takes at least S / p x m. The ranks of 1F1B idle for another S x (p - 1) / p (Narayanan et al.,
SC'21, section 2.2.1), divided by the stages per rank v in interleaved schedules:

    T >= S / p x (m + (p - 1) / v)

Interleaved schedules may hide the idle time of the first and last rank, and only the time of layers
idles there: half of (p - 3) / v is counted, as if the logits took as long as all layers. In a V,
the first rank waits for the first and for the last micro-batch to come back (idle_share.py). Other
schedules with a split backward may not idle at all.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from planner.axes import Axes
from planner.layout.prices import RECOMPUTE, SCHEDULES, LayoutPrices, Layouts
from planner.run_option import RunOption
from planner.space import LayoutContext, Meshes, pipelines, row_numbers
from simulator.schedules.schedule import schedule_kind

Array = NDArray[np.float64]


# Larger micro-batches are no slower per sequence, except for noise in the measured kernels. So
# kernels at powers of this number, minus a margin, represent all sizes in between. Of six models on
# five devices, none was more than 5 % faster than the next power.
_POWER = 8
_FASTER = 0.93
# Minimum share of the forward in a micro-batch (only attention, whose backward takes three times as
# long, and all recomputed), and maximum share of the weight gradients (one of three equal matmuls).
_FORWARD, _WEIGHTS = 1 / 6, 0.4
# Longer pipelines are simulated with fewer rounds (idle_share.py), or not at all.
_LONGEST_V = 79


class MeshBounds:
    """Bounds of the meshes of one question."""

    def __init__(self, prices: LayoutPrices, space: Axes, context: LayoutContext) -> None:
        self._space, self._context = space, context
        # Step with one micro-batch: its busiest stage is the whole model.
        one = replace(prices.base, global_batch=1)
        self._options = tuple(
            dict.fromkeys(
                RunOption(
                    precision=option.precision,
                    wide_layers=option.wide_layers,
                    sequence_parallel=option.sequence_parallel,
                )
                for option in context.options
            )
        )
        self._prices = prices.at(one)
        self._waits: dict[tuple[int, int], float] = {}

    def of(self, meshes: Meshes) -> Array:
        """[meshes] lower bounds in seconds, with the kernels of each mesh's shapes."""
        power = np.ceil(np.log(meshes.micro_batch) / np.log(_POWER) - 1e-9).astype(np.int64)
        size = np.asarray(_POWER**power)
        keys = np.stack([meshes.tp, meshes.cp, meshes.ep, size], axis=1)
        _, first, where = np.unique(row_numbers(keys), return_index=True, return_inverse=True)
        faster = np.where(meshes.micro_batch == size, 1.0, _FASTER)
        whole = faster * self._seconds(keys[first])[where] * meshes.micro_batch / size
        return np.asarray(whole / meshes.pp * self._rounds(meshes))

    def _rounds(self, meshes: Meshes) -> Array:
        """[meshes] m + (p - 1) / v"""
        count = self._context.global_batch // (meshes.dp * meshes.micro_batch)
        keys = meshes.pp * (self._context.global_batch + 1) + count
        _, first, where = np.unique(keys, return_index=True, return_inverse=True)
        waits = [self._waiting(int(meshes.pp[i]), int(count[i])) for i in first.tolist()]
        return np.asarray(count + np.asarray(waits, dtype=np.float64)[where.ravel()])

    def _waiting(self, pp: int, microbatches: int) -> float:
        """Lower bound on a rank's idle time, in units of its time per micro-batch."""
        if (pp, microbatches) not in self._waits:
            found = [
                _least_waiting(schedule, pp, vpp, microbatches)
                for schedule, vpp in pipelines(self._space, self._context, pp, microbatches)
            ]
            self._waits[pp, microbatches] = min(found, default=0.0)
        return self._waits[pp, microbatches]

    def _seconds(self, kinds: NDArray[np.int64]) -> Array:
        """[kinds] seconds of one micro-batch on a pipeline of one rank."""
        tp, cp, ep, size = np.repeat(kinds, len(self._options), axis=0).T
        ones = np.ones(tp.size, dtype=np.int64)
        layouts = Layouts(
            tp=tp,
            cp=cp,
            ep=ep,
            pp=ones,
            dp=np.asarray(ep // np.gcd(ep, tp * cp)),
            vpp=ones,
            zero_stage=0 * ones,
            micro_batch=size,
            schedule=0 * ones + SCHEDULES.index("1f1b"),
            recompute=0 * ones + RECOMPUTE.index("none"),
            recompute_layers=0 * ones,
            option=np.tile(np.arange(len(self._options)), len(kinds)),
            options=self._options,
        )
        return np.asarray(
            self._prices.busy_times(layouts).reshape(-1, len(self._options)).min(axis=1)
        )


def _least_waiting(schedule: str, pp: int, vpp: int, microbatches: int) -> float:
    """Idle time of a pipeline of equal stages, in units of a rank's time per micro-batch."""
    kind = schedule_kind(schedule)
    if kind.closed_form:
        return pp - 1.0
    if kind.is_interleaved:
        return max(0.0, pp - 3.0) / (2.0 * vpp)
    if kind.is_v and pp <= _LONGEST_V:
        start = 0.5 * _FORWARD * (2 * pp - 1 - microbatches)
        through = (1.0 - _WEIGHTS) * pp - microbatches + 0.5 * _FORWARD * (microbatches - 1)
        return min(pp - 1.0, max(0.0, start, through))
    return 0.0
