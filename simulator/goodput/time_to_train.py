"""`time_to_train`: duration of a whole run, its uncertainty, and its lost time by cause.

Every simulated run has a random cluster (clusters.py), a random step time and random failures
(`simulate_runs`). The step time's 90 % interval is treated as log-normal on each side of its value.

Each run trains for `every_s` seconds, saves, and continues. After an interruption it returns to the
last save, restarts (another interruption may strike) and repeats the lost work. One iteration of
the loop is one interruption of every unfinished run. So 10,000 runs need as many iterations as the
largest number of interruptions among them.
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
from simulator.goodput.reliability import PARTS, expected, spares_for
from simulator.goodput.reliability_inputs import DEFAULT, ReliabilityInputs
from simulator.values.prediction import Interval

_DAY_S = 86400.0
# Runs with more interruptions than this get the expected time: by the law of large numbers the
# interruptions' randomness is then below 1 %.
MOST_INTERRUPTIONS = 20_000
# A single recovery is half of its cluster's mean plus an exponential half.
_FIXED_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeToTrain:
    """Duration of a whole run. Intervals are the median and the 5 % and 95 % quantiles.

    days, device_hours   total, including contingency
    contingency          factor on the days of steady steps and known losses
    productive_time      share of these days spent in steps that are kept
    parts                share of these days that is lost, by cause; with productive_time's mean
                         they add up to 1
    interruptions        unexpected and spot
    failures_by_source   mean number of unexpected ones by class of cause
    spare_nodes          number for which the run waits for a spare at most 1 % of the time
    sorted_days          duration of each simulated run, shortest first
    """

    days: Interval
    device_hours: Interval
    contingency: Interval
    productive_time: Interval
    parts: Mapping[str, float]
    checkpoint_every_s: float
    interruptions: Interval
    failures_by_source: Mapping[str, float]
    spare_nodes: int
    sorted_days: tuple[float, ...]

    def probability_by(self, days: float) -> float:
        """Probability (0 to 1) that the run ends within `days` days."""
        return bisect.bisect_right(self.sorted_days, days) / len(self.sorted_days)

    def days_with(self, probability: float) -> float:
        """Days within which the run ends with this probability."""
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
    """Duration of `steps` steps on `devices` devices, for a model with `parameters` parameters.

    runs  number of simulated runs;  equal arguments give equal results, bit by bit

    Raises InputError unless step time, steps, devices, parameters and runs are above 0.
    """
    counts = {"steps": steps, "devices": devices, "parameters": parameters, "runs": runs}
    for name, number in {**counts, "step time": step_time.low}.items():
        if not (number > 0 and math.isfinite(number)):
            raise InputError(f"{name} = {number!r}: must be a number above 0")
    rng = np.random.default_rng(seed)
    clusters = draw_clusters(parameters, devices, device_name, inputs, draws=runs, rng=rng)
    normal = rng.standard_normal(runs)
    step_s = two_sided(step_time.low, step_time.value, step_time.high, normal)
    simulated = simulate_runs(clusters, steps * step_s, rng=rng)
    days = simulated.wall_s / _DAY_S * clusters.contingency
    whole = interval_of(days)
    unexpected = clusters.failure_rate / (clusters.failure_rate + clusters.spot_rate)
    failures = float(np.mean(simulated.interruptions * unexpected))
    lost = {name: float(np.mean(simulated.lost_s[name] / simulated.wall_s)) for name in PARTS}
    return TimeToTrain(
        days=whole,
        device_hours=whole.scaled(24.0 * devices),
        contingency=interval_of(clusters.contingency),
        productive_time=interval_of(simulated.steady_s / simulated.wall_s),
        parts=lost,
        checkpoint_every_s=clusters.every_s,
        interruptions=interval_of(simulated.interruptions),
        failures_by_source={name: share * failures for name, share in inputs.shares.items()},
        spare_nodes=spares_for(inputs.broken_nodes(devices, device_name)),
        sorted_days=tuple(np.sort(days).tolist()),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedRuns:
    """Per run: wall-clock seconds without contingency, seconds of steady steps, seconds lost by
    cause (PARTS), and interruptions. wall_s = steady_s + the sum of the parts."""

    wall_s: Array
    steady_s: Array
    lost_s: dict[str, Array]
    interruptions: Array


class _Running:
    """State of the unfinished runs."""

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
    """One simulated run in each cluster, with `steady_s` seconds of steady steps."""
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
    """Advances every run to its next interruption or its end; returns which have ended."""
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
    """Seconds from this interruption until training continues, and the part that waits for a
    spare."""
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
        # A save within the notice keeps all work: the run continues from the same point.
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
