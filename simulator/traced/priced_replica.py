"""A replica with all costs of its step, and the step of all replicas together.

Every replica runs its own pipeline on its own micro-batches. If replicas differ, they exchange the
gradients of each part of the model (which is in one stage of each of them) after the last of them
has finished its last backward, from the model's end to its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.graph import ModelGraph
from profiles.model.tied_gradients import pipeline_kinds
from profiles.model.tracing.block_order import crossing_bytes
from simulator.memory.data_group import DataGroup, data_group
from simulator.schedules.durations import Durations
from simulator.schedules.timeline import Timeline, simulate
from simulator.traced.block_cost import BlockCost, price_block
from simulator.traced.cost import Cost
from simulator.traced.in_step import message_in_step
from simulator.traced.stage_cost import StageCost, stage_cost
from simulator.traced.step_tail import Tail, tail_of
from simulator.traced.weight_gradients import stage_weight_s
from simulator.training_run.framework.executor_states import ExecutorStates, Software
from simulator.values.plan import Plan
from simulator.values.prediction import Interval

_ENDS = ("value", "low", "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedReplica:
    """One replica of a plan whose replicas are alike.

    blocks, costs  of every virtual stage;  tails  of every pipeline rank
    sends          over the cut before each stage; None if both sides are one rank
    timelines      with all costs at one end of their intervals (`value`, `low`, `high`), and with
                   instantaneous messages (`free`)
    """

    plan: Plan
    blocks: list[list[BlockCost]]
    costs: list[StageCost]
    sends: list[Cost | None]
    tails: list[Tail]
    timelines: dict[str, Timeline]

    def backward_ends_s(self, end: str) -> list[float]:
        """[ranks] seconds until each pipeline rank has finished its last action."""
        return [self.timelines[end].rank_end_s(rank) for rank in range(self.plan.degrees.pp)]


def price_replica(
    plan: Plan, graph: ModelGraph, cluster: Cluster, stack: ExecutorStates
) -> PricedReplica:
    """A replica of a plan with equal replicas. `graph` has the plan's micro-batch, tp and order of
    blocks."""
    stages, degrees = range(len(plan.stages)), plan.degrees
    groups = [data_group(plan, rank, cluster, stack) for rank in range(degrees.pp)]
    blocks = [_stage_blocks(plan, s, graph, cluster, stack.software) for s in stages]
    costs = [
        replace(
            stage_cost(blocks[s], groups[plan.pp_rank_of(s)]),
            weight_s=stage_weight_s(plan, s, graph, cluster),
        )
        for s in stages
    ]
    sends = [_send(plan, s, graph, cluster) for s in stages]
    schedule = plan.actions
    timelines = {end: simulate(schedule, _durations(costs, sends, end)) for end in _ENDS}
    free = _durations(costs, [None for _ in sends], "value")
    return PricedReplica(
        plan=plan,
        blocks=blocks,
        costs=costs,
        sends=sends,
        tails=[
            _tail(plan, rank, graph, group, sum(cost.backward.value for cost in costs))
            for rank, group in enumerate(groups)
        ],
        timelines={**timelines, "free": simulate(schedule, free)},
    )


def _stage_blocks(
    plan: Plan, stage: int, graph: ModelGraph, cluster: Cluster, software: Software
) -> list[BlockCost]:
    cut = plan.stages[stage]
    devices = plan.degrees.group("tp", pp=plan.pp_rank_of(stage))
    refs = graph.chain[cut.first_block : cut.last_block]
    kinds = pipeline_kinds(graph) if plan.degrees.pp > 1 else graph.kinds
    return [
        price_block(
            kinds[ref.kind],
            recompute=kind,
            devices=devices,
            cluster=cluster,
            software=software,
        )
        for ref, kind in zip(refs, cut.recompute, strict=True)
    ]


def _tail(plan: Plan, rank: int, graph: ModelGraph, group: DataGroup, backward_s: float) -> Tail:
    """A rank's tail; of an exchange during the backward, only the exposed part counts."""
    tail = tail_of(plan, rank, graph, group)
    if not group.stack.overlapped:
        return tail
    left = {end: max(0.0, getattr(tail.exchange, end) - backward_s) for end in _ENDS}
    return replace(tail, exchange=Interval(**left))


