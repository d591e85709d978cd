"""The search over plans with unequal replicas, by key: tensor-parallel degree, micro-batch, ZeRO
stage and number of replicas. For each key, `shares.share_out` chooses stages, shares and devices.

Every key has a lower bound on the predictions of its plans. The key with the lowest bound is taken
and its bound tightened; if it is still the lowest, the key is solved. The simulator times each plan
found (`simulator.traced.predict`).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import replace

from planner.axes import Axes
from planner.best_first import BestFirst, Candidate
from planner.heterogeneous.shares import Share, Splits, least_step_s, share_out
from planner.heterogeneous.splits import StageTables, best_splits
from planner.heterogeneous.stage_prices import Key, StagePrices
from planner.space import divisors
from profiles.model.building.tensor_parallel_rules import has_shared_tokens
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
    keys: tuple[Key, ...],
    *,
    below_s: float = math.inf,
    clock: Callable[[], float],
    time_limit_s: float | None = None,
) -> PlanFile:
    """The best plan of the keys, if it takes less than `below_s`, and a bound that always holds.

    time_limit_s  ends the search with the best plan so far; so does an interrupt
    """
    model = prices.model
    search: BestFirst[tuple[Plan, Prediction]] = BestFirst(
        clock=clock, time_limit_s=time_limit_s, best=below_s
    )
    lower_s = _lower_bounds(prices)
    coarse = {key: _coarse_s(prices, key) for key in keys}
    order = sorted(keys, key=lambda k: (coarse[k], k.degrees.tp, k.micro_batch, k.zero_stage))

    def opened(at: tuple[int, float, bool]) -> list[Candidate[tuple[int, float, bool]]]:
        number, bound_s, sharpened = at
        key = order[number]
        if not sharpened:
            bound_s = max(bound_s, lower_s(key, search.best))
            return [(bound_s, number, (number, bound_s, True))] if bound_s < search.best else []
        for plan in _plans(prices, key):
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
        cells_considered=len(keys),
        cells_pruned=len(keys) - search.refined,
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


def unequal_keys(prices: StagePrices, space: Axes) -> tuple[Key, ...]:
    """All keys of the space, with the tp degrees for which at least one type has a whole group in a
    node. Unequal replicas have no groups of hybrid sharding."""
    if not space.allows("dp_replicate", 1):
        return ()
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
    """Lower bound in seconds: all micro-batches over the speed of all devices together, as if
    shares and stages were arbitrarily divisible."""
    types = prices.types(key.degrees.tp)
    chains = prices.fastest_s(key.degrees.tp, key.micro_batch)
    speed = sum(len(kind.groups) / s for kind, s in zip(types, chains, strict=True))
    return prices.model.workload.global_batch // key.micro_batch / speed


def _lower_bounds(prices: StagePrices) -> Callable[[Key, float], float]:
    """A function from a key and a limit to a lower bound in seconds on the key's plans; infinite if
    it is the limit or more."""

    @functools.cache
    def splits_of(key: Key) -> tuple[Splits, StageTables]:
        tables = prices.tables(key, least=True)
        return best_splits(tables), tables

    def lower_s(key: Key, below_s: float) -> float:
        most = key.with_replicas(prices.num_groups(key.degrees.tp))
        lower = math.inf
        # More replicas need less memory each, so one bound holds for all numbers; if nothing is
        # sharded, all numbers have the same bound.
        for each in (most, key) if key.zero_stage else (key.with_replicas(1),):
            lower = least_step_s(*splits_of(each), key.degrees.dp, below_s=below_s)
            if lower >= below_s:
                break
        return lower

    return lower_s


def _plans(prices: StagePrices, key: Key) -> tuple[Plan, ...]:
    """The best plan of a key, with devices numbered in both ways."""
    tables = prices.tables(key)
    shares = share_out(best_splits(tables), tables, key.degrees.dp)
    if shares is None:
        return ()
    plans = (unequal_plan(prices, key, shares, by_stage=by_stage) for by_stage in (False, True))
    return tuple(dict.fromkeys(plans))


def unequal_plan(
    prices: StagePrices, key: Key, shares: tuple[Share, ...], *, by_stage: bool
) -> Plan:
    """The complete plan: devices by number and recompute kinds.

    by_stage  devices are numbered stage by stage over the replicas, so that devices that exchange
              gradients are neighbors; otherwise replica by replica, so that those of a pipeline are
              neighbors
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
    rules = model.traced.tensor_parallel if tp > 1 else ()
    return Plan(
        model=model.traced.name,
        model_hash=model.traced.content_hash,
        block_entries=tuple(ref.entry for ref in chain),
        tied_parameters=model.traced.tied_parameters,
        tensor_parallel=rules,
        sequence_parallel=has_shared_tokens(rules),
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
