"""`plan_mixed`: the best plan on a cluster of mixed devices, with replicas that differ or alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from planner.axes import Axes
from planner.costs.priced_model import PricedModel
from planner.divisors import divisors
from planner.heterogeneous.mixed_answer import Compared, LeftOut, MixedPlanFile
from planner.heterogeneous.mixed_prices import MixedPrices, check_rates
from planner.heterogeneous.mixed_search import MOST_STAGES, MixedOutcome, mixed_keys, search_mixed
from planner.search.mixed_parts import Part, parts_of
from planner.search.search import search
from planner.tolerances import status_of
from planner.traced import Traced
from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.sourced import Sourced
from simulator.mixed.mixed_prediction import MixedPrediction, usd_of
from simulator.traced.stack import Stack
from simulator.values.mixed_plan import MixedPlan
from simulator.values.plan_file import PlanFile
from simulator.values.plan_title import plan_title
from simulator.values.workload import Workload

UNLIKE = "replicas that differ"
_TRIED_STAGES = tuple(range(1, MOST_STAGES + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """The ordinary answer on a part, or why there is none."""

    part: Part
    answer: PlanFile | None = None
    why_not: str = ""

    @property
    def step_time_s(self) -> float:
        found = self.answer.step_time_s if self.answer else None
        return found if found is not None else float("inf")

    @property
    def bytes_over(self) -> float:
        """What the nearest plan lacks where none fits."""
        why = self.answer.infeasibility if self.answer else None
        return why.bytes_over if why else float("inf")


def plan_mixed(
    traced: Traced,
    cluster: Cluster,
    workload: Workload,
    *,
    space: Axes,
    stack: Stack,
    usd_per_hour: Mapping[str, Sourced],
    solver: str = "auto",
    seed: int = 0,
    time_limit_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> MixedPlanFile:
    """The best plan, what it was compared with, its bound and what is left out.

    usd_per_hour  of a device of each type, as far as known
    time_limit_s  for all searches together: of what is left each has an equal share

    Searched are the ordinary plans on each part of the cluster (`mixed_parts`) and, for 1F1B,
    replicas that differ (`mixed_search`). Raises InputError where a device has no rate for the
    precision and where the pins leave nothing to search.
    """
    start = clock()
    end = math.inf if time_limit_s is None else start + time_limit_s
    check_rates(cluster, workload.precision, workload.compute_dtype)
    prices = _prices(traced, cluster, workload, space=space, stack=stack)
    parts = parts_of(cluster, space, _slowest(prices))

    def ordinary(part: Part, share: int) -> _Found:
        """The answer on a part in an equal share of the time that is left."""
        limit_s = None if time_limit_s is None else _left(clock, end) / share
        if limit_s == 0.0:
            return _Found(part=part, why_not="not searched: the time limit was reached")
        one_type = len(set(part.devices)) == 1
        try:
            answer = search(
                traced,
                part.cluster,
                workload,
                space=part.space,
                stack=stack,
                solver=solver,
                price=usd_per_hour.get(part.devices[0]) if one_type else None,
                seed=seed,
                time_limit_s=limit_s,
                clock=clock,
            )
        except InputError as error:
            return _Found(part=part, why_not=str(error))
        return _Found(part=part, answer=answer)

    found = [ordinary(part, len(parts) - i + 1) for i, part in enumerate(parts)]
    keys = mixed_keys(prices, space) if prices.stages else ()
    if not keys and not any(each.answer for each in found):
        raise InputError(
            f"no plan on cluster {cluster.name} obeys {' '.join(space.pins()) or 'the pins'}. "
            + " ".join(f"{titles}: {why}" for why, titles in _reasons(found).items())
        )
    best = min(found, key=lambda each: (each.step_time_s, each.bytes_over))
    outcome = search_mixed(
        prices,
        keys,
        usd_per_hour=usd_per_hour,
        below_s=best.step_time_s,
        clock=clock,
        time_limit_s=None if time_limit_s is None else _left(clock, end),
    )
    compared = [_compared(each, usd_per_hour) for each in found]
    compared.append(_unlike(outcome, keys_left=bool(keys)))
    answer = MixedPlanFile(
        status="infeasible",
        model=traced.name,
        cluster=cluster.name,
        prices_usd_per_hour=dict(usd_per_hour),
        search_time_s=0.0,
        keys=outcome.keys,
        keys_solved=outcome.solved,
        compared=tuple(sorted(compared, key=lambda each: each.step_time_s or float("inf"))),
        assumptions=_assumptions(prices, space, outcome),
    )
    bounds = [each.answer.bound for each in found if each.answer and each.part.exact]
    bound = min([outcome.bound_s, *(b for b in bounds if b is not None)])
    if outcome.plan is not None and outcome.prediction is not None:
        answer = _with_unlike(answer, outcome.plan, outcome.prediction, bound, prices)
    elif best.answer is not None:
        answer = _with_ordinary(answer, best, bound, usd_per_hour, prices)
    else:
        raise InputError(f"the searches ended without a plan: {found[0].why_not}")
    return replace(answer, search_time_s=clock() - start)


def _left(clock: Callable[[], float], end_s: float) -> float:
    return max(0.0, end_s - clock())


def _prices(
    traced: Traced, cluster: Cluster, workload: Workload, *, space: Axes, stack: Stack
) -> MixedPrices:
    graph = traced.at(1, 1)
    schedules = {name for name in ("none", "1f1b") if space.allows("schedule", name)}
    stages = space.pp if space.pp is not None else _TRIED_STAGES
    if not graph.cuttable:
        stages = tuple(count for count in stages if count == 1)
    stages = tuple(
        count
        for count in stages
        if ("none" if count == 1 else "1f1b") in schedules and count <= len(graph.chain)
    )
    sizes = [size for size in divisors(workload.global_batch) if space.allows("micro_batch", size)]
    model = PricedModel(
        traced=traced,
        cluster=cluster,
        workload=workload,
        stack=stack,
        strategies=space.strategies,
        micro_batches=tuple(sizes) or (1,),
    )
    return MixedPrices(model, stages if space.allows("vpp", 1) and sizes else ())


def _slowest(prices: MixedPrices) -> str:
    seconds = prices.fastest_s(1, 1)
    return max(zip(seconds, prices.types(1), strict=True), key=lambda p: p[0])[1].device.name


def _reasons(found: list[_Found]) -> dict[str, str]:
    """Why there is no plan -> the parts of which that is so."""
    reasons: dict[str, str] = {}
    for each in found:
        before = reasons.get(each.why_not)
        reasons[each.why_not] = f"{before}; {each.part.title}" if before else each.part.title
    return reasons


def _compared(found: _Found, usd_per_hour: Mapping[str, Sourced]) -> Compared:
    part, answer = found.part, found.answer
    plan = answer.plan if answer else None
    if answer is None or plan is None:
        return Compared(
            title=part.title,
            plan=found.why_not or "does not fit",
            num_devices=len(part.devices),
            exact=part.exact,
        )
    return Compared(
        title=part.title,
        plan=plan_title(plan),
        num_devices=len(part.devices),
        exact=part.exact,
        step_time_s=answer.step_time_s,
        usd_per_million_tokens=_usd(found, usd_per_hour, "tokens"),
        usd_per_million_samples=_usd(found, usd_per_hour, "samples"),
    )


def mixed_title(plan: MixedPlan) -> str:
    """`8 replicas of tp1, micro-batch 1, ZeRO 2`."""
    parts = [
        f"{plan.num_replicas} replicas of tp{plan.degrees.tp}",
        f"micro-batch {plan.micro_batch}",
    ]
    if plan.num_replicas == 1:
        parts[0] = f"one pipeline of tp{plan.degrees.tp}"
    if plan.zero_stage:
        parts.append(f"ZeRO {plan.zero_stage}")
    return ", ".join(parts)


def _usd(found: _Found, usd_per_hour: Mapping[str, Sourced], counted_in: str) -> float | None:
    """US dollars per million tokens or samples; None where the plan is counted in the other."""
    prediction = found.answer.prediction if found.answer else None
    if prediction is None or prediction.counted_in != counted_in:
        return None
    usd = usd_of(list(found.part.devices), prediction.per_s, usd_per_hour)
    return usd.value if usd else None


def _unlike(outcome: MixedOutcome, *, keys_left: bool) -> Compared:
    if outcome.plan is None or outcome.prediction is None:
        why = "none is faster" if keys_left else "the pins allow none"
        return Compared(title=UNLIKE, plan=why, num_devices=0)
    usd, per_sample = (
        outcome.prediction.usd_per_million_tokens,
        outcome.prediction.usd_per_million_samples,
    )
    return Compared(
        title=UNLIKE,
        plan=mixed_title(outcome.plan),
        num_devices=outcome.plan.world_size,
        step_time_s=outcome.prediction.step_time_s.value,
        usd_per_million_tokens=usd.value if usd else None,
        usd_per_million_samples=per_sample.value if per_sample else None,
    )


def _with_unlike(
    answer: MixedPlanFile,
    plan: MixedPlan,
    prediction: MixedPrediction,
    bound: float,
    prices: MixedPrices,
) -> MixedPlanFile:
    step = prediction.step_time_s
    gap = max(0.0, (step.value - bound) / step.value)
    usd, per_sample = prediction.usd_per_million_tokens, prediction.usd_per_million_samples
    used: dict[str, int] = {}
    for name, _ in plan.used():
        used[name] = used.get(name, 0) + 1
    return replace(
        answer,
        status=status_of(gap),
        chosen=UNLIKE,
        bound=bound,
        gap=gap,
        step_time_s=step.value,
        step_time_low_s=step.low,
        step_time_high_s=step.high,
        mfu=prediction.mfu,
        peak_memory_bytes=prediction.peak_memory_bytes,
        usd_per_million_tokens=usd.value if usd else None,
        usd_per_million_samples=per_sample.value if per_sample else None,
        plan=plan,
        prediction=prediction,
        left_out=_left_out(prices, used, plan.degrees.tp, plan.micro_batch),
    )


def _with_ordinary(
    answer: MixedPlanFile,
    best: _Found,
    bound: float,
    usd_per_hour: Mapping[str, Sourced],
    prices: MixedPrices,
) -> MixedPlanFile:
    ordinary = best.answer
    assert ordinary is not None
    if ordinary.plan is None or ordinary.step_time_s is None:
        return replace(answer, chosen=best.part.title, ordinary=ordinary)
    bound = min(bound, ordinary.step_time_s)
    gap = (ordinary.step_time_s - bound) / ordinary.step_time_s
    used = {name: best.part.devices.count(name) for name in best.part.devices}
    plan = ordinary.plan
    if not best.part.exact:
        # It was searched on a view of the cluster; it is for the cluster.
        plan = replace(plan, cluster=prices.model.cluster.name, cluster_hash=prices.cluster_hash)
        ordinary = replace(ordinary, plan=plan, machine=prices.model.cluster.machine)
    return replace(
        answer,
        status=status_of(gap) if best.part.exact else "feasible",
        chosen=best.part.title,
        bound=bound,
        gap=gap,
        step_time_s=ordinary.step_time_s,
        step_time_low_s=ordinary.step_time_low_s,
        step_time_high_s=ordinary.step_time_high_s,
        mfu=ordinary.mfu,
        peak_memory_bytes=ordinary.peak_memory_bytes,
        usd_per_million_tokens=_usd(best, usd_per_hour, "tokens"),
        usd_per_million_samples=_usd(best, usd_per_hour, "samples"),
        ordinary=ordinary,
        left_out=_left_out(prices, used, plan.degrees.tp, plan.micro_batch),
    )


def _left_out(
    prices: MixedPrices, used: Mapping[str, int], tp: int, micro_batch: int
) -> tuple[LeftOut, ...]:
    """Per type what is not used: no whole group of tp, too slow, or not needed."""
    seconds = prices.fastest_s(tp, micro_batch)
    speed = {
        kind.device.name: (s, len(kind.groups) * tp)
        for kind, s in zip(prices.types(tp), seconds, strict=True)
    }
    best_s = min(seconds)
    found = []
    names = list(dict.fromkeys(group.device.name for group in prices.model.cluster.groups))
    for name in names:
        groups = [group for group in prices.model.cluster.groups if group.device.name == name]
        have = sum(group.count * group.devices_per_node for group in groups)
        left = have - used.get(name, 0)
        if not left:
            continue
        slow_s, able = speed.get(name, (0.0, 0))
        if left == have - able:
            why = f"nodes of {groups[0].devices_per_node} leave no whole group of tp {tp}"
        elif slow_s > best_s * 1.01:
            why = (
                "no faster plan that uses them was found: a micro-batch takes "
                f"{slow_s / best_s:.2g} times as long on them as on the fastest type"
            )
        else:
            why = "no faster plan that uses them was found: shares and stages do not come out even"
        found.append(LeftOut(device=name, num_devices=left, why=why))
    return tuple(found)


def _assumptions(prices: MixedPrices, space: Axes, outcome: MixedOutcome) -> tuple[str, ...]:
    said = ["devices may be left out"]
    if prices.stages and space.pp is None:
        said.append(f"replicas that differ have up to {max(prices.stages)} stages (--pp)")
    said.append(
        "replicas that differ run 1F1B, one tp and one micro-batch for all, ZeRO 0 to 2; one "
        "recompute kind per stage, or two of them in quarters (--tp, --micro-batch, --zero)"
    )
    if not outcome.complete:
        said.append("--time-limit ended the search for replicas that differ")
    return tuple(said)