def _send(plan: Plan, stage: int, graph: ModelGraph, cluster: Cluster) -> Cost | None:
    source, target = plan.pp_rank_of(max(0, stage - 1)), plan.pp_rank_of(stage)
    if source == target:
        return None
    devices = (plan.degrees.rank(pp=source), plan.degrees.rank(pp=target))
    size = crossing_bytes(graph, plan.stages[stage].first_block)
    return message_in_step("send", size, devices, cluster, sharing=plan.degrees.tp)


def _durations(costs: list[StageCost], sends: Sequence[Cost | None], end: str) -> Durations:
    crossing = tuple(0.0 if s is None else float(getattr(s, end)) for s in sends)
    forward = tuple(float(getattr(c.forward, end)) * c.slowest for c in costs)
    backward = tuple(float(getattr(c.backward, end)) * c.slowest for c in costs)
    shares = [c.weight_s / c.backward.value if c.backward.value else 0.0 for c in costs]
    return Durations(
        forward_s=forward,
        backward_s=backward,
        backward_input_s=tuple(b * (1 - w) for b, w in zip(backward, shares, strict=True)),
        backward_weight_s=tuple(b * w for b, w in zip(backward, shares, strict=True)),
        send_forward_s=crossing,
        send_backward_s=crossing,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Seconds of a step, and the replica and pipeline rank that end last.

    exchange_s  [replicas][ranks] from the last backward until the gradients are exchanged
    """

    step_s: float
    replica: int
    rank: int
    exchange_s: list[list[float]]


def step_of(replicas: Sequence[PricedReplica], parts: Sequence[Tail], end: str) -> Step:
    """The step, with every cost at the same end of its interval (`value`, `low` or `high`).

    parts  the tail of each of `Plan.parts`; () if replicas are equal
    """
    ends_s = [replica.backward_ends_s(end) for replica in replicas]
    update_s = [[float(getattr(t.optimizer, end)) for t in each.tails] for each in replicas]
    if parts:
        firsts = [[stage.first_block for stage in each.plan.stages] for each in replicas]
        cuts = sorted({first for row in firsts for first in row})
        done_s = exchange(
            ends_s,
            [[cuts.index(first) for first in row] for row in firsts],
            [float(getattr(tail.exchange, end)) for tail in parts],
        )
        exchange_s = [_sums(done, ends, -1) for done, ends in zip(done_s, ends_s, strict=True)]
        over_s = [_sums(*rows) for rows in zip(done_s, update_s, strict=True)]
    else:
        exchange_s = [[float(getattr(t.exchange, end)) for t in each.tails] for each in replicas]
        tails_s = [_sums(*rows) for rows in zip(exchange_s, update_s, strict=True)]
        over_s = [_sums(*rows) for rows in zip(ends_s, tails_s, strict=True)]
    step_s = max(map(max, over_s))
    last = next(number for number, row in enumerate(over_s) if step_s in row)
    return Step(step_s=step_s, replica=last, rank=over_s[last].index(step_s), exchange_s=exchange_s)


def _sums(first: Sequence[float], second: Sequence[float], sign: int = 1) -> list[float]:
    return [a + sign * b for a, b in zip(first, second, strict=True)]


def exchange(
    backward_ends_s: Sequence[Sequence[float]],
    first_parts: Sequence[Sequence[int]],
    reduce_s: Sequence[float],
) -> list[list[float]]:
    """[replicas][stages] seconds until each rank has exchanged all its gradients.

    backward_ends_s  [replicas][stages] end of the last backward
    first_parts      [replicas][stages] index of the first part of the model in each stage
    reduce_s         [parts] seconds to reduce each over all replicas

    Parts are reduced from the model's end to its beginning, the order in which backwards end. A
    rank with several parts reduces them in turn.
    """
    free = [list(row) for row in backward_ends_s]
    for part in reversed(range(len(reduce_s))):
        holders = [
            (row, max(stage for stage, first in enumerate(firsts) if first <= part))
            for row, firsts in zip(free, first_parts, strict=True)
        ]
        done_s = max(row[stage] for row, stage in holders) + reduce_s[part]
        for row, stage in holders:
            row[stage] = done_s
    return free
