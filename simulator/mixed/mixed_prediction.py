"""Predicting a plan for mixed devices: every replica on its own devices, then the exchange.

Blocks, messages, memory and optimizer are priced by the functions that `traced.predict` uses, on
the very devices of each stage; `mixed_replicas.mixed_step` puts the replicas together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.graph import ModelGraph
from profiles.model.tracing.block_order import crossing_bytes
from profiles.sourced import Sourced
from simulator.memory.blocks import rank_memory, stage_memory
from simulator.memory.held import (
    Held,
    elements_of,
    exchange_bytes,
    executor_static_bytes,
    held_parameters,
)
from simulator.mfu import graph_model_flop, mfu
from simulator.mixed.mixed_replicas import MixedStep, Replica, mixed_step
from simulator.money import usd_per_million
from simulator.schedules.durations import Durations
from simulator.schedules.schedule import build_schedule
from simulator.schedules.timeline import simulate
from simulator.traced.block_cost import BlockCost, price_block
from simulator.traced.comm_cost import price_collective
from simulator.traced.predict import Traced
from simulator.traced.stack import Stack
from simulator.traced.stage_cost import MESSAGE_ENDS
from simulator.traced.step_tail import Tail, price_tail
from simulator.values.mixed_plan import MixedPlan
from simulator.values.prediction import Interval, RankMemory

_ENDS = {"value": "time_s", "low": "low_s", "high": "high_s"}


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedStagePrediction:
    """Seconds per micro-batch of a stage, of its optimizer per step, and its memory."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    memory: RankMemory


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPrediction:
    """A replica: when its last backward ends, and its stages."""

    end_s: float
    stages: tuple[MixedStagePrediction, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPrediction:
    """What a plan for mixed devices would do.

    pipeline_s   when the slowest replica has done its last backward
    exchange_s   from there until all gradients are reduced
    mfu          over the dense peaks of the devices in use (simulator.traced.predict)
    usd_per_million_tokens   of the devices in use; None where one of their types has no price
    """

    step_time_s: Interval
    pipeline_s: float
    exchange_s: float
    tokens_per_s: Interval | None = None
    samples_per_s: Interval | None = None
    mfu: float
    peak_memory_bytes: float
    usd_per_million_tokens: Interval | None = None
    usd_per_million_samples: Interval | None = None
    replicas: tuple[ReplicaPrediction, ...]
    fits: bool


def predict_mixed(
    plan: MixedPlan,
    traced: Traced,
    cluster: Cluster,
    *,
    stack: Stack,
    prices: Mapping[str, Sourced],
) -> MixedPrediction:
    """What the plan would do on the cluster.

    prices  US dollars per device-hour of each device type

    Gradients are reduced part by part over one rank of each replica, in a ring over the slowest of
    their links (comm_cost); a tied parameter counts in every part that holds it. Raises InputError
    where a device has no rate for the precision.
    """
    priced = _Priced.of(plan, traced.at(plan.micro_batch, plan.degrees.tp), cluster, stack)
    steps = {end: priced.step(end) for end in ("value", "low", "high")}
    value = steps["value"]
    step = Interval(
        value=value.step_s,
        low=min(value.step_s, steps["low"].step_s),
        high=max(value.step_s, steps["high"].step_s),
    )
    count = plan.workload.counted_per_step
    per_s = Interval(
        value=count / step.value, low=count / step.high, high=count / max(step.low, 1e-12)
    )
    usd = usd_of([name for name, _ in plan.used()], per_s, prices)
    tokens = plan.workload.counted_in == "tokens"
    replicas = tuple(
        ReplicaPrediction(
            end_s=max(value.backward_end_s[number]),
            stages=priced.stages(number),
        )
        for number in range(plan.num_replicas)
    )
    memories = [stage.memory for replica in replicas for stage in replica.stages]
    return MixedPrediction(
        step_time_s=step,
        pipeline_s=value.pipeline_s,
        exchange_s=value.reduction_s,
        tokens_per_s=per_s if tokens else None,
        samples_per_s=None if tokens else per_s,
        mfu=_mfu(plan, traced, cluster, step),
        peak_memory_bytes=max(memory.peak_bytes for memory in memories),
        usd_per_million_tokens=usd if tokens else None,
        usd_per_million_samples=None if tokens else usd,
        replicas=replicas,
        fits=all(memory.fits for memory in memories),
    )


def usd_of(devices: list[str], per_s: Interval, prices: Mapping[str, Sourced]) -> Interval | None:
    """US dollars of these devices together per million of what they train on; None without a
    price of each."""
    if not all(name in prices for name in devices):
        return None
    return usd_per_million(per_s, [(1, prices[name]) for name in devices])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Priced:
    """A plan with the costs of its blocks: [replicas][stages][blocks of the stage]."""

    plan: MixedPlan
    graph: ModelGraph
    cluster: Cluster
    stack: Stack
    blocks: tuple[tuple[tuple[BlockCost, ...], ...], ...]

    @classmethod
    def of(cls, plan: MixedPlan, graph: ModelGraph, cluster: Cluster, stack: Stack) -> _Priced:
        """Every block on the devices of its stage."""
        blocks = tuple(
            tuple(
                tuple(
                    price_block(
                        graph.kinds[graph.chain[at].kind],
                        recompute=stage.recompute[at - stage.first_block],
                        devices=stage.devices,
                        cluster=cluster,
                    )
                    for at in range(stage.first_block, stage.last_block)
                )
                for stage in pipeline.stages
            )
            for pipeline in plan.pipelines
        )
        return cls(plan=plan, graph=graph, cluster=cluster, stack=stack, blocks=blocks)

    def step(self, end: str) -> MixedStep:
        """The step with every cost at one end of its interval."""
        plan, cuts = self.plan, self.plan.cuts()
        replicas = [
            Replica(
                durations=self.durations(number, end),
                num_microbatches=pipeline.num_microbatches,
                first_parts=tuple(cuts.index(stage.first_block) for stage in pipeline.stages),
                update_s=tuple(
                    self.optimizer_s(number, stage, end) for stage in range(len(pipeline.stages))
                ),
            )
            for number, pipeline in enumerate(plan.pipelines)
        ]
        ends = (*cuts[1:], len(self.graph.chain))
        reduce_s = [self.exchange_s(*part, end) for part in zip(cuts, ends, strict=True)]
        return mixed_step(replicas, reduce_s=reduce_s)

    def durations(self, number: int, end: str) -> Durations:
        """Seconds of a replica's stages per micro-batch."""
        held = self.blocks[number]
        crossing = [0.0]
        for before, after in pairwise(self.plan.pipelines[number].stages):
            pair = (before.devices[0], after.devices[0])
            size = crossing_bytes(self.graph, after.first_block)
            cost = price_collective("send", size, pair, self.cluster, sharing=self.plan.degrees.tp)
            crossing.append(float(getattr(cost, _ENDS[end])))
        more = MESSAGE_ENDS[end]
        return Durations(
            forward_s=tuple(
                sum(getattr(b.forward, end) + more * b.tp_forward_s for b in own) for own in held
            ),
            backward_s=tuple(
                sum(getattr(b.backward, end) + more * b.tp_backward_s for b in own) for own in held
            ),
            send_forward_s=tuple(crossing),
            send_backward_s=tuple(crossing),
        )

    def held(self, first: int, last: int) -> Held:
        """The parameters of blocks [first, last)."""
        return held_parameters(self.graph, self.graph.chain[first:last])

    def tail(self, held: Held, group: tuple[int, ...]) -> Tail:
        """What devices that hold these parameters in common do after the last backward."""
        return price_tail(
            held,
            group=group,
            zero_stage=self.plan.zero_stage,
            precision=self.plan.workload.precision,
            optimizer=self.plan.workload.optimizer,
            cluster=self.cluster,
            stack=self.stack,
            sharing=self.plan.degrees.tp,
        )

    def exchange_s(self, first: int, last: int, end: str) -> float:
        """Seconds to exchange blocks [first, last) over the replicas."""
        group = tuple(p.stage_of(first).devices[0] for p in self.plan.pipelines)
        return float(getattr(self.tail(self.held(first, last), group).exchange, end))

    def optimizer_s(self, number: int, stage: int, end: str) -> float:
        """Seconds of a stage's optimizer on its own devices."""
        own = self.plan.pipelines[number].stages[stage]
        others = [p for index, p in enumerate(self.plan.pipelines) if index != number]
        # Only the first device and the number of the group count for the optimizer.
        group = (own.devices[0], *(p.stage_of(own.first_block).devices[0] for p in others))
        held = self.held(own.first_block, own.last_block)
        return float(getattr(self.tail(held, group).optimizer, end))

    def stages(self, number: int) -> tuple[MixedStagePrediction, ...]:
        """Times and memory of a replica's stages, as simulator.traced.predict counts them."""
        plan, replica, blocks = self.plan, self.plan.replica(number), self.blocks[number]
        durations = self.durations(number, "value")
        schedule = build_schedule(
            replica.schedule,
            num_ranks=replica.degrees.pp,
            num_microbatches=replica.num_microbatches,
        )
        timeline = simulate(schedule, durations)
        found = []
        for s, stage in enumerate(plan.pipelines[number].stages):
            held = self.held(stage.first_block, stage.last_block)
            device = self.cluster.device_at(stage.devices[0])
            zero_stage = plan.zero_stage if plan.num_replicas > 1 else 0
            static = executor_static_bytes(
                elements_of(held, blocks[s]),
                stack=self.stack,
                precision=plan.workload.precision,
                optimizer=plan.workload.optimizer,
                zero_stage=zero_stage,
                dp=plan.num_replicas,
                # Parameters stay whole between micro-batches, as under a pipeline.
                pp=max(2, replica.degrees.pp),
            )
            memory = rank_memory(
                replica,
                s,
                stages={s: stage_memory(self.graph, replica, s, blocks[s])},
                static=static,
                timeline=timeline,
                capacity_bytes=device.usable_bytes,
                exchange_bytes=exchange_bytes(
                    float(sum(held.trained)), zero_stage=zero_stage, dp=plan.num_replicas
                ),
            )
            found.append(
                MixedStagePrediction(
                    forward_s=durations.forward_s[s],
                    backward_s=durations.backward_s[s],
                    optimizer_s=self.optimizer_s(number, s, "value"),
                    # At its peak, without its course, named by the device's number.
                    memory=replace(memory, rank=stage.devices[0], timeline=()),
                )
            )
        return tuple(found)


def _mfu(plan: MixedPlan, traced: Traced, cluster: Cluster, step: Interval) -> float:
    count = plan.workload.global_batch // plan.micro_batch
    dtype = plan.workload.compute_dtype
    peaks = (cluster.device_at(index).peak_or_twins(dtype).value for _, index in plan.used())
    return mfu(graph_model_flop(traced.at(plan.micro_batch, 1)) * count, step, sum(peaks)).value
