"""Memory limit of a search, and lower bounds on the memory of layouts.

A lower bound is the footprint of a lighter layout, shared by many layouts: with micro-batches of
one sequence, with 1F1B instead of a schedule that keeps more, and with one stage per rank.
Activations grow with the micro-batch, and interleaved 1F1B keeps more than 1F1B (Korthikanti et
al., arXiv 2205.05198, section 4.2.3). Schedules that may keep less are bounded by a rank's memory
without activations.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.layout.prices import RECOMPUTE, SCHEDULES, Layouts
from planner.space import row_numbers
from planner.tolerances import DEFAULT_FIT_RISK
from simulator.memory.footprint import rank_footprint
from simulator.schedules.in_flight import most_in_flight
from simulator.schedules.schedule import schedule_kind
from simulator.training_run.fit.memory_interval import memory_margin
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.known_features import known_features


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """Memory of a device, and the accepted probability of running out of it.

    A layout is accepted if two numbers are within `capacity_bytes`: its predicted peak, and this
    peak times a margin. The margin is the ratio of measured to predicted peak that similar runs
    exceed with the accepted probability (memory_interval.memory_margin).
    """

    capacity_bytes: float
    risk: float = DEFAULT_FIT_RISK

    def of(self, run: TrainingRun) -> float:
        """Largest accepted predicted peak of a run, in bytes."""
        return self.capacity_bytes / max(1.0, memory_margin(run, self.risk))

    def of_layouts(self, base: TrainingRun, layouts: Layouts) -> NDArray[np.float64]:
        """[layouts] largest accepted predicted peaks, in bytes. They depend on the ZeRO stage,
        because the framework's kept tensors and margins do (`memory_interval.margin_names`)."""
        keys = np.stack([layouts.zero_stage, layouts.option], axis=1)
        _, first, where = np.unique(row_numbers(keys), return_index=True, return_inverse=True)
        limits = [self.of(layouts.run(base, index)) for index in first.tolist()]
        return np.asarray(limits)[where]


Array = NDArray[np.float64]

_AXES = ("tp", "cp", "ep", "pp", "dp", "zero_stage", "option")


class MemoryFloors:
    """Memory bounds of one question's layouts, cached per process for neighboring questions."""

    def __init__(self, base: TrainingRun) -> None:
        self._base = base

    def needed(self, layouts: Layouts) -> Array:
        """[layouts] lower bound in bytes on the fullest device. Full recomputation is assumed for
        all layers."""
        if not len(layouts):
            return np.zeros(0)
        lasting, gradients, passing = self._floors(layouts, layouts.recompute)
        return np.asarray(lasting + np.maximum(gradients, passing))

    def within(self, layouts: Layouts, limits: Array) -> tuple[NDArray[np.intp], Array]:
        """The layouts whose bounds are within their limits, and the bounds."""
        floors = self.needed(layouts)
        left = np.flatnonzero(floors <= limits)
        return left, floors[left]

    def fewest_recomputed(self, layouts: Layouts, limits: Array) -> NDArray[np.int64]:
        """[layouts] with full recomputation: minimum number of recomputed layers per virtual stage
        (1 or more) for which the bound is within the limit."""
        lasting, _, full = self._floors(layouts, layouts.recompute)
        _, _, none = self._floors(layouts, _none(layouts))
        over = lasting + none - limits
        saved = np.maximum(none - full, 1.0)
        share = np.clip(over / saved, 0.0, 1.0)
        layers = np.floor(share * self._layers(layouts) / layouts.vpp * (1 - 1e-12))
        return np.asarray(np.maximum(1, layers), dtype=np.int64)

    def _layers(self, layouts: Layouts) -> NDArray[np.int64]:
        """Lower bound on the layers of the first rank, where the embedding may count as a layer
        (stage_layers)."""
        return np.asarray(np.maximum(1, self._base.model.num_layers // layouts.pp - 1))

    def _floors(self, layouts: Layouts, recompute: NDArray[np.int64]) -> tuple[Array, Array, Array]:
        """Three arrays [layouts]: lower bounds in bytes on the first rank's lasting memory, on
        gradients that may not exist together with all activations, and on activations."""
        # With micro-batches of one sequence, a bound depends only on whether there are several, and
        # on the number in flight, min(m, pp) under 1F1B.
        several = np.minimum(-(-self._base.global_batch // layouts.dp), np.maximum(2, layouts.pp))
        keys = np.column_stack([layouts.key(*_AXES), recompute, several])
        _, first, where = np.unique(row_numbers(keys), return_index=True, return_inverse=True)
        light = replace(
            layouts,
            micro_batch=np.ones_like(layouts.tp),
            schedule=np.full_like(layouts.tp, SCHEDULES.index("1f1b")),
            vpp=np.ones_like(layouts.tp),
            recompute=recompute,
            recompute_layers=np.zeros_like(layouts.tp),
        )
        known = known_features(self._base, layouts.options, floors_of)
        floors = known.rows(keys[first], lambda row: light.run(self._base, int(first[row])))
        lasting, gradients = floors["lasting"][where], floors["gradients"][where]
        per_sequence = np.where(_keeps_less(layouts), 0.0, floors["passing"][where])
        # Rank r keeps min(m, pp - r) micro-batches in flight, the first rank min(m, pp).
        count = self._base.global_batch // (layouts.dp * layouts.micro_batch)
        most = self._base.global_batch // layouts.dp
        share = np.minimum(count, layouts.pp) / np.minimum(most, layouts.pp)
        # A backward precedes a forward (footprint.py) where more micro-batches follow.
        plain = (layouts.pp == 1) | (layouts.schedule == SCHEDULES.index("1f1b"))
        keeps = all(m.keeps_gradients for m in load_framework(self._base.stack).memory)
        both = keeps | (plain & (count > layouts.pp))
        return (
            lasting + np.where(both, gradients, 0.0),
            np.where(both, 0.0, gradients),
            np.asarray(per_sequence * layouts.micro_batch * share),
        )


def _keeps_less(layouts: Layouts) -> NDArray[np.bool_]:
    named = [number for number, name in enumerate(SCHEDULES) if _may_keep_less(name)]
    return np.asarray(np.isin(layouts.schedule, named) & (layouts.pp > 1))


@functools.cache
def _may_keep_less(schedule: str) -> bool:
    """Whether a schedule's first rank may keep less than under 1F1B: other layers, or fewer
    micro-batches in flight (decided with 16 micro-batches on 4 ranks)."""
    kind = schedule_kind(schedule)
    if kind.stages_per_rank == 0:
        return False
    chunks = kind.stages_per_rank * kind.copies
    return chunks > 1 or most_in_flight(schedule, 4, 16)[0] < most_in_flight("1f1b", 4, 16)[0]


def _none(layouts: Layouts) -> NDArray[np.int64]:
    return np.full(len(layouts), RECOMPUTE.index("none"))


def floors_of(light: Sequence[TrainingRun]) -> dict[str, Array]:
    """[runs] bytes on the first rank: `lasting`, without `gradients`, and `passing`, activations of
    micro-batches of one sequence; the runs are layouts with 1F1B and such micro-batches."""
    ranks = [rank_footprint(run, 0) for run in light]
    lasting = [x.parameters_bytes + x.optimizer_bytes + x.communication_bytes for x, _ in ranks]
    return {
        "lasting": np.asarray(lasting),
        "gradients": np.asarray([details.all_gradients_bytes for _, details in ranks]),
        "passing": np.asarray([details.all_activations_bytes for _, details in ranks]),
    }
