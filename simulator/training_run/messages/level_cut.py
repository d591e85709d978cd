"""Sends between stages over network levels beyond the nodes' network: spines, lines between sites.

All devices of a part share its uplink. Only the stages next to a cut between parts send over it,
and they share its whole bandwidth. No fitted coefficient is used: time is bytes / (rate x
efficiency) plus the given latency. For collectives over these levels see simulator/collectives.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from simulator.training_run.run.network_level import NetworkLevel
from simulator.training_run.run.training_run import TrainingRun


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelCut:
    """Sends of a pipeline between parts of the slowest level.

    bytes_s, latency_s   seconds of one send;  crossings  number of cuts between parts
    """

    bytes_s: float = 0.0
    latency_s: float = 0.0
    crossings: int = 0


def level_cut(run: TrainingRun, size_bytes: float, levels: Sequence[NetworkLevel]) -> LevelCut:
    """Sends of `size_bytes` from each rank of a stage to the next stage, at the slowest level."""
    degrees = run.degrees
    if degrees.pp < 2:
        return LevelCut()
    stride = degrees.stride("pp")
    slowest = LevelCut()
    for level in levels:
        part = level.part_devices
        if part % stride:
            # A stage is larger than a part or crosses its boundary: every device may send.
            senders, crossings = part, degrees.pp - 1
        else:
            # The worst pipeline among those starting at a multiple of gcd(pp, stages per part).
            held = part // stride
            offset = held - math.gcd(degrees.pp, held)
            senders, crossings = stride, (offset + degrees.pp - 1) // held
        seconds = size_bytes * senders / (part * level.bytes_per_s_per_device)
        if crossings and seconds + level.latency_s > slowest.bytes_s + slowest.latency_s:
            slowest = LevelCut(bytes_s=seconds, latency_s=level.latency_s, crossings=crossings)
    return slowest
