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
from dataclasses import dataclass, replace
from typing import NamedTuple

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
        memory = self.prediction.peak.value if self.prediction else np.inf
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
    # The cell with the least bound first; equal bounds in the order of the cells.
    left = [Left(*one) for one in zip(bounds.tolist(), cells, strict=True) if np.isfinite(one[0])]
    heapq.heapify(left)
    done: list[Refinement] = []
    best = proved = np.inf
    complete = True

    def bound() -> float:
        """Nothing refined or left is faster than this; at most the best plan's time."""
        return float(min(best, proved, left[0].bound_s if left else np.inf))

    try:
        while left and left[0].bound_s < best:
            if time_limit_s is not None and clock() - start > time_limit_s:
                complete = False
                break
            lower, cell = left[0]
            found = refine(cell, best)
            heapq.heappop(left)  # an interrupt leaves it there
            found = replace(found, bound_s=max(found.bound_s, lower))
            done.append(found)
            best, proved = min(best, found.step_time_s), min(proved, found.bound_s)
            if first_only and found.plan is not None:
                complete = False
                break
            if progress is not None:
                gap = (best - bound()) / best if np.isfinite(best) else np.inf
                progress(bound(), best, gap, clock() - start)
    except KeyboardInterrupt:
        complete = False
    bound_s, refined = bound(), len(done)
    if complete and np.isfinite(best):
        with suppress(KeyboardInterrupt):
            _look_further(left, refine, done, runners_up, extra_refinements)
    plans = sorted((r for r in done if r.plan is not None), key=lambda r: r.rank_key)
    return Outcome(
        plans=tuple(plans),
        bound_s=bound_s,
        refined=refined,
        pruned=len(cells) - refined,
        complete=complete,
    )


class Left(NamedTuple):
    """A cell that is not refined yet, or that no plan was found of."""

    bound_s: float
    cell: Cell


def family(cell: Cell) -> Family:
    """What makes two plans look different to a reader: the mesh and the schedule."""
    degrees = cell.degrees
    return (degrees.pp, degrees.dp, degrees.tp, cell.schedule)


def _look_further(
    left: list[Left], refine: Refine, done: list[Refinement], runners_up: int, extra: int
) -> None:
    """Refines the best of other families, until as many are known as are shown and no bound is
    below them; a third of the refinements at most go to any one."""
    best: dict[Family, float] = {}
    for known in done:
        kind = family(known.cell)
        best[kind] = min(best.get(kind, np.inf), known.step_time_s)
        if known.plan is None and np.isfinite(known.bound_s):
            heapq.heappush(left, Left(known.bound_s, known.cell))
    settled = {kind for kind, step_s in best.items() if np.isfinite(step_s)}
    tried: Counter[Family] = Counter()
    while left:
        times = sorted(best.values())
        shown = times[runners_up] if len(times) > runners_up else np.inf
        lower, cell = heapq.heappop(left)
        if lower >= shown:
            return
        kind = family(cell)
        spent = tried.total() >= extra or tried[kind] * 3 >= extra
        if kind in settled or lower >= best.get(kind, np.inf) or spent:
            continue
        tried[kind] += 1
        found = refine(cell, min(shown, best.get(kind, np.inf)))
        if found.plan is not None:
            done.append(found)
            best[kind] = min(best.get(kind, np.inf), found.step_time_s)
