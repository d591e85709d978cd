"""`search_layouts`: the best layout of all, proven, and the best of other families.

1. every legal layout gets a lower bound on its step time (for most it is the time) and a floor of
   its memory, as arrays;
2. those whose floor exceeds the device fall;
3. the rest are refined in the order of their bounds: memory by footprint, time with the schedule's
   own timeline; it ends when no bound is left below the best.

What it returns is optimal under the cost model: every layout was priced, and none that was not
refined can be faster. Equal times go to less memory, then to the first in the space's order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from planner.layout.layouts import RECOMPUTE, Layouts
from planner.layout.memory_floor import fewest_recomputed_layers, needed_floor_bytes
from planner.layout.prices import LayoutPrices
from simulator.training_run.footprint import Footprint, footprint
from simulator.training_run.host_offload import host_memory_short
from simulator.training_run.stage_layers import stage_layers
from simulator.training_run.step_time import StepParts
from simulator.training_run.training_run import TrainingRun

Progress = Callable[[float, float, float, float], None]
"""Called with bound, incumbent (infinite before the first), gap and seconds so far."""
_OFTEN = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedLayout:
    """A refined layout that fits.

    parts   seconds by part of the step (step_time.StepParts);  memory  its footprint
    """

    run: TrainingRun
    step_time_s: float
    parts: tuple[tuple[str, float], ...]
    memory: Footprint


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMiss:
    """The layout that lacks least memory, where none fits; `host` says what its host lacks where
    the device itself has enough."""

    run: TrainingRun
    memory: Footprint
    capacity_bytes: float
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOutcome:
    """What a search found and proved.

    layouts     the best first, one of each family (mesh and schedule)
    bound_s     no layout of the space is faster; infinite where none fits
    considered  layouts priced;  too_big  fell by their floor of memory alone
    refined     looked at one by one;  pruned  cannot be faster than the best
    complete    False where a limit or an interrupt ended the search
    near_miss   only where nothing fits
    """

    layouts: tuple[PricedLayout, ...]
    bound_s: float
    considered: int
    too_big: int
    refined: int
    pruned: int
    complete: bool
    near_miss: NearMiss | None = None


def search_layouts(
    prices: LayoutPrices,
    layouts: Layouts,
    *,
    capacity_bytes: float,
    partial_recompute: bool = False,
    runners_up: int = 3,
    extra_refinements: int = 400,
    clock: Callable[[], float],
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> LayoutOutcome:
    """The best layouts that need no more than `capacity_bytes`.

    partial_recompute   full recomputation may be of some layers of each stage: as few as fit
    runners_up, extra_refinements   after the proof, so many layouts more at most are refined until
                  so many of other families are known
    clock         seconds; read between refinements only
    """
    start = clock()
    left = candidates_of(
        prices, layouts, capacity_bytes=capacity_bytes, partial_recompute=partial_recompute
    )
    light, bounds, exact, order = left.layouts, left.bounds, left.exact, left.order
    refiner = Refiner(prices, light, capacity_bytes)
    found: dict[tuple[object, ...], PricedLayout] = {}
    best, refined, complete = np.inf, 0, True
    position = 0
    try:
        while position < order.size and bounds[order[position]] < best:
            if time_limit_s is not None and clock() - start > time_limit_s:
                complete = False
                break
            index = int(order[position])
            position += 1
            refined += 1
            layout = refiner.refine(index, float(bounds[index]), exact=bool(exact[index]))
            if layout is not None:
                _keep(found, layout)
                best = min(best, layout.step_time_s)
            if progress is not None and refined % _OFTEN == 1:
                bound = float(min(best, _next(bounds, order, position)))
                gap = (best - bound) / best if np.isfinite(best) else np.inf
                progress(bound, best, gap, clock() - start)
    except KeyboardInterrupt:
        complete = False
    bound = float(min(best, _next(bounds, order, position)))
    pruned = int(order.size) - position
    if complete and np.isfinite(best):
        seen = _look_further(
            refiner, bounds, exact, order[position:], found, runners_up, extra_refinements
        )
        refined += seen
        pruned -= seen
    ranked = sorted(found.values(), key=_rank)
    return LayoutOutcome(
        layouts=tuple(ranked[: runners_up + 1]),
        bound_s=bound if ranked or not complete else np.inf,
        considered=len(layouts),
        too_big=len(layouts) - len(light),
        refined=refined,
        pruned=pruned,
        complete=complete,
        near_miss=None if ranked else _nearest(prices.base, layouts, capacity_bytes),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """The layouts whose floor of memory is within the device, in their order.

    bounds, floors  [layouts] seconds and bytes at least;  exact  where the bound is the time
    order           their indices, the least bound first
    """

    layouts: Layouts
    bounds: NDArray[np.float64]
    floors: NDArray[np.float64]
    exact: NDArray[np.bool_]
    order: NDArray[np.intp]


def candidates_of(
    prices: LayoutPrices, layouts: Layouts, *, capacity_bytes: float, partial_recompute: bool
) -> Candidates:
    """What is left of the layouts when those that surely lack memory are gone, with its bounds."""
    floors = needed_floor_bytes(prices.base, layouts)
    within = np.flatnonzero(floors <= capacity_bytes)
    light = layouts.rows(within)
    if partial_recompute:
        light = _with_fewest_recomputed(prices.base, light, capacity_bytes)
    bounds = prices.step_times(light)
    return Candidates(
        layouts=light,
        bounds=bounds,
        floors=floors[within],
        exact=prices.exact(light),
        order=np.argsort(bounds, kind="stable"),
    )


class Refiner:
    """Layouts one by one: their footprint, and their time with the schedule's timeline."""

    def __init__(self, prices: LayoutPrices, layouts: Layouts, capacity_bytes: float) -> None:
        self.prices, self.layouts, self.capacity_bytes = prices, layouts, capacity_bytes

    def refine(self, index: int, bound_s: float, *, exact: bool) -> PricedLayout | None:
        """None where it does not fit, or the framework refuses it; of full recomputation the
        fewest layers of each stage that fit."""
        run = asked = self.layouts.run(self.prices.base, index)
        memory = footprint(run, runs_program=False)
        while self._too_big(memory) and 0 < run.recompute_layers < _chunk_layers(run):
            run = replace(run, recompute_layers=run.recompute_layers + 1)
            memory = footprint(run, runs_program=False)
        if self._too_big(memory) or host_memory_short(run):
            return None
        exact = exact and run is asked
        parts = self.prices.exact_parts(run)
        time_s = float(parts.total_s[0])
        # One price, whichever way it was computed: rounding must not change the proof.
        return PricedLayout(
            run=run,
            step_time_s=bound_s if exact else max(bound_s, time_s),
            parts=tuple(
                (name, float(getattr(parts, name)[0])) for name in StepParts.__dataclass_fields__
            ),
            memory=memory,
        )

    def _too_big(self, memory: Footprint) -> bool:
        return bool(memory.refused) or memory.needed_bytes > self.capacity_bytes


