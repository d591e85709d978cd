"""Branch and bound over cells: refine the most promising first, stop when no bound beats the best.

A cell is refined by solving its partition exactly and predicting the plan by the event timeline.
The loop ends when the least bound of the cells not yet refined is no better than the best plan;
then, and only then, the rest is pruned. A limit or an interrupt ends it earlier: the best plan so
far is returned with the bound that is proved by then.

Plans are ranked by predicted step time; equal times by peak memory, then by the order of cells
(fewer pipeline stages, replicas, tensor ranks, ... first).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from planner.cell import Cell
from planner.problem import Array
from simulator.plan import Plan
from simulator.prediction import Prediction

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
        return self.prediction.step_time_s.value if self.prediction else np.inf

    @property
    def rank_key(self) -> tuple[float, float, Cell]:
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
    order = sorted(range(len(cells)), key=lambda index: (bounds[index], cells[index]))
    order = [index for index in order if np.isfinite(bounds[index])]
    done: dict[int, Refinement] = {}
    best = np.inf
    complete = True
    position = 0
    try:
        while position < len(order) and bounds[order[position]] < best:
            if time_limit_s is not None and clock() - start > time_limit_s:
                complete = False
                break
            index = order[position]
            done[index] = refine(cells[index], best)
            best = min(best, done[index].step_time_s)
            position += 1
            if first_only and done[index].plan is not None:
                complete = False
                break
            if progress is not None:
                proved = _proved(done, bounds, order, position, best)
                gap = (best - proved) / best if np.isfinite(best) else np.inf
                progress(proved, best, gap, clock() - start)
    except KeyboardInterrupt:
        complete = False
    bound = _proved(done, bounds, order, position, best)
    refined, pruned = len(done), len(cells) - len(done)
    if complete and np.isfinite(best):
        with suppress(KeyboardInterrupt):
            _look_further(cells, bounds, order, refine, done, runners_up, extra_refinements)
    plans = sorted((r for r in done.values() if r.plan is not None), key=lambda r: r.rank_key)
    return Outcome(
        plans=tuple(plans), bound_s=bound, refined=refined, pruned=pruned, complete=complete
    )


def family(cell: Cell) -> Family:
    """What makes two plans look different to a reader: the mesh and the schedule."""
    return (cell.pp, cell.dp, cell.tp, cell.schedule)


def _proved(
    done: dict[int, Refinement], bounds: Array, order: list[int], position: int, best: float
) -> float:
    """Nothing refined or left is faster than this; at most the best plan's time."""
    left = float(bounds[order[position]]) if position < len(order) else np.inf
    refined = min((max(r.bound_s, bounds[i]) for i, r in done.items()), default=np.inf)
    return float(min(best, left, refined))


def _look_further(
    cells: Sequence[Cell],
    bounds: Array,
    order: list[int],
    refine: Refine,
    done: dict[int, Refinement],
    runners_up: int,
    extra: int,
) -> None:
    """Refines the best of other families: each as far as its next bound promises more, with a
    third of the refinements at most for any one."""
    best: dict[Family, float] = {}
    for refinement in done.values():
        kind = family(refinement.cell)
        best[kind] = min(best.get(kind, np.inf), refinement.step_time_s)
    settled = {kind for kind, step_s in best.items() if np.isfinite(step_s)}
    tried: Counter[Family] = Counter()
    for index in order:
        kind = family(cells[index])
        if kind in settled or tried[kind] * 3 >= extra:
            continue
        if bounds[index] >= best.get(kind, np.inf):
            settled.add(kind)
            continue
        if sum(np.isfinite(step_s) for step_s in best.values()) > runners_up and (
            kind not in best or not np.isfinite(best[kind])
        ):
            continue
        if tried.total() >= extra:
            return
        found = refine(cells[index], best.get(kind, np.inf))
        tried[kind] += 1
        if found.plan is not None:
            done[index] = found
            best[kind] = min(best.get(kind, np.inf), found.step_time_s)
