"""Branch and bound over cells: refine the most promising first, stop when no bound beats the best.

A cell is refined by solving its partition exactly and predicting the plan by the event timeline.
The loop ends when the least bound of the cells not yet refined is no better than the best plan;
then, and only then, the rest is pruned. A limit or an interrupt
ends it earlier: the best plan so far is returned with the bound that is proved by then.

Plans are ranked by predicted step time; equal times by peak memory, then by the order of cells
(fewer pipeline stages, replicas, tensor ranks, ... first).
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from planner.cell import Cell
from planner.chain.problem import Array
from simulator.values.plan import Plan
from simulator.values.prediction import Prediction

Progress = Callable[[float, float, float, float], None]
"""Called with bound, incumbent (infinite before the first plan), gap and seconds so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """What solving a cell gave.

    bound_s  no plan of the cell is predicted faster; infinite where none fits
    plan, prediction   the best plan found in it, or None
    """

    cell: Cell
    bound_s: float
    plan: Plan | None = None
    prediction: Prediction | None = None

    @property
    def step_time_s(self) -> float:
        """Predicted seconds; infinite where nothing was found."""
        return self.prediction.step_time_s.value if self.prediction else np.inf

    @property
    def rank_key(self) -> tuple[float, float, Cell]:
        """Order of answers: time, then memory, then the cell's degrees."""
        memory = self.prediction.peak_memory_bytes.value if self.prediction else np.inf
        return (self.step_time_s, memory, self.cell)


Family = tuple[int, int, int, str]
Refine = Callable[[Cell, float], Refinement]
"""Refines a cell; plans that cannot be under the given step time need not be looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a search found and proved.

    plans     refined cells with a plan, best first
    bound_s   no plan of any cell is predicted faster; infinite where no cell can hold a plan
    complete  False where a limit or an interrupt ended the search
    """

    plans: tuple[Refinement, ...]
    bound_s: float
    refined: int
    pruned: int
    complete: bool


def branch_and_bound(
    cells: Sequence[Cell],
    bounds: Array,
    refine: Refine,
    *,
    runners_up: int = 3,
    extra_refinements: int = 12,
    first_only: bool = False,
    clock: Callable[[], float],
    time_limit_s: float | None = None,
    progress: Progress | None = None,
) -> Outcome:
    """The best plan over all cells, with a proof of how good it is, and runners-up.

    bounds   [cells] lower bounds on the step time; infinite prunes a cell at once
    runners_up, extra_refinements   after the proof, so many more cells at most are refined until
             there are so many plans of other meshes or schedules than the best
    first_only   stop at the first plan: enough to know that there is one
    clock    seconds; read between refinements only
    """
    start = clock()
    left = _Left(cells, bounds)
    done: dict[int, Refinement] = {}
    best = np.inf
    complete = True
    try:
        while left.least() < best:
            if time_limit_s is not None and clock() - start > time_limit_s:
                complete = False
                break
            index = left.pop()
            done[index] = refine(cells[index], best)
            best = min(best, done[index].step_time_s)
            if first_only and done[index].plan is not None:
                complete = False
                break
            if progress is not None:
                _report(progress, done, left, best, clock() - start)
    except KeyboardInterrupt:
        complete = False
    bound = _proved(done, left, best)
    refined, pruned = len(done), len(cells) - len(done)
    if complete and np.isfinite(best):
        with suppress(KeyboardInterrupt):
            _look_further(cells, left, refine, done, runners_up, extra_refinements)
    plans = sorted((r for r in done.values() if r.plan is not None), key=lambda r: r.rank_key)
    return Outcome(
        plans=tuple(plans), bound_s=bound, refined=refined, pruned=pruned, complete=complete
    )


def _report(
    progress: Progress, done: dict[int, Refinement], left: _Left, best: float, seconds: float
) -> None:
    proved = _proved(done, left, best)
    gap = (best - proved) / best if np.isfinite(best) else np.inf
    progress(proved, best, gap, seconds)


class _Left:
    """The cells that are left, the one with the least bound first; equal bounds in their order."""

    def __init__(self, cells: Sequence[Cell], bounds: Array) -> None:
        self.cells = cells
        self.bounds = bounds.tolist()
        self._heap = [
            (bound, cells[index], index)
            for index, bound in enumerate(self.bounds)
            if np.isfinite(bound)
        ]
        heapq.heapify(self._heap)

    def least(self) -> float:
        """The least bound of those left; infinite where none is."""
        return self._heap[0][0] if self._heap else np.inf

    def pop(self) -> int:
        """The cell with the least bound."""
        return heapq.heappop(self._heap)[2]

    def first(self) -> int | None:
        """The cell with the least bound, or None where none is left."""
        return self._heap[0][2] if self._heap else None

    def put_back(self, index: int, bound: float) -> None:
        """Leaves a cell once more, with what is known of it now."""
        self.bounds[index] = max(self.bounds[index], bound)
        if np.isfinite(self.bounds[index]):
            heapq.heappush(self._heap, (self.bounds[index], self.cells[index], index))


def family(cell: Cell) -> Family:
    """What makes two plans look different to a reader: the mesh and the schedule."""
    degrees = cell.degrees
    return (degrees.pp, degrees.dp, degrees.tp, cell.schedule)


def _proved(done: dict[int, Refinement], left: _Left, best: float) -> float:
    """Nothing refined or left is faster than this; at most the best plan's time."""
    refined = min((max(r.bound_s, left.bounds[i]) for i, r in done.items()), default=np.inf)
    return float(min(best, left.least(), refined))


def _look_further(
    cells: Sequence[Cell],
    left: _Left,
    refine: Refine,
    done: dict[int, Refinement],
    runners_up: int,
    extra: int,
) -> None:
    """Refines the best of other families, until as many are known as are shown and no bound is
    below them; a third of the refinements at most go to any one."""
    best: dict[Family, float] = {}
    for known, refinement in done.items():
        kind = family(refinement.cell)
        best[kind] = min(best.get(kind, np.inf), refinement.step_time_s)
        if refinement.plan is None:
            left.put_back(known, refinement.bound_s)
    settled = {kind for kind, step_s in best.items() if np.isfinite(step_s)}
    tried: Counter[Family] = Counter()
    while True:
        times = sorted(best.values())
        shown = times[runners_up] if len(times) > runners_up else np.inf
        index, bound = left.first(), left.least()
        if index is None or bound >= shown:
            return
        kind = family(cells[index])
        left.pop()
        spent = tried.total() >= extra or tried[kind] * 3 >= extra
        if kind in settled or bound >= best.get(kind, np.inf) or spent:
            continue
        tried[kind] += 1
        refinement = refine(cells[index], min(shown, best.get(kind, np.inf)))
        if refinement.plan is not None:
            done[index] = refinement
            best[kind] = min(best.get(kind, np.inf), refinement.step_time_s)
