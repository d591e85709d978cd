"""Seconds of messages over the levels beyond the nodes' network: spines, lines between sites.

A level's parts are joined by what leaves each of them, which all devices of a part share: a group
of which p ranks lie in a part has p devices' shares of it, since every device of the part belongs
to such a group and all communicate at once. A collective runs as rings through all members of a
part before leaving it (as `message_seconds` has it between nodes), so that a part's line carries
passes x (n - 1) / n of the data; the levels of one ring are at work together, the slowest binds.
Of sends between stages only the stages next to a cut between parts use the line, and share all of
it. What these functions give has no fitted coefficient: rate x efficiency and latency as stated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.training_run.far_level import FarLevel
from simulator.training_run.message_seconds import PASSES
from simulator.training_run.rank_group import RankGroup, stage_stride
from simulator.training_run.training_run import TrainingRun


def far_collective_s(
    operation: str, size_bytes: float, group: RankGroup, levels: Sequence[FarLevel]
) -> float:
    """Seconds at the slowest level; size_bytes as in `message_seconds.collective`."""
    ranks = group.ranks
    if ranks < 2 or size_bytes <= 0:
        return 0.0
    passes = PASSES[operation]
    slowest = 0.0
    for level in levels:
        inside = group.within(level.part_devices)
        if inside == ranks:
            continue
        rate = level.bytes_per_s_per_device
        if operation == "all_to_all":
            seconds = size_bytes * (ranks - inside) / ranks / rate + level.latency_s
        else:
            seconds = passes * size_bytes * (ranks - 1) / ranks / (inside * rate)
            seconds += passes * (ranks // inside - 1) * level.latency_s
        slowest = max(slowest, seconds)
    return slowest


@dataclass(frozen=True, slots=True, kw_only=True)
class FarCut:
    """The sends of a pipeline that cross a level's parts, at the slowest level.

    bytes_s, latency_s   of one send;  crossings  cuts of the pipeline that lie between parts
    """

    bytes_s: float = 0.0
    latency_s: float = 0.0
    crossings: int = 0


def far_cut(run: TrainingRun, size_bytes: float, levels: Sequence[FarLevel]) -> FarCut:
    """Of sends of `size_bytes` by each rank of a stage to the next one."""
    if run.pp < 2:
        return FarCut()
    stride = stage_stride(run)
    slowest = FarCut()
    for level in levels:
        part = level.part_devices
        if part % stride:
            # A stage is larger than a part or lies across its ends: every device may send.
            senders, crossings = part, run.pp - 1
        else:
            # Of pipelines that begin at any multiple of gcd(pp, stages per part), the worst.
            held = part // stride
            offset = held - math.gcd(run.pp, held)
            senders, crossings = stride, (offset + run.pp - 1) // held
        seconds = size_bytes * senders / (part * level.bytes_per_s_per_device)
        if crossings and seconds + level.latency_s > slowest.bytes_s + slowest.latency_s:
            slowest = FarCut(bytes_s=seconds, latency_s=level.latency_s, crossings=crossings)
    return slowest
