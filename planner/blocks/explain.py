"""Explanations: why a runner-up is slower; if nothing fits, the nearest plan, its fullest stage,
the largest part of its memory, and the changes that may make one fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from planner.axes import Axes
from planner.cell import Cell
from planner.chain.problem import Partition
from planner.mesh.cell_solver import CellSolver
from planner.neighbors import Neighbor, fullest_term, larger_clusters, with_more_memory
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import Device
from profiles.units import format_bytes, format_percent, format_time
from simulator.traced.predict import SHARED_SUMS
from simulator.values.plan import Plan, Recompute
from simulator.values.plan_file import Infeasibility, Relaxation
from simulator.values.prediction import Part, Prediction


def why_not_first(plan: Plan, prediction: Prediction, best: Prediction) -> str:
    """Why `plan` is slower than the best: the part of the step that grew most.

    Parameters: the runner-up, its prediction, the prediction of the best plan.
    """
    slower_s = prediction.step_time_s.value - best.step_time_s.value
    if slower_s <= 1e-9 * best.step_time_s.value:
        more = prediction.peak.value - best.peak.value
        return f"as fast, {format_bytes(more)} more memory" if more > 0 else "as fast; tie"
    before = best.seconds
    grown = sorted(
        ((part.time_s - before.get(part.name, 0.0), part.name) for part in prediction.components),
        key=lambda pair: (-pair[0], pair[1]),
    )
    extra_s, name = grown[0]
    share = format_percent(slower_s / best.step_time_s.value)
    return f"{share} slower: {_phrase(name, extra_s, plan, prediction)}"


def _phrase(name: Part, extra_s: float, plan: Plan, prediction: Prediction) -> str:
    degrees = plan.degrees
    more = f"+{format_time(extra_s)}"
    what = "gradient reduction" if plan.zero_stage < 3 else "parameter gathering"
    sums = f"{what} across {degrees.dp} devices" if degrees.dp > 1 else SHARED_SUMS
    words = {
        Part.REDUCE: sums,
        Part.TENSOR: f"tensor-parallel all-reduces across {degrees.tp} devices",
        Part.CUT: f"sends between {degrees.pp * degrees.vpp} stages",
        Part.RECOMPUTE: "recomputation",
        Part.COMPUTE: f"less efficient kernels (micro-batch {plan.micro_batch}, tp {degrees.tp})",
        Part.LAUNCH: f"kernel launches ({plan.num_microbatches} micro-batches)",
    }
    if name is Part.BUBBLE:
        return f"bubble {format_percent(prediction.bubble_fraction)}"
    return f"{words.get(name, name.words)} {more}"


_CELLS_TRIED = 4  # meshes with the smallest shortfall that are solved for the nearest plan
_PRECISION = 0.01  # of the capacity: accuracy of the missing memory


def explain_infeasible(
    solver: CellSolver, missing: Mapping[Cell, float], relaxations: tuple[Relaxation, ...]
) -> Infeasibility:
    """The nearest plan: the one that needs the least additional memory. Only the first cells of the
    few meshes with the smallest bound on their shortfall are searched.

    missing  lower bound on the missing bytes of each cell; no cell has a plan that fits
    """
    meshes: dict[tuple[int, int, int], Cell] = {}
    for cell in sorted(missing, key=lambda cell: (missing[cell], cell.micro_batch, cell)):
        meshes.setdefault((cell.degrees.pp, cell.degrees.dp, cell.degrees.tp), cell)
    best: tuple[float, Cell, Partition] | None = None
    for cell in list(meshes.values())[:_CELLS_TRIED]:
        limit = best[0] if best else np.inf
        lack = missing[cell]
        found = _least_more(solver, cell, max(0.0, lack), limit) if lack < limit else None
        if found is not None and (best is None or found[0] < best[0]):
            best = (found[0], cell, found[1])
    assert best is not None  # with enough memory any cell has a plan
    cell = best[1]
    plan = solver.costs.plan(cell, best[2])
    # The prediction has one entry for each pipeline rank, in order.
    at, tight = max(
        enumerate(solver.costs.predict(plan).ranks),
        key=lambda rank: (rank[1].peak_bytes - rank[1].capacity_bytes, -rank[1].rank),
    )
    return Infeasibility(
        nearest=str(cell),
        stage=plan.stages_of(at)[0],
        term=fullest_term(tight),
        needed_bytes=tight.peak_bytes,
        capacity_bytes=tight.capacity_bytes,
        relaxations=relaxations,
    )


def _least_more(
    solver: CellSolver, cell: Cell, least: float, limit: float
) -> tuple[float, Partition] | None:
    """The smallest amount of additional memory with which the cell has a plan, and that plan; None
    above `limit`.

    least  lower bound on the additional memory
    """
    best_with = solver.with_more(cell)
    step = solver.costs.capacity_bytes * _PRECISION
    low, high = least, least + step
    found = best_with(high)
    while found is None and high < limit:
        low, high = high, least + 2 * (high - least)
        found = best_with(high)
    if found is None:
        return None
    while high - low > step:
        middle = (low + high) / 2
        fitting = best_with(middle)
        if fitting is None:
            low = middle
        else:
            high, found = middle, fitting
    return high, found


_FREED = {
    "micro_batch": "--micro-batch {plan.micro_batch}",
    "zero": "--zero {plan.zero_stage}",
    "tp": "--tp {plan.degrees.tp}",
    "pp": "--pp {plan.degrees.pp}",
    "dp": "--dp {plan.degrees.dp}",
    "schedule": "--schedule {plan.schedule}",
}


Changed = Neighbor[tuple[Axes, Cluster]]
"""Other axes or another cluster. Its text may contain `{plan.schedule}` and the like, which are
filled in from the plan found."""


def relaxation(found: Changed, plan: Plan, step_time_s: float) -> Relaxation:
    """A change for the answer, with the plan that proves it."""
    return Relaxation(
        change=found.change.format(plan=plan),
        flag=found.flag.format(plan=plan),
        step_time_s=step_time_s,
    )


def candidates(
    space: Axes, cluster: Cluster, *, other_devices: Callable[[], tuple[Device, ...]]
) -> Iterator[Changed]:
    """Changes to try, those without cost first.

    other_devices  devices of the catalog, tried last
    """
    yield from _freed(space, cluster)
    for larger in larger_clusters(cluster):
        change = f"{larger.num_devices} devices instead of {cluster.num_devices}"
        yield Neighbor("devices", (space, larger), change, f"--on {larger.name}")
    for device, changed in with_more_memory(cluster, other_devices()):
        change = f"devices with {format_bytes(device.memory_bytes.value)} ({device.name})"
        yield Neighbor("memory", (space, changed), change, f"--on {changed.name}")


def _freed(space: Axes, cluster: Cluster) -> Iterator[Changed]:
    """The axes with each pin removed, one at a time, then all removed."""
    if space.recompute is not None and Recompute.FULL not in space.recompute:
        free = replace(space, recompute=None)
        change, flag = "recompute activations where memory is short", "none,attention,full"
        yield Neighbor("recompute", (free, cluster), change, f"--recompute {flag}")
    for axis, flag in _FREED.items():
        if getattr(space, axis) is None:
            continue
        free = replace(space, **{axis: None})
        if axis == "schedule":
            free = replace(free, vpp=None)
        yield Neighbor(axis, (free, cluster), flag.removeprefix("--"), flag)
    if len(space.pins()) > 1:
        yield Neighbor(
            "pins",
            (Axes(), cluster),
            "all pins taken back: tp {plan.degrees.tp}, pp {plan.degrees.pp}, dp {plan.degrees.dp}",
            "--tp {plan.degrees.tp} --pp {plan.degrees.pp} --micro-batch {plan.micro_batch}",
        )
