"""`expected`: the share of a very long run's time that is kept, and what the rest went to.

Per second of training time (steady steps, slow hosts and evaluations in it) a run with exponential
interruptions takes

    M e^(R/M) (e^((t+d)/M) - 1) / t        M, R, d, t as in clusters.py

seconds (Daly, FGCS 22(3), 2006, eq. 20), of which d/t are saves, N R' restarts (N failures, R'
seconds each) and the rest is work that was done twice. Capacity that is taken back after its states
are saved loses no work. Planned interruptions come at a saved state. A run of weeks has so many
interruptions that its own luck hardly matters; what differs is the cluster.

Spare nodes: broken nodes come at a rate r while the run makes progress, and each is whole again
after a time T on average, all repaired at once. With S spares a run waits while S + 1 are broken,
and nothing breaks then: the number of broken nodes is that of busy lines in a telephone exchange of
S + 1 lines that is offered a = r T, and the share of time with all of them busy is Erlang's B
(Erlang 1917; it holds for any distribution of T).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulator.goodput.clusters import Array, Clusters

_MOST_SPARES = 100_000


def waiting_share(spares: int, load: float) -> float:
    """Share of the time that a run waits for a node; load is a.

    >>> round(waiting_share(1, 1.0), 3)  # two lines: (1/2) / (1 + 1 + 1/2)
    0.2
    """
    blocked = 1.0
    for lines in range(1, spares + 2):
        blocked = load * blocked / (lines + load * blocked)
    return blocked


def spares_for(load: float, *, most_waiting: float = 0.01) -> int:
    """The fewest spares with which a run waits for at most this share of its time."""
    blocked = 1.0
    for lines in range(1, _MOST_SPARES):
        blocked = load * blocked / (lines + load * blocked)
        if blocked <= most_waiting:
            return lines - 1
    return _MOST_SPARES


# Exponents beyond which nothing is ever finished: e^40 intervals for one.
_MOST = 40.0
PARTS = (
    *("checkpoint", "lost work", "restart", "spot", "waiting for spares", "maintenance"),
    *("stragglers", "evaluation"),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExpectedTime:
    """Per cluster: seconds of wall-clock time per second of steady steps, and of those the seconds
    by what they were lost to (PARTS); contingency left out. wall_s = 1 + the sum of the parts."""

    wall_s: Array
    lost_s: dict[str, Array]

    @property
    def productive(self) -> Array:
        """Share of the time that steady steps which are kept take."""
        return 1.0 / self.wall_s


def expected(clusters: Clusters) -> ExpectedTime:
    """The long-run mean in each cluster."""
    t, d = clusters.every_s, clusters.pause_s
    saved = np.where(clusters.spot_saved, clusters.spot_rate, 0.0)
    rate = clusters.failure_rate + clusters.spot_rate - saved
    spot_share = (clusters.spot_rate - saved) / rate
    spot_s = clusters.spot_wait_s + clusters.load_s
    by_failure = clusters.recovery_s + clusters.manual_share * clusters.manual_s + clusters.load_s
    # A save that is still being written when a failure strikes is no help.
    lag_s = clusters.save_s - d
    mended_s = (1.0 - spot_share) * by_failure + spot_share * spot_s + lag_s
    working = np.expm1(np.minimum(rate * (t + d), _MOST)) / rate / t
    # An interruption of either kind may strike before the last one is mended.
    every = clusters.failure_rate + clusters.spot_rate
    mending = working * rate / every * np.expm1(np.minimum(every * mended_s, _MOST))
    # Capacity taken back after its states are saved costs no work.
    waited_s = np.expm1(np.minimum(every * spot_s, _MOST)) / every
    noticed = working * saved * (waited_s + clusters.save_s)
    running = working + mending + noticed
    planned = clusters.maintenance_rate * (
        clusters.maintenance_s + clusters.load_s + d + clusters.recovery_s / 2
    )
    parts = {
        "checkpoint": d / t,
        "lost work": np.maximum(working - 1.0 - d / t, 0.0) + mending * lag_s / mended_s,
        "restart": mending * (1.0 - spot_share) * by_failure / mended_s,
        "spot": mending * spot_share * spot_s / mended_s + noticed,
        "waiting for spares": running * _waiting(clusters),
        "maintenance": running * planned,
    }
    slowing = clusters.slowing
    lost_s = {name: slowing * seconds for name, seconds in parts.items()}
    lost_s["stragglers"] = clusters.slow
    lost_s["evaluation"] = slowing - 1.0 - clusters.slow
    wall = 1.0 + sum(lost_s.values(), start=np.zeros_like(slowing))
    return ExpectedTime(wall_s=wall, lost_s=lost_s)


def _waiting(clusters: Clusters) -> Array:
    """Seconds of waiting for a spare node per second of all else."""
    if clusters.spare_nodes is None:
        return np.zeros_like(clusters.failure_rate)
    spares = clusters.spare_nodes
    load = clusters.failure_rate * clusters.hardware_share * clusters.repair_s
    shares = np.asarray([waiting_share(spares, float(each)) for each in load])
    return np.minimum(shares / np.maximum(1.0 - shares, 1e-12), 1e12)
