"""`simulate_runs`: many whole runs, interruption by interruption, as arrays over the runs.

Each run trains for `every_s` seconds, saves, and goes on; at an interruption it falls back to what
the last save holds, restarts (an interruption may strike then too) and does the lost work again.
One turn of the loop is one interruption of every run that is still on its way, so that 10,000 runs
take as many turns as the unluckiest of them has interruptions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulator.goodput.clusters import Array, Clusters
from simulator.goodput.expected_time import PARTS, expected

# Runs with more interruptions than this take their mean (law of large numbers: the interruptions'
# own luck is below 1 % then).
MOST_INTERRUPTIONS = 20_000
# Spread of a single recovery around its cluster's mean: exponential beside a fixed half, so that
# none is shorter than half of it.
_FIXED_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedRuns:
    """Per run: seconds of wall-clock time without contingency, those of steady steps in it, those
    lost by part (PARTS), and interruptions. wall_s = steady_s + the sum of the parts."""

    wall_s: Array
    steady_s: Array
    lost_s: dict[str, Array]
    interruptions: Array


class _Running:
    """The runs that are still on their way."""

    __slots__ = ("broken", "by_spot", "count", "down", "index", "left", "lost", "wall")

    def __init__(self, index: NDArray[np.intp], left: Array) -> None:
        self.index, self.left = index, left
        self.down = np.zeros(index.size)
        self.by_spot = np.zeros(index.size, dtype=np.bool_)
        self.wall = np.zeros(index.size)
        self.count = np.zeros(index.size)
        self.broken = np.zeros(index.size, dtype=np.int64)
        self.lost = {
            name: np.zeros(index.size) for name in ("checkpoint", "restart", "spot", "waiting")
        }

    def keep(self, which: NDArray[np.bool_]) -> None:
        for name in ("index", "left", "down", "by_spot", "wall", "count", "broken"):
            setattr(self, name, getattr(self, name)[which])
        self.lost = {name: values[which] for name, values in self.lost.items()}


def simulate_runs(
    clusters: Clusters, steady_s: Array, *, rng: np.random.Generator
) -> SimulatedRuns:
    """One run of `steady_s` seconds of steady steps in each cluster."""
    runs = steady_s.size
    mean = expected(clusters)
    rate = clusters.failure_rate + clusters.spot_rate
    many = rate * steady_s * mean.wall_s > MOST_INTERRUPTIONS
    wall, count = steady_s * mean.wall_s, rate * steady_s * mean.wall_s
    lost = {name: steady_s * mean.lost_s[name] for name in PARTS}
    training = steady_s * clusters.slowing
    now = _Running(np.flatnonzero(~many), training[~many])
    while now.index.size:
        done = _until_next(clusters, now, rate[now.index], rng)
        if done.any():
            at = now.index[done]
            wall[at], count[at] = now.wall[done], now.count[done]
            lost["checkpoint"][at] = now.lost["checkpoint"][done]
            lost["restart"][at] = now.lost["restart"][done]
            lost["spot"][at] = now.lost["spot"][done]
            lost["waiting for spares"][at] = now.lost["waiting"][done]
            known = training[at] + sum(now.lost[name][done] for name in now.lost)
            lost["lost work"][at] = np.maximum(wall[at] - known, 0.0)
            now.keep(~done)
    few = ~many
    planned = _maintenance_s(clusters, wall, rng)
    lost["maintenance"][few] = planned[few]
    wall[few] += planned[few]
    lost["stragglers"] = steady_s * clusters.slow
    lost["evaluation"] = steady_s * (clusters.slowing - 1.0 - clusters.slow)
    assert wall.size == runs
    return SimulatedRuns(wall_s=wall, steady_s=steady_s, lost_s=lost, interruptions=count)


def _until_next(
    clusters: Clusters, now: _Running, rate: Array, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Takes every run to its next interruption or to its end; which have ended."""
    every, pause = clusters.every_s, clusters.pause_s[now.index]
    until = rng.standard_exponential(now.index.size) / rate
    went = until - now.down
    # A run that ends needs no save at its end.
    saves = np.ceil(now.left / every) - 1.0
    need = now.left + saves * pause
    done = went >= need
    lag = clusters.save_s[now.index] - pause
    whole = np.floor(np.maximum(went - lag, 0.0) / (every + pause))
    kept_saves = np.where(done, saves, np.minimum(whole, saves))
    now.left = now.left - kept_saves * every
    now.lost["checkpoint"] += kept_saves * pause
    now.wall += np.where(done, now.down + need, until)
    down_s = np.minimum(until, now.down)
    now.lost["restart"] += np.where(now.by_spot, 0.0, down_s)
    now.lost["spot"] += np.where(now.by_spot, down_s, 0.0)
    now.down, waits = _mended(clusters, now, until, done, went, rate, rng)
    now.wall += waits
    now.lost["waiting"] += waits
    now.count += ~done
    return np.asarray(done)


def _mended(
    clusters: Clusters,
    now: _Running,
    until: Array,
    done: NDArray[np.bool_],
    went: Array,
    rate: Array,
    rng: np.random.Generator,
) -> tuple[Array, Array]:
    """Seconds until the run goes on after this interruption, and those it waits for a spare."""
    size = now.index.size
    each = _FIXED_SHARE + (1 - _FIXED_SHARE) * rng.standard_exponential(size)
    down = clusters.recovery_s[now.index] * each
    if clusters.manual_share:
        manual = rng.random(size) < clusters.manual_share
        down = down + np.where(manual, clusters.manual_s, 0.0)
    spot = np.zeros(size, dtype=np.bool_)
    if clusters.spot_rate:
        spot = rng.random(size) < clusters.spot_rate / rate
        down = np.where(spot, clusters.spot_wait_s, down)
        # What is saved within the notice is not lost: the run comes to the very place.
        saved = spot & clusters.spot_saved[now.index] & ~done & (went > 0)
        _save_at_notice(clusters, now, saved, went)
    now.by_spot = spot
    down = down + clusters.load_s[now.index]
    waits = np.zeros(size)
    if clusters.spare_nodes is not None:
        mended = rng.binomial(now.broken, -np.expm1(-until / clusters.repair_s))
        now.broken = now.broken - mended
        breaks = (rng.random(size) < clusters.hardware_share) & ~spot & ~done
        now.broken = now.broken + breaks
        short = breaks & (now.broken > clusters.spare_nodes)
        wait = rng.standard_exponential(size) * clusters.repair_s / np.maximum(now.broken, 1)
        waits = np.where(short, wait, 0.0)
        now.broken = now.broken - short
    return down, waits


def _save_at_notice(
    clusters: Clusters, now: _Running, saved: NDArray[np.bool_], went: Array
) -> None:
    every, pause = clusters.every_s, clusters.pause_s[now.index]
    since = np.mod(went, every + pause)
    kept = np.where(saved, np.minimum(np.minimum(since, every), now.left), 0.0)
    save = np.where(saved, clusters.save_s[now.index], 0.0)
    now.left = now.left - kept
    now.wall += save
    now.lost["spot"] += save


def _maintenance_s(clusters: Clusters, wall: Array, rng: np.random.Generator) -> Array:
    """Seconds of the planned interruptions of each run: a save, the work, half of a recovery (there
    is nothing to detect) and a load."""
    count = rng.poisson(np.minimum(clusters.maintenance_rate * wall, 1e9))
    each = clusters.maintenance_s + clusters.load_s + clusters.pause_s + clusters.recovery_s / 2
    return np.asarray(count * each)
