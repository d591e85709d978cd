"""Whether the host of a run is so far ahead of its device that freed tensors pile up.

Of the Ultra-Scale sweep some runs reserve what the program needs with a host that is never ahead
(`CachingAllocator.launches_ahead` 0), the others what it needs with one that is ahead by most of
the device's queue of 1024 launches; few lie between. The first take up to twice as long per
micro-batch on equal layouts, which points at hosts that wait for each collective (a debug mode, or
messages polled with a sleep: nanotron 67c5ebb6, p2p.py). No row says which, so this is a share by
layout, shrunk towards that of wider regimes, and it is no physics: with rows left out about three
of four runs are told right (docs/accuracy.md). Refitted in every fold of `validate`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document
from simulator.training_run.training_run import TrainingRun

HOST_LEAD_SCHEMA = "shardwright/host-lead@1"
HOST_LEAD_FILE = Path(__file__).parents[2] / "profiles/data/calibration/host_lead.toml"
# So many rows of the wider regime's share stand in for rows of a regime; 1 to 3 give the same error
# with rows left out.
_SHRUNK = 2.0
# Matmul work of a layer on one device, forward and backward, that takes it some 10 ms or more
# (400 TFLOP/s): about what nanotron's host needs to launch one.
_LONG_LAYER_FLOP = 4.0e12
_WHOLE = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLead:
    """Shares of runs whose host is ahead, by regime.

    launches, pipeline_launches   by how many launches, without and with a pipeline
    """

    source: str
    method: str
    date: str
    launches: int
    pipeline_launches: int
    share: Mapping[str, float]

    def share_of(self, run: TrainingRun) -> float:
        """Of the narrowest regime of the run that rows are known of."""
        return next(self.share[name] for name in lead_regimes(run) if name in self.share)

    def launches_of(self, run: TrainingRun) -> int:
        """By how many launches the host is ahead of the device in the run."""
        return self.launches if run.pp == 1 else self.pipeline_launches


@functools.cache
def shipped_host_lead(path: Path = HOST_LEAD_FILE) -> HostLead:
    """What the project ships."""
    return read_document(path, HostLead, schema=HOST_LEAD_SCHEMA)


def lead_regimes(run: TrainingRun) -> tuple[str, ...]:
    """The regimes of a run, the narrowest first."""
    node = run.node_devices
    reach = (
        "part of a node"
        if run.tp < node
        else "a node"
        if run.tp == node
        else "two nodes"
        if run.tp <= 2 * node
        else "more nodes"
    )
    nodes = run.num_nodes
    size = (
        "1 to 3" if nodes < 4 else "4 to 15" if nodes < 16 else "16 to 63" if nodes < 64 else "64"
    )
    model = run.model
    work = 6.0 * run.tokens * (model.attention_parameters + model.dense_parameters) / run.tp
    words = (
        f"pp {run.pp}" if run.pp < 3 else "pp 3 or more",
        f"tp in {reach}",
        f"{size} nodes" if size != "64" else "64 nodes or more",
        "long layers" if work > _LONG_LAYER_FLOP else "short layers",
        f"ZeRO {min(run.zero_stage, 1)}",
    )
    names = [", ".join(words[:count]) for count in range(len(words), 0, -1)]
    return (*names, _WHOLE)


def fitted_shares(
    regimes: Sequence[tuple[str, ...]], is_ahead: Sequence[float], weights: Sequence[float]
) -> dict[str, float]:
    """The share of every regime, each shrunk towards the next wider one's.

    regimes    of each run, the narrowest first, all of one length
    is_ahead   1 or 0 of each run;  weights  how well the two can be told apart
    """
    found: dict[str, float] = {}
    for level in range(len(regimes[0]) - 1, -1, -1):
        ahead: dict[str, float] = {}
        weight: dict[str, float] = {}
        wider: dict[str, str] = {}
        for names, one, counts in zip(regimes, is_ahead, weights, strict=True):
            name = names[level]
            ahead[name] = ahead.get(name, 0.0) + one * counts
            weight[name] = weight.get(name, 0.0) + counts
            wider[name] = names[level + 1] if level + 1 < len(names) else ""
        for name in sorted(weight):
            prior = found.get(wider[name], 0.5)
            found[name] = (ahead[name] + _SHRUNK * prior) / (weight[name] + _SHRUNK)
    return found