def _chunk_layers(run: TrainingRun) -> int:
    """Layers of the fullest virtual stage."""
    return math.ceil(stage_layers(run)[0] / run.vpp)


def _with_fewest_recomputed(base: TrainingRun, layouts: Layouts, capacity_bytes: float) -> Layouts:
    """The layouts; those of full recomputation with as few layers as their floor of memory allows.
    Time rises and memory falls with the layers, so the fewest that fit are the best of them."""
    # What is kept decides what goes to the host: with activations there, all layers are alike.
    kept = np.asarray([option.activation_offload == 0.0 for option in layouts.options])
    full = np.flatnonzero((layouts.recompute == RECOMPUTE.index("full")) & kept[layouts.option])
    if not full.size:
        return layouts
    layers = layouts.recompute_layers.copy()
    layers[full] = fewest_recomputed_layers(base, layouts.rows(full), capacity_bytes)
    return replace(layouts, recompute_layers=layers)


def family(run: TrainingRun) -> tuple[object, ...]:
    """What makes two layouts look different to a reader: the mesh and the schedule."""
    mesh = (run.tp, run.cp, run.expert_parallel, run.pp, run.dp, run.schedule)
    return (*mesh, run.precision, run.axis_order, run.compression, run.local_steps)


def _rank(layout: PricedLayout) -> tuple[float, float]:
    return (layout.step_time_s, layout.memory.needed_bytes)


def _keep(found: dict[tuple[object, ...], PricedLayout], layout: PricedLayout) -> None:
    kind = family(layout.run)
    if kind not in found or _rank(layout) < _rank(found[kind]):
        found[kind] = layout


def _next(bounds: NDArray[np.float64], order: NDArray[np.intp], position: int) -> float:
    return float(bounds[order[position]]) if position < order.size else np.inf


def _look_further(
    refiner: Refiner,
    bounds: NDArray[np.float64],
    exact: NDArray[np.bool_],
    order: NDArray[np.intp],
    found: dict[tuple[object, ...], PricedLayout],
    runners_up: int,
    most: int,
) -> int:
    """Refines the best of other families; how many were looked at."""
    seen = 0
    for index in order.tolist():
        times = sorted(layout.step_time_s for layout in found.values())
        if seen >= most or (len(times) > runners_up and times[runners_up] <= bounds[index]):
            break
        seen += 1
        layout = refiner.refine(index, float(bounds[index]), exact=bool(exact[index]))
        if layout is not None:
            _keep(found, layout)
    return seen


def _nearest(base: TrainingRun, layouts: Layouts, capacity_bytes: float) -> NearMiss | None:
    """Of the layouts with the least floors, the one that needs least."""
    tried = np.argsort(needed_floor_bytes(base, layouts), kind="stable")[:_OFTEN]
    misses = [
        (footprint(run, runs_program=False), run)
        for run in (layouts.run(base, int(i)) for i in tried)
    ]
    allowed = [(memory, run) for memory, run in misses if not memory.refused] or misses
    if not allowed:
        return None
    memory, run = min(allowed, key=lambda pair: pair[0].needed_bytes)
    fits = not memory.refused and memory.needed_bytes <= capacity_bytes
    host = host_memory_short(run) if fits else ""
    return NearMiss(run=run, memory=memory, capacity_bytes=capacity_bytes, host=host)
