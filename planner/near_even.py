"""Every near-even way to fill interleaved stages with blocks that branch, and what each takes.

Stages of an interleaved plan hold n blocks or n + 1 (planner/interleaved_problem.py). Of blocks
with branches there are often few such fillings along nested ideals: each is then bounded by the
paths that every interleaved timeline has, and those that are left are run through the timeline
itself, with every block at its fastest. Where that fits in memory it is the filling's best.
"""

from __future__ import annotations

import numpy as np

from planner.block_lattice import BlockLattice
from planner.cell import Cell
from planner.ideal_problem import IdealProblem
from planner.problem import Array
from planner.stage_labels import Index
from simulator.durations import Durations
from simulator.schedule import build_schedule
from simulator.timeline import simulate


def near_even_fillings(lattice: BlockLattice, stages: int, limit: int) -> Index | None:
    """[fillings, stages + 1] ideals at which the stages are cut; None for more than `limit`."""
    return _fillings(lattice, stages, limit, _next_cuts(lattice, stages))


def every_filling(lattice: BlockLattice, stages: int, limit: int) -> Index | None:
    """The same for stages of any size."""
    return _fillings(lattice, stages, limit, _next_cuts(lattice, stages, even=False))


def _fillings(lattice: BlockLattice, stages: int, limit: int, after: list[Index]) -> Index | None:
    # How many fillings of the stages from one on begin at an ideal, the last stage first.
    ways = np.zeros((stages + 1, lattice.count))
    ways[stages, -1] = 1
    for stage in range(stages - 1, -1, -1):
        for ideal in range(lattice.count):
            ways[stage, ideal] = ways[stage + 1, after[ideal]].sum()
    if not 0 < ways[0, 0] <= limit:
        return None if ways[0, 0] else np.zeros((0, stages + 1), dtype=np.intp)
    found: list[tuple[int, ...]] = [(0,)]
    for stage in range(stages):
        found = [
            (*cuts, int(ideal))
            for cuts in found
            for ideal in after[cuts[-1]]
            if ways[stage + 1, ideal]
        ]
    return np.asarray(found, dtype=np.intp)


def balanced_filling(problem: IdealProblem) -> Index | None:
    """[stages + 1] ideals of the near-even filling whose slowest stage is fastest; None if none."""
    lattice, stages = problem.lattice, problem.num_stages
    after = _next_cuts(lattice, stages)
    holds = lattice.holds.astype(float)
    slowest = np.full((stages + 1, lattice.count), np.inf)
    slowest[stages, -1] = 0.0
    following = np.zeros((stages, lattice.count), dtype=np.intp)
    for stage in range(stages - 1, -1, -1):
        costs = problem.costs[problem.slots[stage].costs]
        total = holds @ (costs.forward_s + costs.backward_s.min(axis=1))
        for ideal in range(lattice.count):
            ends = after[ideal]
            if ends.size:
                worst = np.maximum(total[ends] - total[ideal], slowest[stage + 1, ends])
                best = int(worst.argmin())
                slowest[stage, ideal] = worst[best]
                following[stage, ideal] = ends[best]
    if not np.isfinite(slowest[0, 0]):
        return None
    cuts = [0]
    for stage in range(stages):
        cuts.append(int(following[stage, cuts[-1]]))
    return np.asarray(cuts, dtype=np.intp)


def _next_cuts(lattice: BlockLattice, stages: int, *, even: bool = True) -> list[Index]:
    """Per ideal where a stage that begins there may end."""
    size, holds = lattice.holds.sum(axis=1), lattice.holds
    least = lattice.num_blocks // stages
    legal = np.asarray(lattice.cuts)
    legal[-1] = True
    found = []
    for ideal in range(lattice.count):
        grown = size - size[ideal]
        near = (grown == least) | (grown == least + 1) if even else grown > 0
        near &= legal & ~(holds[ideal] & ~holds).any(axis=1)
        found.append(np.flatnonzero(near))
    return found


def path_bounds(problem: IdealProblem, cell: Cell, cuts: Index) -> Array:
    """[fillings] seconds that no timeline of each filling undercuts, tails left out.

    The paths of planner.bound.interleaved_fill_s, with the stages as they are.
    """
    forward, backward = stage_seconds(problem, cuts)
    times = forward + backward
    p, micro = cell.pp, cell.num_microbatches
    ranks = np.stack([times[:, rank::p].sum(axis=1) for rank in range(p)], axis=1)
    down = np.cumsum(times, axis=1)[:, : p - 1]
    before = np.concatenate([np.zeros((len(cuts), 1)), down[:, :-1]], axis=1)
    bound = np.max(before[:, : p - 1] + micro * ranks[:, : p - 1], axis=1, initial=0.0)
    last = times.sum(axis=1) + (micro - p) * ranks[:, -1] + (p - 1) * times[:, -1]
    return np.asarray(np.maximum(np.maximum(bound, micro * ranks[:, -1]), last))


def timeline_seconds(
    problem: IdealProblem, cell: Cell, cuts: Index, weight_s: tuple[Array, ...] = ()
) -> Array:
    """[fillings] seconds of each filling's timeline, every block at its fastest; tails left out.

    weight_s  [n] for each of the problem's costs, where the backward is split: seconds of W
    """
    schedule = build_schedule(
        cell.schedule,
        num_ranks=cell.pp,
        num_microbatches=cell.num_microbatches,
        stages_per_rank=cell.vpp,
    )
    forward, backward = stage_seconds(problem, cuts)
    weights = _sums(problem, cuts, weight_s) if weight_s else np.zeros((len(cuts), 0))
    stages = np.arange(cell.num_stages)
    found = np.zeros(len(cuts))
    for row, ideals in enumerate(cuts):
        down = problem.send_forward_s[stages, ideals[:-1]]
        up = problem.send_backward_s[stages, ideals[:-1]]
        durations = Durations(
            forward_s=tuple(forward[row].tolist()),
            backward_s=tuple(backward[row].tolist()),
            send_forward_s=tuple(down.tolist()),
            send_backward_s=tuple(up.tolist()),
            backward_input_s=tuple((backward[row] - weights[row]).tolist()) if weight_s else None,
            backward_weight_s=tuple(weights[row].tolist()) if weight_s else None,
        )
        found[row] = simulate(schedule, durations).makespan_s
    return found


def stage_seconds(problem: IdealProblem, cuts: Index) -> tuple[Array, Array]:
    """[fillings, stages] forward and least backward seconds per micro-batch."""
    forward = _sums(problem, cuts, tuple(costs.forward_s for costs in problem.costs))
    return forward, _sums(problem, cuts, tuple(c.backward_s.min(axis=1) for c in problem.costs))


def _sums(problem: IdealProblem, cuts: Index, figures: tuple[Array, ...]) -> Array:
    """[fillings, stages] sum over each stage's blocks of a figure [n] of each of the costs."""
    holds = problem.lattice.holds.astype(float)
    found = np.zeros(cuts[:, 1:].shape)
    for stage, slot in enumerate(problem.slots):
        total = holds @ figures[slot.costs]
        found[:, stage] = total[cuts[:, stage + 1]] - total[cuts[:, stage]]
    return found
