"""Goodput of a long run in closed form, fast enough for every layout of a search.

`reliability` returns the figures of `time_to_train` without the randomness of a single run.
`expected` returns each cluster's productive share of time and its losses by cause.

Per second of training time (steady steps, slow hosts and evaluations) a run with exponential
interruptions takes

    M e^(R/M) (e^((t+d)/M) - 1) / t        M, R, d, t as in clusters.py

seconds (Daly, FGCS 22(3), 2006, eq. 20). Of these, d/t are saves, N R' are restarts (N failures of
R' seconds) and the rest is repeated work. Spot capacity reclaimed after a save loses no work.
Planned interruptions follow a save. A run of weeks has so many interruptions that their randomness
averages out; the differences between clusters remain.

Spare nodes: nodes break at a rate r while the run makes progress. Each is repaired after a time T
on average, all in parallel. With S spares a run waits while S + 1 nodes are broken, and none breaks
during the wait. So the broken nodes are the busy lines of a telephone exchange with S + 1 lines and
offered load a = r T. The share of time with all lines busy is Erlang's B (Erlang 1917; valid for
any distribution of T).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

import numpy as np

from simulator.goodput.clusters import Array, Clusters, draw_clusters, interval_of
from simulator.goodput.reliability_inputs import DEFAULT, ReliabilityInputs
from simulator.values.prediction import Interval

_DRAWS = 2000
_MOST_SPARES = 100_000
# Largest exponent, to avoid overflow: with e^40 attempts per interval no run ends.
_MOST = 40.0
PARTS = (
    *("checkpoint", "lost work", "restart", "spot", "waiting for spares", "maintenance"),
    *("stragglers", "evaluation"),
)
Load = TypeVar("Load", float, Array)


def waiting_share(spares: int, load: Load) -> Load:
    """Share of the time that a run waits for a spare node, at the load a = r T.

    >>> round(waiting_share(1, 1.0), 3)  # two lines: (1/2) / (1 + 1 + 1/2)
    0.2
    """
    return next(islice(_waiting_shares(load), spares, None))


def spares_for(load: float, *, most_waiting: float = 0.01) -> int:
    """Smallest number of spares for which a run waits at most this share of its time."""
    shares = enumerate(islice(_waiting_shares(load), _MOST_SPARES - 1))
    return next((spares for spares, share in shares if share <= most_waiting), _MOST_SPARES)


def cheapest_spares(loads: Array, nodes: Array) -> Array:
    """[runs] spare nodes for which spares and waiting cost least: the smallest s + w(s) n, with the
    waiting share w at a load and n nodes that wait.

    >>> cheapest_spares(np.asarray([0.03, 1.0]), np.asarray([2, 100])).tolist()
    [0.0, 4.0]
    """
    found = np.zeros(loads.shape)
    least = np.full(loads.shape, np.inf)
    for spares, share in enumerate(islice(_waiting_shares(loads), _MOST_SPARES)):
        cost = spares + share * nodes
        found = np.where(cost < least, spares, found)
        least = np.minimum(cost, least)
        if np.all(spares >= least):
            break
    return found


def _waiting_shares(load: Load) -> Iterator[Load]:
    """The waiting share for 0, 1, 2, ... spares, by the recursion of Erlang's B."""
    blocked, lines = load / (1 + load), 1
    while True:
        yield blocked
        lines += 1
        blocked = load * blocked / (lines + load * blocked)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpectedTime:
    """Per cluster: wall-clock seconds per second of steady steps, and the seconds lost by cause
    (PARTS), without contingency. wall_s = 1 + the sum of the parts."""

    wall_s: Array
    lost_s: dict[str, Array]

    @property
    def productive(self) -> Array:
        """Share of the time spent in steady steps that are kept."""
        return 1.0 / self.wall_s


