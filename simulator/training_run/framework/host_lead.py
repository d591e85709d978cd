"""Whether the host of a run is so far ahead of its device that freed tensors pile up.

Of the Ultra-Scale sweep some runs reserve what the program needs with a host that is never ahead
(`CachingAllocator.launches_ahead` 0), the others what it needs with one that is ahead by most of
the device's queue of 1024 launches. Two things decide:

- **Trouble** (`message_stalls.py`): the host of a job in trouble waits for each collective and is
  never ahead. Of 148 jobs without stages whose time and peak both tell, 27 are in trouble with a
  host that is not ahead, 114 calm with one that is, 7 neither (ultra rows, 2026-11-21). Jobs in
  trouble reserve the same as a host that never runs ahead, within 2.1 % without stages, 4.5 % with.
- **Blocking messages.** With two stages the first has a received gradient outstanding from its
  second micro-batch on, so that its host waits in each collective; it is ahead only where a layer
  takes the device as long as the host (`launches_of`). With more stages the peak falls into the
  first micro-batches, before anything is received.

Whether a job was in trouble no row says, so this is a share by layout, shrunk towards that of wider
regimes; with rows left out about three of four runs are told right. Refitted in every fold of
`validate`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document
from simulator.training_run.run.training_run import TrainingRun

HOST_LEAD_SCHEMA = "shardwright/host-lead@1"
HOST_LEAD_FILE = Path(__file__).parents[3] / "profiles/data/calibration/host_lead.toml"
# So many rows of the wider regime's share stand in for rows of a regime; 1 to 3 give the same error
# with rows left out.
_SHRUNK = 2.0
# Matmuls of a layer on one device, forward and backward, that take it so long are long.
_LONG_LAYER_S = 10e-3
# What the device computes per second when it computes only, and what a host needs for a layer:
# 4.5 ms, and where messages between nodes are outstanding 2.45 ms for each rank of its collectives
# (message_stalls.py).
_FLOP_PER_S = 4.0e14
_HOST_LAYER_S, _HOST_RANK_S = 4.5e-3, 2.45e-3
# Matmuls are about half of what a layer takes the device. Of 99 calm jobs with two stages on
# several nodes 72 lie below this share of the host's time, of which 62 are not ahead, and 27 above,
# of which 24 are ahead (2026-11-21).
_MATMUL_SHARE = 0.5
_WHOLE = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLead:
    """Shares of runs whose host is ahead, by regime.

    launches, two_stage_launches, pipeline_launches   by how many launches, without a pipeline, with
        one of two stages and of more
    """

    source: str
    method: str
    date: str
    launches: int
    two_stage_launches: int
    pipeline_launches: int
    share: Mapping[str, float]

    def share_of(self, run: TrainingRun) -> float:
        """Of the narrowest regime of the run that rows are known of."""
        return next(self.share[name] for name in lead_regimes(run) if name in self.share)

    def launches_of(self, run: TrainingRun) -> int:
        """By how many launches the host is ahead of the device where nothing troubles it; 0 where
        messages hold it back."""
        if run.pp != 2:
            return self.launches if run.pp == 1 else self.pipeline_launches
        host_s = _HOST_LAYER_S + (_HOST_RANK_S * run.tp if run.num_nodes > 1 else 0.0)
        return self.two_stage_launches if _matmul_s(run) > _MATMUL_SHARE * host_s else 0


@functools.cache
def shipped_host_lead(path: Path = HOST_LEAD_FILE) -> HostLead:
    """What the project ships."""
    return read_document(path, HostLead, schema=HOST_LEAD_SCHEMA)


def _matmul_s(run: TrainingRun) -> float:
    """Seconds of a layer's matmuls on one device, forward and backward (6 FLOP per weight and
    token)."""
    weights = run.model.attention_parameters + run.model.dense_parameters
    return 6.0 * run.tokens * weights / run.tp / _FLOP_PER_S


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
    words = (
        f"pp {run.pp}" if run.pp < 3 else "pp 3 or more",
        f"tp in {reach}",
        f"{size} nodes" if size != "64" else "64 nodes or more",
        "long layers" if _matmul_s(run) > _LONG_LAYER_S else "short layers",
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
