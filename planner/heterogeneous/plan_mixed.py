"""`plan_mixed`: the best plan on devices of several types, with equal or unequal replicas.

Plans with equal replicas come from three kinds of search. Such a search prices a pipeline rank by
its first device, so all devices of a rank must be of one type. The first runs on the devices of one
type, the second on all devices, with stages of one type each. The third gives equal shares to
unequal devices: it treats all as the slowest type, with the smallest memory.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.axes import Axes
from planner.blocks.answer import SearchOptions
from planner.blocks.block_search import one_type_stages, search
from planner.costs.priced_model import PricedModel, Traced
from planner.heterogeneous.stage_prices import StagePrices, check_rates
from planner.heterogeneous.unequal_search import MOST_STAGES, search_unequal, unequal_cells
from planner.space import divisors
from planner.tolerances import status_of
from profiles.document import content_hash
from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster, Level
from profiles.sourced import Sourced
from simulator.money import usd_per_million
from simulator.training_run.framework.executor_states import ExecutorStates
from simulator.values.plan_file import Compared, Comparison, LeftOut, PlanFile
from simulator.values.plan_title import plan_title
from simulator.values.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A cluster and a space for a search.

    title    for reports
    devices  type of each of its devices
    exact    whether its times are exact; otherwise they are upper bounds
    """

    title: str
    cluster: Cluster
    space: Axes
    devices: tuple[str, ...]
    exact: bool = True


def parts_of(cluster: Cluster, space: Axes, slowest: str) -> tuple[Part, ...]:
    """The parts to search: each device type alone, all devices with stages of one type each, and
    all devices treated as the type `slowest`."""
    every = tuple(
        group.device.name
        for group in cluster.groups
        for _ in range(group.count * group.devices_per_node)
    )
    found = [
        Part(
            title=f"{name} alone",
            cluster=only(cluster, name),
            space=space,
            devices=(name,) * every.count(name),
        )
        for name in dict.fromkeys(every)
    ]
    whole = one_type_stages(cluster, space)
    if whole is not None:
        title = "all, each stage of one type"
        found.append(Part(title=title, cluster=cluster, space=whole, devices=every))
    level = all_as_slowest(cluster, slowest)
    title = "all with equal shares"
    return (*found, Part(title=title, cluster=level, space=space, devices=every, exact=False))


def only(cluster: Cluster, name: str) -> Cluster:
    """The cluster's nodes of one device type, with the network levels that they span."""
    groups = tuple(group for group in cluster.groups if group.device.name == name)
    count = sum(group.count * group.devices_per_node for group in groups)
    levels: list[Level] = []
    for level in cluster.levels:
        if levels and levels[-1].domain_size >= count:
            break
        levels.append(level)
    return replace(
        cluster, name=f"{cluster.name}: {name} only", groups=groups, levels=tuple(levels)
    )


def all_as_slowest(cluster: Cluster, slowest: str) -> Cluster:
    """The cluster with every device as slow as type `slowest`, and with the smallest memory of all
    types."""
    least = min((group.device for group in cluster.groups), key=lambda device: device.usable_bytes)
    slow = next(group.device for group in cluster.groups if group.device.name == slowest)
    device = replace(slow, memory_bytes=least.memory_bytes, reserved_bytes=least.reserved_bytes)
    groups = tuple(replace(group, device=device) for group in cluster.groups)
    return replace(cluster, name=f"{cluster.name}: as if all were {slowest}", groups=groups)


UNLIKE = "replicas that differ"


@dataclass(frozen=True, slots=True, kw_only=True)
class _PartAnswer:
    """The answer on a part of the cluster, or why there is none."""

    part: Part
    answer: PlanFile | None = None
    why_not: str = ""

    @property
    def step_time_s(self) -> float:
        found = self.answer.step_time_s if self.answer else None
        return found if found is not None else float("inf")

    @property
    def bytes_over(self) -> float:
        """Bytes by which the nearest plan exceeds the memory, if none fits."""
        why = self.answer.infeasibility if self.answer else None
        return why.bytes_over if why else float("inf")


