"""The roofline of a plan: arithmetic intensity against flop/s, under the device's two ceilings.

    attainable flop/s = min( peak flop/s , bandwidth x intensity )        intensity = flop / bytes

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model", CACM 52(4),
2009. The bytes are those that each traced op reads and writes by itself: with a cache that keeps a
tensor between two ops, or with fused ops, the real intensity is higher.

There are three kinds of points: every distinct op with its predicted time, every distinct block
with the time used by the plan, and every stage with its time in a run. Each point states whether
its time is measured, interpolated or assumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from profiles.document import content_hash
from profiles.errors import ShardwrightError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import Device
from profiles.model.graph import Block, ModelGraph, Op, Phase
from profiles.model.tracing.block_order import in_order
from profiles.sourced import Sourced
from shardwright.analysis.breakdown import critical_rank
from simulator.traced.block_cost import price_block, recomputed_ops
from simulator.traced.op_cost import price_op
from simulator.values.measurement import Measurement
from simulator.values.plan import Plan, Recompute
from simulator.values.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePoint:
    """One op, block or stage.

    level        `op` and `block` are predicted, `stage` was timed by the run
    flop, moved_bytes, time_s   of one call on one rank
    count        calls per step on the drawn rank
    method       `measured`, `interpolated` or `assumed`
    source       of the time
    """

    level: str
    name: str
    phase: str
    flop: float
    moved_bytes: float
    time_s: float
    count: int
    method: str
    source: str

    @property
    def intensity(self) -> float:
        """flop per byte."""
        return self.flop / self.moved_bytes

    @property
    def rate_flop_per_s(self) -> float:
        """The achieved rate."""
        return self.flop / self.time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """The points of one rank and the ceilings of its device.

    rank        the critical rank, whose ops and blocks are drawn; stages are those of every rank
                with the same device
    peaks       dense peak per data type that the ops compute in, flop/s
    outside_share  share of the rank's predicted op time in ops without flop, which are not drawn
    missing     reason for having no points, "" if there are some
    """

    device: str = ""
    rank: int = 0
    peaks: tuple[tuple[str, Sourced], ...] = ()
    bandwidth_bytes_per_s: Sourced | None = None
    points: tuple[RooflinePoint, ...] = ()
    outside_share: float = 0.0
    missing: str = ""


def roofline(
    plan: Plan, graph: ModelGraph, cluster: Cluster, measured: Measurement | None, *, rank: int
) -> Roofline:
    """The roofline of the device of a rank; `graph` is the plan's model at its micro-batch and tp.

    rank  of the first replica; its stages' ops and blocks become points
    """
    device = cluster.device_at(rank)
    counts = _block_counts(plan, graph, rank)
    ops, outside_share = _op_points(counts, device, plan.num_microbatches)
    points = [*ops, *_block_points(plan, counts, cluster, rank)]
    if measured is not None:
        points += _stage_points(plan, graph, cluster, measured, device)
    dtypes = sorted({op.dtype for block, _ in counts for op in _ops(block) if op.work_flop > 0})
    return Roofline(
        device=device.name,
        rank=rank,
        peaks=tuple((d, device.peak_flop_per_s[d]) for d in dtypes if d in device.peak_flop_per_s),
        bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
        points=tuple(points),
        outside_share=outside_share,
    )


def _block_counts(plan: Plan, graph: ModelGraph, rank: int) -> dict[tuple[Block, Recompute], int]:
    """The distinct blocks of a rank with their recompute kind, and the count of each."""
    pp_rank = plan.degrees.coordinates(rank).pp
    found: Counter[tuple[Block, Recompute]] = Counter()
    for stage in plan.stages_of(pp_rank):
        found.update(_stage_blocks(plan, graph, stage))
    return dict(found)


def _stage_blocks(plan: Plan, graph: ModelGraph, stage: int) -> list[tuple[Block, Recompute]]:
    cut = plan.stages[stage]
    refs = graph.chain[cut.first_block : cut.last_block]
    return [(graph.kinds[ref.kind], kind) for ref, kind in zip(refs, cut.recompute, strict=True)]


def _ops(block: Block) -> tuple[Op, ...]:
    return (*block.forward_ops, *block.backward_ops)


def _op_points(
    counts: dict[tuple[Block, Recompute], int], device: Device, micro: int
) -> tuple[list[RooflinePoint], float]:
    """A point per distinct op with flop, and the time share of the ops without any."""
    calls: Counter[Op] = Counter()
    total_s = outside_s = 0.0
    for (block, kind), count in counts.items():
        again = [block.forward_ops[index] for index in recomputed_ops(block, kind)]
        for op in (*_ops(block), *again):
            time_s = count * price_op(op, device).time_s
            total_s += time_s
            if op.work_flop <= 0 or op.read_bytes + op.written_bytes <= 0:
                outside_s += time_s
                continue
            # Ops of one shape cost the same in every block.
            calls[replace(op, module="")] += count
    points = []
    for op, count in calls.items():
        cost = price_op(op, device)
        if cost.time_s > 0:
            points.append(
                RooflinePoint(
                    level="op",
                    name=_op_name(op),
                    phase=str(op.phase.value),
                    flop=float(op.work_flop),
                    moved_bytes=float(op.read_bytes + op.written_bytes),
                    time_s=cost.time_s,
                    count=micro * count,
                    method=cost.method,
                    source=cost.source,
                )
            )
    return points, outside_s / total_s if total_s else 0.0


def _op_name(op: Op) -> str:
    """The op with the shape that determines its cost: `mm 256x2048x768`."""
    if op.matmul is not None:
        shape = op.matmul
        batch = f"{shape.batch} x " if shape.batch > 1 else ""
        return f"{op.name} {batch}[{shape.m}, {shape.k}] x [{shape.k}, {shape.n}] {op.dtype}"
    if op.attention is not None:
        a = op.attention
        return f"{op.name} [{a.batch}, {a.heads}, {a.q_len}, {a.head_dim}] {op.dtype}"
    return f"{op.name} {op.dtype}"


def _block_points(
    plan: Plan, counts: dict[tuple[Block, Recompute], int], cluster: Cluster, rank: int
) -> list[RooflinePoint]:
    degrees = plan.degrees
    pp_rank = degrees.coordinates(rank).pp
    points = []
    for (block, kind), count in counts.items():
        cost = price_block(
            block, recompute=kind, devices=degrees.group("tp", pp=pp_rank), cluster=cluster
        )
        method, source = _mainly(cost.methods)
        name = block.label if kind is Recompute.NONE else f"{block.label}, {kind} again"
        points += _phase_points(
            [(block, kind)],
            (cost.forward.value, cost.backward.value),
            level="block",
            name=name,
            count=plan.num_microbatches * count,
            method=method,
            source=source,
        )
    return points


def _stage_points(
    plan: Plan, graph: ModelGraph, cluster: Cluster, measured: Measurement, device: Device
) -> list[RooflinePoint]:
    points = []
    for sample in measured.stages:
        same = cluster.device_at(sample.rank).name == device.name
        if not same or not 0 <= sample.stage < len(plan.stages):
            continue
        blocks = _stage_blocks(plan, graph, sample.stage)
        points += _phase_points(
            blocks,
            (sample.forward_wall_s, sample.backward_wall_s),
            level="stage",
            name=f"stage {sample.stage} on rank {sample.rank}",
            count=plan.num_microbatches,
            method="measured",
            source=f"this run, median of {sample.count} samples",
        )
    return points


def _phase_points(
    blocks: list[tuple[Block, Recompute]],
    times_s: tuple[float, float],
    *,
    level: str,
    name: str,
    count: int,
    method: str,
    source: str,
) -> list[RooflinePoint]:
    """Points for forward and backward of blocks, if they compute, move bytes and take time."""
    points = []
    for phase, time_s in zip((Phase.FORWARD, Phase.BACKWARD), times_s, strict=True):
        flop, moved = _work(blocks, phase)
        if flop > 0 and moved > 0 and time_s > 0:
            points.append(
                RooflinePoint(
                    level=level,
                    name=name,
                    phase=str(phase.value),
                    flop=flop,
                    moved_bytes=moved,
                    time_s=time_s,
                    count=count,
                    method=method,
                    source=source,
                )
            )
    return points


def _work(blocks: Iterable[tuple[Block, Recompute]], phase: Phase) -> tuple[float, float]:
    """(flop, bytes) of one micro-batch; a backward includes its recomputed forward."""
    flop = moved = 0.0
    for block, kind in blocks:
        ops = list(block.forward_ops)
        if phase is Phase.BACKWARD:
            ops = [block.forward_ops[index] for index in recomputed_ops(block, kind)]
            ops += block.backward_ops
        flop += sum(op.work_flop for op in ops)
        moved += sum(op.read_bytes + op.written_bytes for op in ops)
    return flop, moved


def _mainly(methods: tuple[tuple[str, str, str, float], ...]) -> tuple[str, str]:
    """The method behind most of a block's time, with its share if below 100 %."""
    seconds: dict[str, float] = {}
    sources: dict[str, tuple[float, str]] = {}
    for _, method, source, time_s in methods:
        seconds[method] = seconds.get(method, 0.0) + time_s
        sources[method] = max(sources.get(method, (0.0, "")), (time_s, source))
    if not seconds:
        return "assumed", ""
    best = max(sorted(seconds), key=lambda method: seconds[method])
    total = sum(seconds.values())
    share = "" if total <= 0 or seconds[best] >= total else f"{seconds[best] / total:.0%} of it: "
    return best, share + sources[best][1]


