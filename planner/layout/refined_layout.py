"""Candidates of the search over layouts, and their exact evaluation (`refine`)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.layout.memory_floor import MemoryFloors, MemoryLimit
from planner.layout.prices import RECOMPUTE, LayoutPrices, Layouts
from simulator.memory.footprint import Footprint, footprint, rank_footprint
from simulator.memory.host_offload import host_memory_short
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.stage_layers import stage_layers
from simulator.values.prediction import Component


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedLayout:
    """A refined layout that fits.

    parts   of the step, those with a time above 0
    memory  its footprint
    """

    run: TrainingRun
    step_time_s: float
    parts: tuple[Component, ...]
    memory: Footprint


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The layouts whose memory bound is within the limit, in order.

    bounds, floors  [layouts] lower bounds in seconds and bytes
    exact           whether the bound is the step time
    """

    prices: LayoutPrices
    limit: MemoryLimit
    layouts: Layouts
    bounds: NDArray[np.float64]
    floors: NDArray[np.float64]
    exact: NDArray[np.bool_]

    def refine(self, index: int) -> PricedLayout | None:
        """One layout with its footprint, and its time with the schedule's timeline; None if it does
        not fit or the framework refuses it. With full recomputation, as few layers per stage are
        recomputed as fit."""
        run = first = self.layouts.run(self.prices.base, index)
        limit, bound_s = self.limit.of(run), float(self.bounds[index])
        memory = _within(run, limit)
        while memory is None and 0 < run.recompute_layers < _chunk_layers(run):
            run = replace(run, recompute_layers=run.recompute_layers + 1)
            memory = _within(run, limit)
        if memory is None or host_memory_short(run):
            return None
        parts = self.prices.exact_parts(run)
        # An exact bound is the price itself: rounding must not change the proof.
        exact = self.exact[index] and run is first
        return PricedLayout(
            run=run,
            step_time_s=bound_s if exact else max(bound_s, float(parts.total_s[0])),
            parts=parts.components(),
            memory=memory,
        )


def candidates_of(
    prices: LayoutPrices,
    layouts: Layouts,
    limit: MemoryLimit,
    floors: MemoryFloors,
    *,
    partial_recompute: bool,
) -> Candidates:
    """The layouts whose memory bound is within the limit, with their bounds.

    partial_recompute  full recomputation may apply to some layers of each stage: as few as fit
    """
    limits = limit.of_layouts(prices.base, layouts)
    within, least = floors.within(layouts, limits)
    light = layouts.rows(within)
    if partial_recompute:
        light = _with_fewest_recomputed(floors, light, limits[within])
    return Candidates(
        prices=prices,
        limit=limit,
        layouts=light,
        bounds=prices.step_times(light),
        floors=least,
        exact=prices.exact(light),
    )


def _within(run: TrainingRun, limit_bytes: float) -> Footprint | None:
    """The footprint of a layout that fits and that the framework runs, otherwise None. Usually the
    first or the last rank exceeds the limit, so these are checked first."""
    ends = (0, run.degrees.pp - 1) if run.degrees.pp > 1 else ()
    if any(rank_footprint(run, rank)[0].limiting_bytes > limit_bytes for rank in ends):
        return None
    memory = footprint(run)
    return None if memory.refused or memory.needed_bytes > limit_bytes else memory


def _chunk_layers(run: TrainingRun) -> int:
    """Layers of the fullest virtual stage."""
    return math.ceil(stage_layers(run)[0] / run.degrees.vpp)


def _with_fewest_recomputed(
    floors: MemoryFloors, layouts: Layouts, limits: NDArray[np.float64]
) -> Layouts:
    """The layouts; those with full recomputation recompute as few layers as their memory bound
    allows. More such layers cost time and save memory, so the fewest that fit are best."""
    # Offloading depends on the kept tensors: with activations on the host, all layers are alike.
    kept = np.asarray([option.activation_offload == 0.0 for option in layouts.options])
    full = np.flatnonzero((layouts.recompute == RECOMPUTE.index("full")) & kept[layouts.option])
    if not full.size:
        return layouts
    layers = layouts.recompute_layers.copy()
    layers[full] = floors.fewest_recomputed(layouts.rows(full), limits[full])
    return replace(layouts, recompute_layers=layers)