def plan_mixed(
    traced: Traced,
    cluster: Cluster,
    workload: Workload,
    *,
    space: Axes,
    stack: ExecutorStates,
    usd_per_hour: Mapping[str, Sourced],
    options: SearchOptions | None = None,
) -> PlanFile:
    """The best plan, its bound, and the comparison of all kinds of plans.

    usd_per_hour  price of a device of each type, if known
    options       its time limit is for all searches together: each gets an equal share of the
                  remaining time

    Searches plans with equal replicas on each part of the cluster (`parts_of`) and, for 1F1B, plans
    with unequal replicas (`unequal_search`). Raises InputError if a device has no rate for the
    precision, or if the fixed axes leave nothing to search.
    """
    options = options or SearchOptions()
    start, limit_s = options.clock(), options.time_limit_s

    def left(share: int = 1) -> SearchOptions:
        """The search options with a fraction of the remaining time."""
        if limit_s is None:
            return options
        return replace(options, time_limit_s=max(0.0, start + limit_s - options.clock()) / share)

    check_rates(cluster, workload.precision, workload.compute_dtype)
    prices = _prices(traced, cluster, workload, space=space, stack=stack)
    seconds = prices.fastest_s(1, 1)
    slowest = max(zip(seconds, prices.types(1), strict=True), key=lambda pair: pair[0])[1]
    parts = parts_of(cluster, space, slowest.device.name)

    def alike(part: Part, share: int) -> _PartAnswer:
        """The answer on a part, searched in a share of the remaining time."""
        part_options = left(share)
        if part_options.time_limit_s == 0.0:
            return _PartAnswer(part=part, why_not="not searched: the time limit was reached")
        one_type = len(set(part.devices)) == 1
        try:
            answer = search(
                traced,
                part.cluster,
                workload,
                space=part.space,
                stack=stack,
                price=usd_per_hour.get(part.devices[0]) if one_type else None,
                options=part_options,
            )
        except InputError as error:
            return _PartAnswer(part=part, why_not=str(error))
        return _PartAnswer(part=part, answer=answer)

    found = [alike(part, len(parts) - i + 1) for i, part in enumerate(parts)]
    cells = unequal_cells(prices, space) if prices.stages else ()
    if not cells and not any(each.answer for each in found):
        reasons: dict[str, list[str]] = {}
        for each in found:
            reasons.setdefault(each.why_not, []).append(each.part.title)
        raise InputError(
            f"no plan on cluster {cluster.name} obeys {' '.join(space.pins()) or 'the pins'}. "
            + " ".join(f"{'; '.join(titles)}: {why}" for why, titles in reasons.items())
        )
    unequal = search_unequal(
        prices,
        cells,
        below_s=min(each.step_time_s for each in found),
        clock=options.clock,
        time_limit_s=left().time_limit_s,
    )
    used = unequal.plan.devices if unequal.plan is not None else ()
    found.append(
        _PartAnswer(
            part=Part(
                title=UNLIKE,
                cluster=cluster,
                space=space,
                devices=tuple(cluster.device_at(index).name for index in used),
            ),
            answer=unequal if unequal.plan is not None else None,
            why_not="none is faster" if cells else "the pins allow none",
        )
    )
    found = [_with_dollars(each, usd_per_hour) for each in found]
    best = min(found, key=lambda each: (each.step_time_s, each.bytes_over))
    if best.answer is None:
        raise InputError(f"the searches ended without a plan: {found[0].why_not}")
    compared = map(_compared, found)
    bounds = [each.answer.bound for each in found if each.answer and each.part.exact]
    bound = min(b for b in (unequal.bound, *bounds) if b is not None)
    answer = replace(
        _chosen(best, bound, prices),
        assumptions=(*_assumptions(prices, space), *unequal.assumptions),
        comparison=Comparison(
            model=traced.name,
            cluster=cluster.name,
            chosen=best.part.title,
            compared=tuple(sorted(compared, key=lambda each: each.step_time_s or math.inf)),
            left_out=_left_out(prices, best) if best.answer.plan is not None else (),
            prices_usd_per_hour=dict(usd_per_hour),
            keys=unequal.cells_considered,
            keys_solved=unequal.cells_refined,
        ),
    )
    return replace(answer, search_time_s=options.clock() - start)


