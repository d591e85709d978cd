"""`search_layouts`: the best layout with its proof, and the best of other families.

1. Every legal mesh gets a lower bound (mesh_bound.py). Meshes are opened in the order of their
bounds, a few at a time.
2. The layouts of an open mesh get lower bounds on their step time (exact for most) and on their
memory, as arrays. Layouts whose memory bound exceeds the limit are discarded.
3. The others are refined in the order of their bounds: exact memory, and time with the schedule's
timeline. The search ends when no bound is below the best.

The result is optimal under the cost model. Ties are broken by less memory, then by enumeration
order. With a `LayoutGoal`, the search minimizes its value instead of the step time.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.axes import Axes
from planner.best_first import BestFirst, Candidate, Progress
from planner.broken_pins import why_none
from planner.layout.memory_floor import MemoryFloors, MemoryLimit
from planner.layout.mesh_bound import MeshBounds
from planner.layout.prices import LayoutPrices, Layouts, layouts_of
from planner.layout.refined_layout import Candidates, PricedLayout, candidates_of
from planner.space import Counts, LayoutContext, Meshes, meshes_of
from profiles.errors import InputError
from simulator.memory.footprint import Footprint, footprint
from simulator.memory.host_offload import host_memory_short
from simulator.training_run.run.training_run import TrainingRun

Array = NDArray[np.float64]
Place = tuple[Candidates, int]
"""A layout among the candidates of a wave of meshes."""


class LayoutGoal(Protocol):
    """A value to minimize, computed from the number of nodes and the seconds of a step.

    For a given number of nodes it must not decrease with the seconds, so that a bound on seconds
    gives a bound on the value. It is infinite for forbidden layouts.
    """

    def values(self, nodes: Counts, seconds: Array) -> Array:
        """[layouts] values to minimize."""
        ...


def nodes_of_run(run: TrainingRun) -> int:
    """Number of nodes with a device in use."""
    return -(-run.degrees.num_devices // run.node_devices)


# Number of layouts with the lowest memory bounds that are kept if nothing fits.
_LIGHTEST = 64
# Maximum number of layouts refined after the proof, for runners-up.
_FURTHER = 100
# Meshes opened in the first wave; the number doubles with every wave, up to the last one.
_FIRST_WAVE, _LAST_WAVE = 256, 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMiss:
    """If nothing fits: the layout with the smallest memory shortfall. `host` describes the
    shortfall of host memory if the device has enough."""

    run: TrainingRun
    memory: Footprint
    capacity_bytes: float
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutOutcome:
    """Result of a search.

    layouts     best first, one per family (mesh and schedule)
    values      of the goal, or seconds of the step without one
    bound_s     lower bound on the value of every layout; infinite if none fits
    considered  layouts evaluated or discarded
    too_big     discarded by their memory bound
    refined     evaluated one by one
    pruned      discarded by their time bound; an unopened mesh counts as one layout per ZeRO stage
                and recompute kind
    complete    False if a limit or an interrupt ended the search
    near_miss   only if nothing fits
    """

    layouts: tuple[PricedLayout, ...]
    values: tuple[float, ...]
    bound_s: float
    considered: int
    too_big: int
    refined: int
    pruned: int
    complete: bool
    near_miss: NearMiss | None = None


def search_layouts(
    prices: LayoutPrices,
    axes: Axes,
    context: LayoutContext,
    *,
    limit: MemoryLimit,
    runners_up: int = 0,
    clock: Callable[[], float],
    time_limit_s: float | None = None,
    progress: Progress | None = None,
    goal: LayoutGoal | None = None,
    below: float = math.inf,
) -> LayoutOutcome:
    """The best layouts of the axes within a limit of memory.

    runners_up  number of other families to find after the proof
    goal        value to minimize; None for the seconds of a step
    below       upper limit of the value: layouts at or above it are not found
    clock       seconds; read between refinements and waves only

    Raises InputError if no layout is legal.
    """
    search = _Search(
        prices=prices,
        axes=axes,
        context=context,
        limit=limit,
        goal=goal,
        bounds=MeshBounds(prices, axes, context),
        floors=MemoryFloors(prices.base),
        search=BestFirst(clock=clock, time_limit_s=time_limit_s, progress=progress, best=below),
    )
    return search.outcome(runners_up)


@dataclass(slots=True, kw_only=True)
class _Search:
    """The state of one search.

    open      candidates of opened meshes that are not refined yet
    lightest  layouts with the lowest memory bounds, as long as none fits
    """

    prices: LayoutPrices
    axes: Axes
    context: LayoutContext
    limit: MemoryLimit
    goal: LayoutGoal | None
    bounds: MeshBounds
    floors: MemoryFloors
    search: BestFirst[PricedLayout]
    open: list[list[Candidate[Place]]] = field(default_factory=list)
    lightest: list[tuple[float, TrainingRun]] = field(default_factory=list)
    considered: int = 0
    priced: int = 0
    too_big: int = 0

    def outcome(self, runners_up: int) -> LayoutOutcome:
        search, meshes = self.search, meshes_of(self.axes, self.context)
        bounds = self._values(meshes, self.bounds.of(meshes))
        with search.until_the_end():
            self._search_meshes(meshes, bounds)
        if search.complete and not self.considered:
            raise InputError(why_none(self.axes, self.context))
        bound_s = search.bound if search.found or not search.complete else math.inf
        if search.complete and search.found:
            search.open_runners_up(
                heapq.merge(*self.open), self._refine, runners_up=runners_up, most=_FURTHER
            )
        ranked = search.ranked()[: runners_up + 1]
        return LayoutOutcome(
            layouts=tuple(layout for _, layout in ranked),
            values=tuple(rank[0] for rank, _ in ranked),
            bound_s=bound_s,
            considered=self.considered,
            too_big=self.too_big,
            refined=search.refined,
            pruned=self.considered - self.too_big - search.refined,
            complete=search.complete,
            near_miss=self._nearest() if search.complete and not ranked else None,
        )

    def _search_meshes(self, meshes: Meshes, bounds: Array) -> None:
        """Open the meshes that may contain a better layout, wave by wave."""
        order = np.argsort(bounds, kind="stable")
        opened = 0

        def wave(size: int) -> list[Candidate[int]]:
            nonlocal opened
            found = order[opened : opened + size]
            found = found[bounds[found] < self.search.best]
            self._open(meshes.rows(found))
            opened += found.size
            return next_wave(min(2 * size, _LAST_WAVE))

        def next_wave(size: int) -> list[Candidate[int]]:
            return [(float(bounds[order[opened]]), opened, size)] if opened < order.size else []

        self.search.explore(next_wave(_FIRST_WAVE), wave)
        self.considered += self._per_mesh * (order.size - opened)

    @property
    def _per_mesh(self) -> int:
        """Number of layouts for which an unopened mesh counts."""
        rules = self.context.rules
        return max(1, len(rules.zero_stages) * len(rules.recompute))

    def _values(self, part: Meshes, seconds: Array) -> Array:
        if self.goal is None:
            return seconds
        return self.goal.values(-(-part.devices // self.context.node_devices), seconds)

    def _open(self, meshes: Meshes) -> None:
        """Evaluate the layouts of meshes, and refine possible best ones."""
        layouts = layouts_of(self.axes, self.context, meshes)
        self.considered += len(layouts)
        left = candidates_of(
            self.prices,
            layouts,
            self.limit,
            self.floors,
            partial_recompute=self.context.rules.partial_recompute,
        )
        self.too_big += len(layouts) - len(left.layouts)
        bounds = self._values(left.layouts, left.bounds)
        order = np.argsort(bounds, kind="stable")
        numbers = itertools.count(self.priced)
        places = zip(itertools.repeat(left), order.tolist())
        candidates = list(zip(bounds[order].tolist(), numbers, places))  # noqa: B905 # `numbers` has no end
        self.priced += len(candidates)
        rest = self.search.explore(candidates, self._refine)
        if self.goal is None:
            self.open.append(rest)
            if not self.search.found:
                self._note_lightest(layouts)

    def _refine(self, place: Place) -> None:
        left, index = place
        self.search.count_refined()
        layout = left.refine(index)
        if layout is None:
            return
        value = layout.step_time_s
        if self.goal is not None:
            nodes, seconds = np.asarray([nodes_of_run(layout.run)]), np.asarray([value])
            value = float(self.goal.values(nodes, seconds)[0])
            if value > self.search.best or (value == self.search.best and not self.search.found):
                return
        rank = (value, layout.step_time_s, layout.memory.needed_bytes)
        self.search.offer(family(layout.run), rank, layout)

    def _note_lightest(self, layouts: Layouts) -> None:
        """Keep the layouts with the lowest memory bounds."""
        sharded = layouts.zero_stage == np.max(layouts.zero_stage, initial=0)
        layouts = layouts.rows(np.flatnonzero(sharded | (layouts.dp * layouts.cp == 1)))
        floors = self.floors.needed(layouts)
        for index in np.argsort(floors, kind="stable")[:_LIGHTEST].tolist():
            run = layouts.run(self.prices.base, index)
            self.lightest.append((float(floors[index]), run))
        self.lightest = sorted(self.lightest, key=lambda light: light[0])[:_LIGHTEST]

    def _nearest(self) -> NearMiss | None:
        """The layout with the smallest shortfall, among those with the lowest memory bounds."""
        misses = [(footprint(run), run) for _, run in self.lightest]
        allowed = [(memory, run) for memory, run in misses if not memory.refused] or misses
        if not allowed:
            return None
        memory, run = min(allowed, key=lambda pair: pair[0].needed_bytes)
        fits = not memory.refused and memory.needed_bytes <= self.limit.of(run)
        host = host_memory_short(run) if fits else ""
        return NearMiss(run=run, memory=memory, capacity_bytes=self.limit.of(run), host=host)


def family(run: TrainingRun) -> tuple[object, ...]:
    """The mesh and the schedule; runners-up differ from the best in these."""
    degrees = run.degrees
    mesh = (degrees.mesh_text, run.schedule)
    return (*mesh, run.precision, degrees.axis_order, run.compression, run.local_steps)
