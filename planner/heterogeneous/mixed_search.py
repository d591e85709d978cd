"""The search over tensor-parallel degree, micro-batch, ZeRO stage and number of replicas on mixed
devices; stages, shares and devices left out are chosen inside (`mixed_devices.share_out`).

Every key has a lower bound that no prediction undercuts. The key with the least is taken, its bound
sharpened, and it is solved if it still has the least; each plan is finally timed by the simulator
(`predict_mixed`).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from planner.axes import Axes
from planner.divisors import divisors
from planner.heterogeneous.mixed_devices import MixedSolution, least_step_s, share_out
from planner.heterogeneous.mixed_prices import DeviceType, MixedKey, MixedPrices, Reach
from planner.heterogeneous.mixed_stages import Counts, Split, StageTables, best_splits
from profiles.sourced import Sourced
from simulator.mixed.mixed_prediction import MixedPrediction, predict_mixed
from simulator.values.degrees import Degrees
from simulator.values.mixed_plan import MixedPipeline, MixedPlan, MixedStage

MOST_STAGES = 8  # of a pipeline, where --pp does not ask for more
EVERY_COUNT = 16  # numbers of replicas that are all tried; beyond, powers of two and three of them
ZERO_STAGES = (0, 1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedOutcome:
    """What the search found.

    plan, prediction   the best, or None where no key holds a plan
    bound_s   no plan of the space is predicted faster; infinite where there is none
    keys, solved   how many there were, and how many could not be pruned
    complete  False where the time limit ended it
    """

    plan: MixedPlan | None
    prediction: MixedPrediction | None
    bound_s: float
    keys: int
    solved: int
    complete: bool


def search_mixed(
    prices: MixedPrices,
    keys: tuple[MixedKey, ...],
    *,
    usd_per_hour: Mapping[str, Sourced],
    below_s: float = float("inf"),
    clock: Callable[[], float],
    time_limit_s: float | None = None,
) -> MixedOutcome:
    """The best plan of the keys, if it is better than `below_s`.

    usd_per_hour  of a device of each type
    time_limit_s  ends the search with the best plan so far; so does an interrupt
    """
    start = clock()
    best: tuple[MixedPlan, MixedPrediction] | None = None
    best_s, bound_s, solved, complete = below_s, float("inf"), 0, True
    splits = _Splits(prices)
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
                lower = max(lower, _lower_s(key, splits, best_s))
                if lower < best_s:
                    heapq.heappush(left, (lower, number, True))
                continue
            solved += 1
            for plan in _plans(prices, key, splits):
                prediction = predict_mixed(
                    plan,
                    prices.model.traced,
                    prices.model.cluster,
                    stack=prices.model.stack,
                    prices=usd_per_hour,
                )
                if prediction.fits and prediction.step_time_s.value < best_s:
                    best, best_s = (plan, prediction), prediction.step_time_s.value
            bound_s = min(bound_s, lower)
        except KeyboardInterrupt:
            # Of this key is known what it was left with, of no other is less.
            bound_s, complete = min(bound_s, lower), False
            break
    return MixedOutcome(
        plan=best[0] if best else None,
        prediction=best[1] if best else None,
        bound_s=min(bound_s, best_s),
        keys=len(keys),
        solved=solved,
        complete=complete,
    )


def mixed_keys(prices: MixedPrices, space: Axes) -> tuple[MixedKey, ...]:
    """Every key of the space: degrees of which some type has a whole group in a node."""
    found: list[MixedKey] = []
    batch = prices.model.workload.global_batch
    for tp in prices.model.traced.tp_degrees:
        if not space.allows("tp", tp):
            continue
        groups = sum(len(kind.groups) for kind in prices.types(tp))
        for micro_batch in divisors(batch):
            if not space.allows("micro_batch", micro_batch):
                continue
            for replicas in _replica_counts(min(groups, batch // micro_batch)):
                if not space.allows("dp", replicas):
                    continue
                degrees = Degrees(tp=tp, dp=replicas)
                found += [
                    MixedKey(degrees=degrees, micro_batch=micro_batch, zero_stage=zero)
                    for zero in ZERO_STAGES
                    if space.allows("zero", zero) and (zero == 0 or replicas > 1)
                ]
    return tuple(found)


def _replica_counts(most: int) -> tuple[int, ...]:
    wide = (count for power in range(2, 20) for count in (2**power, 3 * 2**power))
    return tuple(sorted({*range(1, min(most, EVERY_COUNT) + 1), *(c for c in wide if c <= most)}))


def _coarse_s(prices: MixedPrices, key: MixedKey) -> float:
    """All micro-batches over the speed of all devices together, as if shares and stages could be
    cut as finely as one likes."""
    types = prices.types(key.degrees.tp)
    chains = prices.fastest_s(key.degrees.tp, key.micro_batch)
    speed = sum(len(kind.groups) / s for kind, s in zip(types, chains, strict=True))
    return prices.model.workload.global_batch // key.micro_batch / speed


_Known = tuple[StageTables, dict[Counts, tuple[Split, ...]]]


class _Splits:
    """Splits of keys, each found once."""

    def __init__(self, prices: MixedPrices) -> None:
        self._prices = prices
        self._tables: dict[tuple[MixedKey, Reach], StageTables] = {}
        self._known: dict[tuple[MixedKey, Reach], dict[Counts, tuple[Split, ...]]] = {}

    def roomiest(self, key: MixedKey) -> MixedKey:
        """The key that stands for all numbers of replicas in bounds: each needs least memory."""
        groups = sum(len(kind.groups) for kind in self._prices.types(key.degrees.tp))
        return replace(key, degrees=replace(key.degrees, dp=groups))

    def of(self, key: MixedKey, reach: Reach) -> _Known:
        """The stages of a key and their splits."""
        if reach is Reach.NONE and not key.zero_stage:
            # Nothing is sharded: all numbers are bounded alike.
            key = replace(key, degrees=replace(key.degrees, dp=1))
        if (key, reach) not in self._tables:
            self._tables[key, reach] = self._prices.tables(key, reach)
            self._known[key, reach] = best_splits(self._tables[key, reach])
        return self._tables[key, reach], self._known[key, reach]


def _lower_s(key: MixedKey, splits: _Splits, below_s: float) -> float:
    """Seconds that no plan of the key undercuts; infinite where it is `below_s` or more."""
    lower = float("inf")
    # With more replicas each needs less memory, so that one bound holds for all numbers.
    for of in (splits.roomiest(key), key) if key.zero_stage else (key,):
        tables, found = splits.of(of, Reach.NONE)
        lower = least_step_s(found, tables, replicas=key.degrees.dp, below_s=below_s)
        if lower >= below_s:
            break
    return lower


def _plans(prices: MixedPrices, key: MixedKey, splits: _Splits) -> Iterator[MixedPlan]:
    """The best plans as far as messages may reach, with devices numbered in both ways."""
    seen: set[MixedPlan] = set()
    for reach in (Reach.FAR, Reach.NEAR):
        tables, found = splits.of(key, reach)
        if not found:
            continue
        solution = share_out(
            found, tables, reduce_s=(0.0,) * key.degrees.dp, replicas=(key.degrees.dp,)
        )
        if solution is None:
            continue
        for by_stage in (False, True):
            plan = mixed_plan(prices, key, solution, by_stage=by_stage)
            if plan not in seen:
                seen.add(plan)
                yield plan


def mixed_plan(
    prices: MixedPrices, key: MixedKey, solution: MixedSolution, *, by_stage: bool = False
) -> MixedPlan:
    """The complete plan: devices by number and recompute kinds.

    by_stage  numbers devices in the cluster's order stage by stage over the replicas, so that those
              which exchange gradients are neighbours; else replica by replica, so that those of a
              pipeline are
    """
    degrees = key.degrees
    types = prices.types(degrees.tp)
    devices = _numbered(types, solution, by_stage=by_stage)
    graph = prices.model.graph(key.micro_batch, degrees.tp)
    pipelines = []
    for number, replica in enumerate(solution.replicas):
        split = replica.split
        edges = (*split.first_blocks, len(graph.chain))
        count = len(split.devices)
        pipelines.append(
            MixedPipeline(
                num_microbatches=replica.num_microbatches,
                stages=tuple(
                    MixedStage(
                        device=types[kind].device.name,
                        devices=devices[number, at],
                        first_block=first,
                        last_block=last,
                        recompute=prices.recompute(key, kind, count - at, first, last),
                    )
                    for at, (kind, (first, last)) in enumerate(
                        zip(split.devices, itertools.pairwise(edges), strict=True)
                    )
                ),
            )
        )
    used = {index for p in pipelines for s in p.stages for index in s.devices}
    return MixedPlan(
        model=prices.model.traced.name,
        model_hash=prices.model.traced.content_hash,
        block_entries=tuple(ref.entry for ref in graph.chain),
        tied_parameters=prices.model.traced.tied_parameters,
        tensor_parallel=prices.model.traced.tensor_parallel if degrees.tp > 1 else (),
        cluster=prices.model.cluster.name,
        cluster_hash=prices.cluster_hash,
        workload=prices.model.workload,
        degrees=Degrees(tp=degrees.tp),
        zero_stage=key.zero_stage,
        micro_batch=key.micro_batch,
        pipelines=tuple(pipelines),
        unused=tuple(i for i in range(prices.model.cluster.num_devices) if i not in used),
    )


def _numbered(
    types: tuple[DeviceType, ...], solution: MixedSolution, *, by_stage: bool
) -> dict[tuple[int, int], tuple[int, ...]]:
    """The devices of every (replica, stage)."""
    places = [
        (number, at)
        for number, replica in enumerate(solution.replicas)
        for at in range(len(replica.split.devices))
    ]
    free = [iter(kind.groups) for kind in types]
    order = sorted(places, key=lambda place: place[::-1]) if by_stage else places
    return {
        (number, at): next(free[solution.replicas[number].split.devices[at]])
        for number, at in order
    }