def _prices(
    traced: Traced, cluster: Cluster, workload: Workload, *, space: Axes, stack: ExecutorStates
) -> StagePrices:
    graph = traced.at(1, 1)
    schedules = {name for name in ("none", "1f1b") if space.allows("schedule", name)}
    stages = tuple(
        count
        for count in (space.pp if space.pp is not None else range(1, MOST_STAGES + 1))
        if ("none" if count == 1 else "1f1b") in schedules
        and count <= (len(graph.chain) if graph.cuttable else 1)
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
    return StagePrices(model, stages if space.allows("vpp", 1) and sizes else ())


def _chosen(best: _PartAnswer, bound: float, prices: StagePrices) -> PlanFile:
    """The best answer with the bound of all searches, as a plan for the whole cluster."""
    answer, cluster = best.answer, prices.model.cluster
    assert answer is not None
    if answer.plan is None:
        return answer
    if not best.part.exact:
        # It was searched on a part of the cluster.
        plan = replace(answer.plan, cluster=cluster.name, cluster_hash=content_hash(cluster))
        answer = replace(answer, plan=plan, machine=cluster.machine)
    step_s = best.step_time_s
    bound = min(bound, step_s)
    gap = (step_s - bound) / step_s
    status = status_of(gap) if best.part.exact else "feasible"
    return replace(answer, status=status, bound=bound, gap=gap)


def _compared(found: _PartAnswer) -> Compared:
    part, answer = found.part, found.answer
    line = Compared(
        title=part.title,
        plan=found.why_not or "does not fit",
        num_devices=len(part.devices),
        exact=part.exact,
    )
    if answer is None or answer.plan is None:
        return line
    return replace(
        line,
        plan=plan_title(answer.plan),
        step_time_s=answer.step_time_s,
        usd_per_million_tokens=answer.usd_per_million_tokens,
        usd_per_million_samples=answer.usd_per_million_samples,
    )


def _with_dollars(found: _PartAnswer, usd_per_hour: Mapping[str, Sourced]) -> _PartAnswer:
    """The answer with costs in dollars for all devices of the part; without, if a price is
    missing."""
    devices, answer, usd = found.part.devices, found.answer, None
    if answer is None or answer.prediction is None:
        return found
    prediction = answer.prediction
    if all(name in usd_per_hour for name in devices):
        usd = usd_per_million(prediction.per_s, [(1, usd_per_hour[name]) for name in devices])
    return replace(found, answer=answer.with_dollars(usd, prediction.price_usd_per_hour))


def _left_out(prices: StagePrices, best: _PartAnswer) -> tuple[LeftOut, ...]:
    """Unused devices per type, with the reason: no whole group of tp, too slow, or not needed."""
    plan = best.answer.plan if best.answer else None
    assert plan is not None
    tp, used = plan.degrees.tp, Counter(best.part.devices)
    seconds = prices.fastest_s(tp, plan.micro_batch)
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
        left = have - used[name]
        if not left:
            continue
        slow_s, able = speed.get(name, (0.0, 0))
        why = "no faster plan that uses them was found: "
        if left == have - able:
            why = f"nodes of {groups[0].devices_per_node} leave no whole group of tp {tp}"
        elif slow_s > best_s * 1.01:
            why += (
                f"a micro-batch takes {slow_s / best_s:.2g} times as long on them as on the "
                "fastest type"
            )
        else:
            why += "shares and stages do not come out even"
        found.append(LeftOut(device=name, num_devices=left, why=why))
    return tuple(found)


def _assumptions(prices: StagePrices, space: Axes) -> tuple[str, ...]:
    found = ["devices may be left out"]
    if prices.stages and space.pp is None:
        found.append(f"replicas that differ have up to {max(prices.stages)} stages (--pp)")
    found.append(
        "replicas that differ run 1F1B, one tp and one micro-batch for all, ZeRO 0 to 2 "
        "(--tp, --micro-batch, --zero)"
    )
    return tuple(found)
