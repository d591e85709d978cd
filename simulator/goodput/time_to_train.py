"""`time_to_train`: when a whole run is done, how sure that is, and what its time goes to.

Every simulated run is one cluster of those that the inputs may mean (clusters.py), one step time of
its interval, and its own luck with failures (`simulate_runs`). The step's interval is a 90 % one
and is taken as log-normal on either side of its value.

Each run trains for `every_s` seconds, saves, and goes on; at an interruption it falls back to what
the last save holds, restarts (an interruption may strike then too) and does the lost work again.
One turn of the loop is one interruption of every run that is still on its way, so that 10,000 runs
take as many turns as the unluckiest of them has interruptions.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from profiles.errors import InputError
from simulator.goodput.clusters import Array, Clusters, draw_clusters, interval_of, two_sided
from simulator.goodput.lasting import PARTS, expected, spares_for
from simulator.goodput.reliability_inputs import DEFAULT, ReliabilityInputs
from simulator.values.prediction import Interval

_DAY_S = 86400.0
# Runs with more interruptions than this take their mean (law of large numbers: the interruptions'
# own luck is below 1 % then).
MOST_INTERRUPTIONS = 20_000
# Spread of a single recovery around its cluster's mean: exponential beside a fixed half, so that
# none is shorter than half of it.
_FIXED_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToTrain:
    """A whole run. Intervals are the median and the 5 % and 95 % quantiles.

    days, device_hours   all of it, contingency included
    days_without_contingency   what steady steps and known losses take
    contingency          factor on those days
    productive_time      share of `days_without_contingency` in which steps are made that are kept
    parts                share of it lost, by cause; with productive_time's mean they add up to 1
    interruptions        unexpected, and of spot capacity;  failures_by_source  the mean of the
                         former by class of source
    spare_nodes          with which such a run waits for one for less than 1 % of its time
    sorted_days          of each simulated run, the shortest first
    """

    days: Interval
    device_hours: Interval
    days_without_contingency: Interval
    contingency: Interval
    productive_time: Interval
    parts: Mapping[str, float]
    checkpoint_every_s: float
    checkpoint_s: Interval
    between_failures_s: Interval
    interruptions: Interval
    failures_by_source: Mapping[str, float]
    spare_nodes: int
    sorted_days: tuple[float, ...]

    def probability_by(self, days: float) -> float:
        """Probability (0 to 1) that the run has ended after so many days."""
        return bisect.bisect_right(self.sorted_days, days) / len(self.sorted_days)

    def days_with(self, probability: float) -> float:
        """Days after which the run has ended with this probability."""
        last = len(self.sorted_days) - 1
        return self.sorted_days[min(last, max(0, math.ceil(probability * (last + 1)) - 1))]


def time_to_train(
    step_time: Interval,
    steps: float,
    devices: int,
    device_name: str,
    parameters: float,
    inputs: ReliabilityInputs = DEFAULT,
    seed: int = 0,
    runs: int = 2000,
) -> TimeToTrain:
    """The run of `steps` steps on `devices` devices, its states those of `parameters` parameters.

    runs  simulated;  equal arguments give equal results, bit by bit

    Raises InputError for a step time, steps, devices or runs that are not above 0.
    """
    counts = {"steps": steps, "devices": devices, "parameters": parameters, "runs": runs}
    for name, number in {**counts, "step time": step_time.low}.items():
        if not (number > 0 and math.isfinite(number)):
            raise InputError(f"{name} = {number!r}: a number above 0 is wanted")
    rng = np.random.default_rng(seed)
    clusters = draw_clusters(parameters, devices, device_name, inputs, draws=runs, rng=rng)
    normal = rng.standard_normal(runs)
    step_s = two_sided(step_time.low, step_time.value, step_time.high, normal)
    found = simulate_runs(clusters, steps * step_s, rng=rng)
    plain = found.wall_s / _DAY_S
    days = plain * clusters.contingency
    whole = interval_of(days)
    unexpected = clusters.failure_rate / (clusters.failure_rate + clusters.spot_rate)
    failures = float(np.mean(found.interruptions * unexpected))
    return TimeToTrain(
        days=whole,
        device_hours=whole.scaled(24.0 * devices),
        days_without_contingency=interval_of(plain),
        contingency=interval_of(clusters.contingency),
        productive_time=interval_of(found.steady_s / found.wall_s),
        parts={name: float(np.mean(found.lost_s[name] / found.wall_s)) for name in PARTS},
        checkpoint_every_s=clusters.every_s,
        checkpoint_s=interval_of(clusters.save_s),
        between_failures_s=interval_of(clusters.between_s),
        interruptions=interval_of(found.interruptions),
        failures_by_source={name: share * failures for name, share in inputs.shares.items()},
        spare_nodes=spares_for(inputs.broken_nodes(devices, device_name)),
        sorted_days=tuple(np.sort(days).tolist()),
    )


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

    def __init__(self, index: NDArray[np.intp], left: Array) -> None:
        self.index, self.left = index, left
        self.down, self.wall, self.count = np.zeros((3, index.size))
        self.by_spot = np.zeros(index.size, dtype=np.bool_)
        self.broken = np.zeros(index.size, dtype=np.int64)
        names = ("checkpoint", "restart", "spot", "waiting for spares")
        self.lost = {name: np.zeros(index.size) for name in names}

    def keep(self, which: NDArray[np.bool_]) -> None:
        for name in ("index", "left", "down", "by_spot", "wall", "count", "broken"):
            setattr(self, name, getattr(self, name)[which])
        self.lost = {name: values[which] for name, values in self.lost.items()}


def simulate_runs(
    clusters: Clusters, steady_s: Array, *, rng: np.random.Generator
) -> SimulatedRuns:
    """One run of `steady_s` seconds of steady steps in each cluster."""
    mean = expected(clusters)
    rate = clusters.failure_rate + clusters.spot_rate
    wall, count = steady_s * mean.wall_s, rate * steady_s * mean.wall_s
    few = ~(count > MOST_INTERRUPTIONS)
    lost = {name: steady_s * mean.lost_s[name] for name in PARTS}
    training = steady_s * clusters.slowing
    now = _Running(np.flatnonzero(few), training[few])
    while now.index.size:
        done = _until_next(clusters, now, rate[now.index], rng)
        if done.any():
            at = now.index[done]
            wall[at], count[at] = now.wall[done], now.count[done]
            for name, seconds in now.lost.items():
                lost[name][at] = seconds[done]
            known = training[at] + sum(seconds[done] for seconds in now.lost.values())
            lost["lost work"][at] = np.maximum(wall[at] - known, 0.0)
            now.keep(~done)
    planned = rng.poisson(np.minimum(clusters.maintenance_rate * wall, 1e9))
    planned_s = np.asarray(planned * clusters.maintenance_s)
    lost["maintenance"][few] = planned_s[few]
    wall[few] += planned_s[few]
    lost["stragglers"] = steady_s * clusters.slow
    lost["evaluation"] = steady_s * (clusters.slowing - 1.0 - clusters.slow)
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
    now.lost["waiting for spares"] += waits
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
    inputs, size = clusters.inputs, now.index.size
    each = _FIXED_SHARE + (1 - _FIXED_SHARE) * rng.standard_exponential(size)
    down = clusters.recovery_s[now.index] * each
    if inputs.manual_share:
        manual = rng.random(size) < inputs.manual_share
        down = down + np.where(manual, inputs.manual_restart_s, 0.0)
    spot = np.zeros(size, dtype=np.bool_)
    if clusters.spot_rate:
        spot = rng.random(size) < clusters.spot_rate / rate
        down = np.where(spot, inputs.spot_wait_s, down)
        # What is saved within the notice is not lost: the run comes to the very place.
        saved = spot & clusters.spot_saved[now.index] & ~done & (went > 0)
        _save_at_notice(clusters, now, saved, went)
    now.by_spot = spot
    down = down + clusters.load_s[now.index]
    waits = np.zeros(size)
    if inputs.spare_nodes is not None:
        mended = rng.binomial(now.broken, -np.expm1(-until / inputs.repair_s))
        now.broken = now.broken - mended
        breaks = (rng.random(size) < inputs.hardware_share) & ~spot & ~done
        now.broken = now.broken + breaks
        short = breaks & (now.broken > inputs.spare_nodes)
        wait = rng.standard_exponential(size) * inputs.repair_s / np.maximum(now.broken, 1)
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
