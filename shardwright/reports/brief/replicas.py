"""Replicas of a plan on devices of several types: their stages, and the exchange of gradients."""

from __future__ import annotations

from collections import Counter

from profiles.units import format_bytes, format_time
from shardwright.reports.brief.brief import Table
from simulator.values.plan import Pipeline, Plan, Stage
from simulator.values.prediction import Prediction

_HEADS = (
    *(">replicas", ">micro-batches", ">done", "stage", ">blocks", "recompute", ">F + B"),
    ">memory",
)


def replica_table(plan: Plan, pipelines: tuple[Pipeline, ...], prediction: Prediction) -> Table:
    """Equal replicas together, one row per stage."""
    rows: list[tuple[str, ...]] = []
    split = f"{plan.degrees.tp}x " if plan.degrees.tp > 1 else ""
    ends = _backward_ends(prediction)
    work_s = {stage.rank: stage.forward_s + stage.backward_s for stage in prediction.stages}
    memory = {rank.rank: rank for rank in prediction.ranks}
    like: dict[tuple[object, ...], list[Pipeline]] = {}
    for pipeline in pipelines:
        stages = tuple((s.device, s.first_block, s.recompute) for s in pipeline.stages)
        like.setdefault((pipeline.num_microbatches, stages), []).append(pipeline)
    for replicas in like.values():
        pipeline = replicas[0]
        firsts = [stage.devices[0] if stage.devices else 0 for stage in pipeline.stages]
        cells = (
            str(len(replicas)),
            f"{pipeline.num_microbatches}{' each' if len(replicas) > 1 else ''}",
            format_time(max(ends[device] for device in firsts)),
        )
        for stage, device in zip(pipeline.stages, firsts, strict=True):
            peak, room = memory[device].peak_bytes, memory[device].capacity_bytes
            rows.append(
                (
                    *cells,
                    f"{split}{stage.device}",
                    str(stage.num_blocks),
                    _recompute(stage),
                    format_time(work_s[device]),
                    f"{format_bytes(peak)} of {format_bytes(room)}",
                )
            )
            cells = ("", "", "")
    return Table(heads=_HEADS, rows=tuple(rows))


def exchange_words(prediction: Prediction) -> str:
    """The time of the exchange of gradients; "" for a single pipeline, which exchanges none."""
    exchanged = [event.end_s for event in prediction.events if event.name == "data_parallel"]
    if not exchanged:
        return ""
    slowest = max(_backward_ends(prediction).values())
    return f"exchange {format_time(max(exchanged) - slowest)}"


def _backward_ends(prediction: Prediction) -> dict[int, float]:
    """When each device has done its last backward."""
    ends: dict[int, float] = {}
    for event in prediction.events:
        if event.stream == "compute" and event.name != "optimizer":
            ends[event.rank] = max(event.end_s, ends.get(event.rank, 0.0))
    return ends


def _recompute(stage: Stage) -> str:
    kinds = Counter(kind.value for kind in stage.recompute)
    again = (f"{kind} {count}" for kind, count in sorted(kinds.items()) if kind != "none")
    return ", ".join(again) or "none"
