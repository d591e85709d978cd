"""The search over tensor-parallel degree, micro-batch, ZeRO stage and number of replicas, which
differ: stages, shares and unused devices are chosen inside (`shares.share_out`).

Every key has a lower bound that no prediction undercuts. The key with the least is taken, its bound
sharpened, and it is solved if it still has the least; each plan is finally timed by the simulator
(`simulator.traced.predict`).
"""

from __future__ import annotations

import functools
import heapq
import itertools
import math
from collections.abc import Callable
from dataclasses import replace

from planner.axes import Axes
from planner.divisors import divisors
from planner.heterogeneous.shares import Share, Splits, least_step_s, share_out
from planner.heterogeneous.splits import StageTables, best_splits
from planner.heterogeneous.stage_prices import Key, StagePrices
from simulator.traced.predict import predict
from simulator.values.degrees import Degrees
from simulator.values.plan import Pipeline, Plan, Stage
from simulator.values.plan_file import PlanFile
from simulator.values.prediction import Prediction

MOST_STAGES = 8  # of a pipeline, where --pp does not ask for more
EVERY_COUNT = 16  # numbers of replicas that are all tried; beyond, powers of two and three of them
ZERO_STAGES = (0, 1, 2)


def search_unlike(
    prices: StagePrices,
    keys: tuple[Key, ...],
    *,
    below_s: float = math.inf,
    clock: Callable[[], float],
    time_limit_s: float | None = None,
) -> PlanFile:
    """The best plan of the keys, if it is better than `below_s`; the bound holds in any case.

    time_limit_s  ends the search with the best plan so far; so does an interrupt
    """
    start, model = clock(), prices.model
    best: tuple[Plan, Prediction] | None = None
    best_s, bound_s, solved = below_s, math.inf, 0
    assumptions: tuple[str, ...] = ()
    lower_s = _lower_bounds(prices)
    coarse = {key: _coarse_s(prices, key) for key in keys}
    order = sorted(keys, key=lambda k: (coarse[k], k.degrees.tp, k.micro_batch, k.zero_stage))
    # (bound, number of the key, whether the bound was sharpened)
    left = [(coarse[key], number, False) for number, key in enumerate(order)]
    while left and left[0][0] < best_s:
        lower, number, sharpened = heapq.heappop(left)
        key = order[number]
        try:
            if time_limit_s is not None and clock() - start > time_limit_s:
                raise KeyboardInterrupt
            if not sharpened:
                lower = max(lower, lower_s(key, best_s))
                if lower < best_s:
                    heapq.heappush(left, (lower, number, True))
                continue
            solved += 1
            for plan in _plans(prices, key):
                prediction = predict(plan, model.traced, model.cluster, stack=model.stack)
                if prediction.fits and prediction.step_time_s.value < best_s:
                    best, best_s = (plan, prediction), prediction.step_time_s.value
            bound_s = min(bound_s, lower)
        except KeyboardInterrupt:
            # The bound of this key is what it was left with, that of no other is less.
            bound_s = min(bound_s, lower)
            assumptions = ("--time-limit ended the search for replicas that differ",)
            break
    answer = PlanFile(
        status="feasible" if best else "infeasible",
        bound=min(bound_s, best_s),
        search_time_s=clock() - start,
        cells_considered=len(keys),
        cells_pruned=len(keys) - solved,
        cells_refined=solved,
        solver="dp",
        assumptions=assumptions,
        machine=model.cluster.machine,
    )
    return replace(answer, plan=best[0]).with_prediction(best[1]) if best else answer


def unlike_keys(prices: StagePrices, space: Axes) -> tuple[Key, ...]:
    """Every key of the space: degrees of which some type has a whole group in a node."""
    batch = prices.model.workload.global_batch
    return tuple(
        Key(degrees=Degrees(tp=tp, dp=replicas), micro_batch=micro_batch, zero_stage=zero)
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


def _coarse_s(prices: StagePrices, key: Key) -> float:
    """All micro-batches over the speed of all devices together, as if shares and stages could be
    cut as finely as one likes."""
    types = prices.types(key.degrees.tp)
    chains = prices.fastest_s(key.degrees.tp, key.micro_batch)
    speed = sum(len(kind.groups) / s for kind, s in zip(types, chains, strict=True))
    return prices.model.workload.global_batch // key.micro_batch / speed


def _lower_bounds(prices: StagePrices) -> Callable[[Key, float], float]:
    """A function of a key and a limit: seconds that no plan of the key undercuts; infinite where
    that is the limit or more."""

    @functools.cache
    def splits_of(key: Key) -> tuple[Splits, StageTables]:
        tables = prices.tables(key, least=True)
        return best_splits(tables), tables

    def lower_s(key: Key, below_s: float) -> float:
        most = key.with_replicas(prices.num_groups(key.degrees.tp))
        lower = math.inf
        # With more replicas each needs less memory, so that one bound holds for all numbers; with
        # nothing sharded all numbers are bounded alike.
        for each in (most, key) if key.zero_stage else (key.with_replicas(1),):
            lower = least_step_s(*splits_of(each), key.degrees.dp, below_s=below_s)
            if lower >= below_s:
                break
        return lower

    return lower_s


def _plans(prices: StagePrices, key: Key) -> tuple[Plan, ...]:
    """The best plan, with devices numbered in both ways."""
    tables = prices.tables(key)
    shares = share_out(best_splits(tables), tables, key.degrees.dp)
    if shares is None:
        return ()
    plans = (unlike_plan(prices, key, shares, by_stage=by_stage) for by_stage in (False, True))
    return tuple(dict.fromkeys(plans))


def unlike_plan(
    prices: StagePrices, key: Key, shares: tuple[Share, ...], *, by_stage: bool = False
) -> Plan:
    """The complete plan: devices by number and recompute kinds.

    by_stage  numbers devices in the cluster's order stage by stage over the replicas, so that those
              which exchange gradients are neighbors; else replica by replica, so that those of a
              pipeline are
    """
    tp, model = key.degrees.tp, prices.model
    chain = model.graph(key.micro_batch, tp).chain
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
                recompute=prices.recompute(key, kind, count - at, first, last),
            )
            for at, (kind, (first, last)) in enumerate(zip(share.split.devices, ends, strict=True))
        )
        pipelines.append(Pipeline(stages=stages, num_microbatches=share.num_microbatches))
    used = {index for group in devices.values() for index in group}
    return Plan(
        model=model.traced.name,
        model_hash=model.traced.content_hash,
        block_entries=tuple(ref.entry for ref in chain),
        tied_parameters=model.traced.tied_parameters,
        tensor_parallel=model.traced.tensor_parallel if tp > 1 else (),
        cluster=model.cluster.name,
        cluster_hash=prices.cluster_hash,
        workload=model.workload,
        degrees=replace(key.degrees, pp=max(len(each.stages) for each in pipelines)),
        zero_stage=key.zero_stage,
        micro_batch=key.micro_batch,
        schedule="1f1b",
        stages=(),
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