def expected(clusters: Clusters) -> ExpectedTime:
    """The long-run mean in each cluster."""
    t, d = clusters.every_s, clusters.pause_s
    saved = np.where(clusters.spot_saved, clusters.spot_rate, 0.0)
    rate = clusters.failure_rate + clusters.spot_rate - saved
    spot_share = (clusters.spot_rate - saved) / rate
    inputs = clusters.inputs
    spot_s = inputs.spot_wait_s + clusters.load_s
    by_failure = (
        clusters.recovery_s + inputs.manual_share * inputs.manual_restart_s + clusters.load_s
    )
    # A failure during a save makes that save useless.
    lag_s = clusters.save_s - d
    mended_s = (1.0 - spot_share) * by_failure + spot_share * spot_s + lag_s
    working = np.expm1(np.minimum(rate * (t + d), _MOST)) / rate / t
    # An interruption of either kind may strike before the previous one is repaired.
    every = clusters.failure_rate + clusters.spot_rate
    mending = working * rate / every * np.expm1(np.minimum(every * mended_s, _MOST))
    # Spot capacity reclaimed after a save loses no work.
    waited_s = np.expm1(np.minimum(every * spot_s, _MOST)) / every
    noticed = working * saved * (waited_s + clusters.save_s)
    running = working + mending + noticed
    parts = {
        "checkpoint": d / t,
        "lost work": np.maximum(working - 1.0 - d / t, 0.0) + mending * lag_s / mended_s,
        "restart": mending * (1.0 - spot_share) * by_failure / mended_s,
        "spot": mending * spot_share * spot_s / mended_s + noticed,
        "waiting for spares": running * _waiting(clusters),
        "maintenance": running * (clusters.maintenance_rate * clusters.maintenance_s),
    }
    slowing = clusters.slowing
    lost_s = {name: slowing * seconds for name, seconds in parts.items()}
    lost_s["stragglers"] = clusters.slow
    lost_s["evaluation"] = slowing - 1.0 - clusters.slow
    wall = 1.0 + sum(lost_s.values(), start=np.zeros_like(slowing))
    return ExpectedTime(wall_s=wall, lost_s=lost_s)


def _waiting(clusters: Clusters) -> Array:
    """Seconds of waiting for a spare node per second of all other time."""
    inputs = clusters.inputs
    if inputs.spare_nodes is None:
        return np.zeros_like(clusters.failure_rate)
    load = clusters.failure_rate * inputs.hardware_share * inputs.repair_s
    shares = waiting_share(inputs.spare_nodes, load)
    return np.minimum(shares / np.maximum(1.0 - shares, 1e-12), 1e12)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """Goodput and failures of a long run.

    between_failures_s     mean time between unexpected interruptions
    checkpoint_every_s     the optimal interval;  checkpoint_s  duration of a save
    goodput                share (0 to 1) of time spent on steps that are kept
    lost                   mean share of time by cause of loss
    spare_nodes            needed to wait for a spare at most 1 % of the time
    """

    between_failures_s: Interval
    checkpoint_every_s: float
    checkpoint_s: Interval
    goodput: Interval
    lost: Mapping[str, float] = field(default_factory=dict)
    spare_nodes: int = 0

    def __hash__(self) -> int:
        # A mapping has no hash.
        return hash((self.between_failures_s, self.checkpoint_every_s, self.goodput))


@functools.lru_cache(maxsize=4096)
def reliability(
    num_parameters: float,
    num_devices: int,
    device_name: str = "",
    inputs: ReliabilityInputs = DEFAULT,
) -> Reliability:
    """Reliability of a run whose devices write the model's states together.

    device_name  name in the catalog; "" for an unknown device

    >>> h100s = reliability(405e9, 16384, "h100-sxm-80gb")
    >>> round(h100s.between_failures_s.value / 3600, 1)  # hours
    2.4
    """
    clusters = draw_clusters(
        num_parameters, num_devices, device_name, inputs, draws=_DRAWS, rng=np.random.default_rng(0)
    )
    time = expected(clusters)
    return Reliability(
        between_failures_s=interval_of(clusters.between_s),
        checkpoint_every_s=clusters.every_s,
        checkpoint_s=interval_of(clusters.save_s),
        goodput=interval_of(time.productive),
        lost={name: float(np.mean(time.lost_s[name] / time.wall_s)) for name in PARTS},
        spare_nodes=spares_for(inputs.broken_nodes(num_devices, device_name)),
    )


def delivered(cost: Interval | None, goodput: Interval) -> Interval | None:
    """Cost per token divided by goodput, since lost time is paid too. None without a cost, or if
    the goodput may be 0."""
    if cost is None or goodput.low <= 0:
        return None
    return Interval(
        value=cost.value / goodput.value, low=cost.low / goodput.high, high=cost.high / goodput.low
    )
