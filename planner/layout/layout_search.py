"""`search_layouts`: the best layout of all, proven, and the best of other families.

1. every legal mesh gets a lower bound (mesh_bound.py); meshes are opened in the order of their
   bounds, a few at a time, those that use nearly all devices first;
2. the layouts of an open mesh get a lower bound on their step time (for most it is the time) and a
   floor of their memory, as arrays; those whose floor exceeds what they may need fall;
3. the rest are refined in the order of their bounds: memory by footprint, time with the schedule's
   own timeline; it ends when no bound is left below the best.

What it returns is optimal under the cost model: nothing that was not refined can be faster. Ties
are broken by less memory, then by enumeration order. With a goal of its own (`LayoutGoal`) a search
finds the layout of the least value instead of the fastest, by the same three steps.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from planner.axes import Axes
from planner.layout.layouts import Layouts, layouts_of
from planner.layout.memory_floor import MemoryFloors, MemoryLimit
from planner.layout.mesh_bound import MeshBounds
from planner.layout.prices import LayoutPrices
from planner.layout.refined_layout import Candidates, PricedLayout, candidates_of
from planner.space import Counts, Ground, Meshes, meshes_of, why_none
from profiles.errors import InputError
from simulator.memory.footprint import Footprint, footprint
from simulator.memory.host_offload import host_memory_short
from simulator.training_run.run.training_run import TrainingRun

Array = NDArray[np.float64]


class LayoutGoal(Protocol):
    """The value of layouts by the nodes that they fill and the seconds of their step.

    With nodes fixed a value never falls where seconds rise, so that the value of a bound of the
    seconds is a bound of the value. It is infinite where a layout is not allowed.
    """

    def values(self, nodes: Counts, seconds: Array) -> Array:
        """[layouts] what is to be least."""
        ...


def nodes_of_run(run: TrainingRun) -> int:
    """Nodes of which some device is in use."""
    return -(-run.degrees.num_devices // run.node_devices)


Progress = Callable[[float, float, float, float], None]
"""Called with bound, incumbent (infinite before the first), gap and seconds so far."""
_OFTEN = 64
# Layouts refined at most after the proof, for runners-up.
_FURTHER = 100
# Meshes are opened so many at a time, and twice as many the next time, up to so many.
_FIRST_WAVE, _LAST_WAVE = 256, 8192
# With a goal of its own so many of the least bounds are opened first, of each tp, cp and ep.
_FIRST_OF_GOAL = 8
# Meshes that use this share of the devices are looked at before all others.
_NEARLY_ALL = 7 / 8


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
    values      of the goal, of each of them; their seconds where the goal is the step time
    bound_s     no layout of the space is faster (of a goal of its own: has a smaller value);
                infinite where none fits
    considered  layouts priced or pruned;  too_big  fell by their floor of memory alone
    refined     looked at one by one;  pruned  cannot be faster than the best, a mesh that was not
                opened counted as one layout of each ZeRO stage and recompute kind
    complete    False where a limit or an interrupt ended the search
    near_miss   only where nothing fits
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
    ground: Ground,
    *,
    limit: MemoryLimit,
    runners_up: int = 3,
    clock: Callable[[], float],
    time_limit_s: float | None = None,
    progress: Progress | None = None,
    goal: LayoutGoal | None = None,
    below: float = math.inf,
) -> LayoutOutcome:
    """The best layouts of the axes within a limit of memory.

    runners_up    after the proof, others are refined until so many of other families are known
    goal          what is least of the best; None for the seconds of a step
    below         values that are sought; where none is smaller, no layout is found
    clock         seconds; read between refinements and waves only

    Raises InputError where no layout is legal.
    """
    start = clock()
    search = _Search(
        prices=prices,
        axes=axes,
        ground=ground,
        limit=limit,
        clock=clock,
        start=start,
        end=math.inf if time_limit_s is None else start + time_limit_s,
        progress=progress,
        goal=goal,
        best=below,
        bounds=MeshBounds(prices, axes, ground),
        floors=MemoryFloors(prices.base),
    )
    return search.outcome(runners_up)


Found = tuple[float, float, float, PricedLayout]
"""A refined layout that fits behind what it is ranked by: value, seconds and bytes."""


@dataclass(slots=True, kw_only=True)
class _Search:
    """One search: what is open, what was found.

    found     the best of each family;  best  the least value so far
    open      candidates of opened meshes, of which so many were refined
    lightest  the layouts with the lowest floors of memory, while none fits
    left      no mesh that was not opened has a smaller value
    unseen    whether only those that are opened first were looked at
    """

    prices: LayoutPrices
    axes: Axes
    ground: Ground
    limit: MemoryLimit
    clock: Callable[[], float]
    start: float
    end: float
    progress: Progress | None
    goal: LayoutGoal | None
    best: float
    bounds: MeshBounds
    floors: MemoryFloors
    found: dict[tuple[object, ...], Found] = field(default_factory=dict)
    open: list[tuple[Candidates, NDArray[np.intp], int]] = field(default_factory=list)
    lightest: list[tuple[float, TrainingRun]] = field(default_factory=list)
    left: float = math.inf
    unseen: bool = True
    meshes: int = 0
    considered: int = 0
    too_big: int = 0
    refined: int = 0
    complete: bool = True

    def outcome(self, runners_up: int) -> LayoutOutcome:
        try:
            for wave in self._waves():
                self._open(wave)
        except (KeyboardInterrupt, TimeoutError):
            self.complete = False
            if self.unseen:
                self.left = min(self.left, self._least_bound())
        if self.complete and not (self.meshes and self.considered):
            raise InputError(why_none(self.axes, self.ground))
        if self.complete and self.found:
            self._look_further(runners_up)
        ranked = sorted(self.found.values(), key=_rank)
        known = bool(ranked) or not self.complete
        return LayoutOutcome(
            layouts=tuple(found[-1] for found in ranked[: runners_up + 1]),
            values=tuple(found[0] for found in ranked[: runners_up + 1]),
            bound_s=min(self.best, self.left) if known else math.inf,
            considered=self.considered,
            too_big=self.too_big,
            refined=self.refined,
            pruned=self.considered - self.too_big - self.refined,
            complete=self.complete,
            near_miss=self._nearest() if self.complete and not ranked else None,
        )

    def _waves(self) -> Iterator[Meshes]:
        """Meshes that may be better than the best, the lowest bounds first."""
        per_mesh = max(1, len(self.ground.rules.zero_stages) * len(self.ground.rules.recompute))

        def first(meshes: Meshes) -> NDArray[np.bool_]:
            self.meshes += len(meshes)
            return self._first(meshes)

        def others(meshes: Meshes) -> NDArray[np.bool_]:
            rest = ~self._first(meshes)
            worth = rest & (self._values(meshes, self.bounds.coarse(meshes)) < self.best)
            self.considered += per_mesh * int(np.count_nonzero(rest & ~worth))
            return np.asarray(worth)

        for worth in (first, others):
            self._must_have_time()
            meshes = meshes_of(self.axes, self.ground, worth)
            self.unseen = worth is first
            bounds = self._values(meshes, self.bounds.of(meshes))
            order = np.argsort(bounds, kind="stable")
            size, done = _FIRST_WAVE, 0
            while done < order.size and bounds[order[done]] < self.best:
                self.left = float(bounds[order[done]])
                self._must_have_time()
                wave = order[done : done + size]
                wave = wave[bounds[wave] < self.best]
                done += wave.size
                size = min(2 * size, _LAST_WAVE)
                # Until it is searched, what is in the wave may be as fast as its bound.
                yield meshes.rows(wave)
            self.considered += per_mesh * (order.size - done)
            self.left = math.inf

    def _first(self, meshes: Meshes) -> NDArray[np.bool_]:
        """[meshes] those that are opened before all others: that use nearly all devices, or with a
        goal of its own some of the least bounds."""
        if self.goal is None:
            return np.asarray(meshes.devices > _NEARLY_ALL * self.ground.num_devices)
        chosen = np.zeros(len(meshes), dtype=bool)
        values = self._values(meshes, self.bounds.coarse(meshes))
        chosen[np.argsort(values, kind="stable")[:_FIRST_OF_GOAL]] = True
        return chosen & np.isfinite(values)

    def _least_bound(self) -> float:
        """The least bound of all meshes, where a search ends before it saw them all."""
        found = [math.inf]

        def none(meshes: Meshes) -> NDArray[np.bool_]:
            values = self._values(meshes, self.bounds.coarse(meshes))
            found.append(float(np.min(values, initial=math.inf)))
            return np.zeros(len(meshes), dtype=bool)

        meshes_of(self.axes, self.ground, none)
        return min(found)

    def _values(self, part: Meshes | Layouts, seconds: Array) -> Array:
        if self.goal is None:
            return seconds
        devices = part.tp * part.cp * part.pp * part.dp
        return self.goal.values(np.asarray(-(-devices // self.ground.node_devices)), seconds)

    def _must_have_time(self) -> None:
        if self.clock() > self.end:
            raise TimeoutError

    def _open(self, meshes: Meshes) -> None:
        """Prices the layouts of meshes and refines those that may be the best."""
        layouts = layouts_of(self.axes, self.ground, meshes)
        self.considered += len(layouts)
        left = candidates_of(
            self.prices,
            layouts,
            self.limit,
            self.floors,
            partial_recompute=self.ground.rules.partial_recompute,
        )
        self.too_big += len(layouts) - len(left.layouts)
        bounds = self._values(left.layouts, left.bounds)
        order = np.argsort(bounds, kind="stable")
        done = 0
        while done < order.size and bounds[order[done]] < self.best:
            self._must_have_time()
            self._refine(left, int(order[done]))
            done += 1
            if self.progress is not None and self.refined % _OFTEN == 1:
                bound = min(self.best, self.left)
                gap = (self.best - bound) / self.best if self.found else math.inf
                self.progress(bound, self.best, gap, self.clock() - self.start)
        if self.goal is None:
            self.open.append((left, order, done))
            if not self.found:
                self._note_lightest(layouts)

    def _refine(self, left: Candidates, index: int) -> None:
        self.refined += 1
        layout = left.refine(index)
        if layout is None:
            return
        value = layout.step_time_s
        if self.goal is not None:
            nodes, seconds = np.asarray([nodes_of_run(layout.run)]), np.asarray([value])
            value = float(self.goal.values(nodes, seconds)[0])
            if value > self.best or (value == self.best and not self.found):
                return
        found = (value, layout.step_time_s, layout.memory.needed_bytes, layout)
        kind = family(layout.run)
        if kind not in self.found or _rank(found) < _rank(self.found[kind]):
            self.found[kind] = found
        self.best = min(self.best, value)

    def _look_further(self, runners_up: int) -> None:
        """Refines the best of other families among the open meshes."""
        rest = heapq.merge(
            *(
                [(float(left.bounds[i]), number, int(i)) for i in order[done:]]
                for number, (left, order, done) in enumerate(self.open)
            )
        )
        for seen, (bound, number, index) in enumerate(rest):
            times = sorted(found[0] for found in self.found.values())
            enough = len(times) > runners_up and times[runners_up] <= bound
            # What is as fast as the best may need less memory.
            if seen >= _FURTHER or (enough and times[0] < bound) or self.clock() > self.end:
                return
            self._refine(self.open[number][0], index)

    def _note_lightest(self, layouts: Layouts) -> None:
        """Keeps the layouts with the lowest floors of memory."""
        sharded = layouts.zero_stage == np.max(layouts.zero_stage, initial=0)
        layouts = layouts.rows(np.flatnonzero(sharded | (layouts.dp * layouts.cp == 1)))
        floors = self.floors.needed(layouts)
        for index in np.argsort(floors, kind="stable")[:_OFTEN].tolist():
            run = layouts.run(self.prices.base, index)
            self.lightest.append((float(floors[index]), run))
        self.lightest = sorted(self.lightest, key=lambda light: light[0])[:_OFTEN]

    def _nearest(self) -> NearMiss | None:
        """Of the layouts with the lowest floors, the one that lacks least."""
        misses = [(footprint(run), run) for _, run in self.lightest]
        allowed = [(memory, run) for memory, run in misses if not memory.refused] or misses
        if not allowed:
            return None
        memory, run = min(allowed, key=lambda pair: pair[0].needed_bytes)
        fits = not memory.refused and memory.needed_bytes <= self.limit.of(run)
        host = host_memory_short(run) if fits else ""
        return NearMiss(run=run, memory=memory, capacity_bytes=self.limit.of(run), host=host)


def family(run: TrainingRun) -> tuple[object, ...]:
    """What makes two layouts look different to a reader: the mesh and the schedule."""
    degrees = run.degrees
    mesh = (degrees.tp, degrees.cp, degrees.ep, degrees.pp, degrees.dp, run.schedule)
    return (*mesh, run.precision, degrees.axis_order, run.compression, run.local_steps)


def _rank(found: Found) -> tuple[float, float, float]:
    return found[:3]