def find_roofline(
    plan: Plan,
    prediction: Prediction,
    measured: Measurement | None,
    *,
    cluster_file: Path | None = None,
) -> Roofline:
    """The roofline of a plan's critical rank, or why there is none (`missing`).

    cluster_file  the plan's profile or cluster file, if the cluster's name in the plan cannot be
                  resolved

    The model comes from the cache of traces, or is traced again. A model or cluster whose content
    hash differs from the plan's is refused, because it would give another picture.
    """
    from shardwright.requests import python_plan
    from shardwright.requests.local_paths import local_profile

    try:
        named = str(cluster_file) if cluster_file is not None else plan.cluster
        cluster = get_cluster(named, local=local_profile())
        found = content_hash(cluster)
        if found != plan.cluster_hash:
            return Roofline(
                missing=f"the plan was made on another {plan.cluster!r}: its hash is "
                f"{plan.cluster_hash}, that of {named} is {found}"
            )
        return _traced(plan, cluster, prediction, measured, python_plan.target_of(cluster))
    except ShardwrightError as error:
        return Roofline(missing=str(error))


def _traced(
    plan: Plan,
    cluster: Cluster,
    prediction: Prediction,
    measured: Measurement | None,
    target: str,
) -> Roofline:
    from shardwright.requests import python_plan

    traced = python_plan.trace(
        plan.model,
        sequence_length=(
            plan.workload.sequence_length if plan.workload.counted_in == "tokens" else None
        ),
        precision=plan.workload.precision,
        tp_degrees=tuple(sorted({1, plan.degrees.tp})),
        target=target,
    )
    if traced.content_hash != plan.model_hash:
        return Roofline(
            missing=f"the plan was made for another {plan.model!r}: its hash is {plan.model_hash}, "
            f"that of the model of this name is {traced.content_hash}"
        )
    graph = in_order(traced.at(plan.micro_batch, plan.degrees.tp), plan.block_entries)
    return roofline(plan, graph, cluster, measured, rank=critical_rank(prediction))
