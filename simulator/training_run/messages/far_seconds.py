"""Sends between stages over the levels beyond the nodes' network: spines, lines between sites.

A level's parts are joined by what leaves each of them, which all devices of a part share. Of sends
between stages only the stages next to a cut between parts use the line, and share all of it. What
this gives has no fitted coefficient: rate x efficiency and latency as stated. Collectives over such
levels: simulator/collectives.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.training_run.run.far_level import FarLevel
from simulator.training_run.run.training_run import TrainingRun


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
    degrees = run.degrees
    if degrees.pp < 2:
        return FarCut()
    stride = degrees.stride("pp")
    slowest = FarCut()
    for level in levels:
        part = level.part_devices
        if part % stride:
            # A stage is larger than a part or lies across its ends: every device may send.
            senders, crossings = part, degrees.pp - 1
        else:
            # Of pipelines that begin at any multiple of gcd(pp, stages per part), the worst.
            held = part // stride
            offset = held - math.gcd(degrees.pp, held)
            senders, crossings = stride, (offset + degrees.pp - 1) // held
        seconds = size_bytes * senders / (part * level.bytes_per_s_per_device)
        if crossings and seconds + level.latency_s > slowest.bytes_s + slowest.latency_s:
            slowest = FarCut(bytes_s=seconds, latency_s=level.latency_s, crossings=crossings)
    return slowest
