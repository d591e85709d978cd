"""The search over plans with unequal replicas, by cell: tensor-parallel degree, micro-batch, ZeRO
stage and number of replicas. For each cell, `shares.share_out` chooses stages, shares and devices.

Every cell has a lower bound on the predictions of its plans. The cell with the lowest bound is
taken and its bound tightened; if it is still the lowest, the cell is solved. The simulator times
each plan found (`simulator.traced.predict`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import replace

from planner.axes import Axes
from planner.best_first import BestFirst, Candidate
from planner.cell import Cell
from planner.heterogeneous.shares import Share, Splits, least_step_s, share_out
from planner.heterogeneous.splits import StageTables, best_splits
from planner.heterogeneous.stage_prices import StagePrices
from planner.space import divisors
from simulator.traced.predict import predict
from simulator.values.degrees import Degrees
from simulator.values.plan import Pipeline, Plan, Stage
from simulator.values.plan_file import PlanFile
from simulator.values.prediction import Prediction

MOST_STAGES = 8  # of a pipeline, unless --pp requests more
EVERY_COUNT = 16  # numbers of replicas that are all tried; above: powers of two and their triples
ZERO_STAGES = (0, 1, 2)


def search_unequal(
    prices: StagePrices,
    cells: tuple[Cell, ...],
    *,
    below_s: float = math.inf,
    clock: Callable[[], float],
    time_limit_s: float | None = None,
) -> PlanFile:
    """The best plan of the cells, if it takes less than `below_s`, and a bound that always holds.

    time_limit_s  ends the search with the best plan so far; so does an interrupt
    """
    model = prices.model
    search: BestFirst[tuple[Plan, Prediction]] = BestFirst(
        clock=clock, time_limit_s=time_limit_s, best=below_s
    )
    lower_s = _lower_bounds(prices)
    coarse = {cell: _coarse_s(prices, cell) for cell in cells}
    order = sorted(cells, key=lambda k: (coarse[k], k.degrees.tp, k.micro_batch, k.zero_stage))

    def opened(at: tuple[int, float, bool]) -> list[Candidate[tuple[int, float, bool]]]:
        number, bound_s, sharpened = at
        cell = order[number]
        if not sharpened:
            bound_s = max(bound_s, lower_s(cell, search.best))
            return [(bound_s, number, (number, bound_s, True))] if bound_s < search.best else []
        for plan in _plans(prices, cell):
            prediction = predict(plan, model.traced, model.cluster, stack=model.stack)
            step_s = prediction.step_time_s.value
            if prediction.fits and step_s < search.best:
                search.offer(None, (step_s,), (plan, prediction))
        search.count_refined(bound_s)
        return []

    begun = clock()
    with search.until_the_end():
        search.explore([(coarse[k], n, (n, coarse[k], False)) for n, k in enumerate(order)], opened)
    answer = PlanFile(
        status="feasible" if search.found else "infeasible",
        bound=search.bound,
        search_time_s=clock() - begun,
        cells_considered=len(cells),
        cells_pruned=len(cells) - search.refined,
        cells_refined=search.refined,
        solver="dp",
        assumptions=(
            () if search.complete else ("--time-limit ended the search for replicas that differ",)
        ),
        machine=model.cluster.machine,
    )
    for _, (plan, prediction) in search.ranked():
        return replace(answer, plan=plan).with_prediction(prediction)
    return answer


def unequal_cells(prices: StagePrices, space: Axes) -> tuple[Cell, ...]:
    """All cells of the space, with the tp degrees for which at least one type has a whole group in
    a node. Unequal replicas have no groups of hybrid sharding."""
    if not space.allows("dp_replicate", 1):
        return ()
    batch = prices.model.workload.global_batch
    return tuple(
        prices.cell(Degrees(tp=tp, dp=replicas), micro_batch, zero)
        for tp in prices.model.traced.tp_degrees
        if space.allows("tp", tp)
        for micro_batch in divisors(batch)
        if space.allows("micro_batch", micro_batch)
        for replicas in _replica_counts(min(prices.num_groups(tp), batch // micro_batch))
        if space.allows("dp", replicas)
        for zero in ZERO_STAGES
        if space.allows("zero", zero) and (zero == 0 or replicas > 1)
    )


def _replica_counts(most: int) -> tuple[int, ...]:
    wide = (count for power in range(2, 20) for count in (2**power, 3 * 2**power))
    return tuple(sorted({*range(1, min(most, EVERY_COUNT) + 1), *(c for c in wide if c <= most)}))


def _coarse_s(prices: StagePrices, cell: Cell) -> float:
    """Lower bound in seconds: all micro-batches over the speed of all devices together, as if
    shares and stages were arbitrarily divisible."""
    types = prices.types(cell.degrees.tp)
    chains = prices.fastest_s(cell.degrees.tp, cell.micro_batch)
    speed = sum(len(kind.groups) / s for kind, s in zip(types, chains, strict=True))
    return prices.model.workload.global_batch // cell.micro_batch / speed


def _lower_bounds(prices: StagePrices) -> Callable[[Cell, float], float]:
    """A function from a cell and a limit to a lower bound in seconds on the cell's plans; infinite
    if it is the limit or more."""

    @functools.cache
    def splits_of(cell: Cell) -> tuple[Splits, StageTables]:
        tables = prices.tables(cell, least=True)
        return best_splits(tables), tables

    def lower_s(cell: Cell, below_s: float) -> float:
        most = cell.with_replicas(prices.num_groups(cell.degrees.tp))
        lower = math.inf
        # More replicas need less memory each, so one bound holds for all numbers; if nothing is
        # sharded, all numbers have the same bound.
        for each in (most, cell) if cell.zero_stage else (cell.with_replicas(1),):
            lower = least_step_s(*splits_of(each), cell.degrees.dp, below_s=below_s)
            if lower >= below_s:
                break
        return lower

    return lower_s


def _plans(prices: StagePrices, cell: Cell) -> tuple[Plan, ...]:
    """The best plan of a cell, with devices numbered in both ways."""
    tables = prices.tables(cell)
    shares = share_out(best_splits(tables), tables, cell.degrees.dp)
    if shares is None:
        return ()
    plans = (unequal_plan(prices, cell, shares, by_stage=by_stage) for by_stage in (False, True))
    return tuple(dict.fromkeys(plans))


def unequal_plan(
    prices: StagePrices, cell: Cell, shares: tuple[Share, ...], *, by_stage: bool
) -> Plan:
    """The complete plan: devices by number and recompute kinds.

    by_stage  devices are numbered stage by stage over the replicas, so that devices that exchange
              gradients are neighbors; otherwise replica by replica, so that those of a pipeline are
              neighbors
    """
    tp, model = cell.degrees.tp, prices.model
    chain = model.graph(cell.micro_batch, tp).chain
    devices = _numbered(prices, tp, shares, by_stage=by_stage)
    pipelines = []
    for number, share in enumerate(shares):
        ends = itertools.pairwise((*share.split.first_blocks, len(chain)))
        count = len(share.split.devices)
        stages = tuple(
            Stage(
                device=prices.types(tp)[kind].device.name,
                devices=devices[number, at],
                first_block=first,
                last_block=last,
                recompute=prices.recompute(cell, kind, count - at, first, last),
            )
            for at, (kind, (first, last)) in enumerate(zip(share.split.devices, ends, strict=True))
        )
        pipelines.append(Pipeline(stages=stages, num_microbatches=share.num_microbatches))
    used = {index for group in devices.values() for index in group}
    return model.plan(
        replace(cell, degrees=replace(cell.degrees, pp=max(len(p.stages) for p in pipelines))),
        (),
        pipelines=tuple(pipelines),
        unused=tuple(i for i in range(model.cluster.num_devices) if i not in used),
    )


def _numbered(
    prices: StagePrices, tp: int, shares: tuple[Share, ...], *, by_stage: bool
) -> dict[tuple[int, int], tuple[int, ...]]:
    """The devices of every (replica, stage)."""
    places = [
        (number, at)
        for number, share in enumerate(shares)
        for at in range(len(share.split.devices))
    ]
    free = [iter(kind.groups) for kind in prices.types(tp)]
    order = sorted(places, key=lambda place: place[::-1]) if by_stage else places
    return {(number, at): next(free[shares[number].split.devices[at]]) for number, at in order}
