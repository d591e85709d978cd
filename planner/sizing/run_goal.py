"""`RunGoal`: duration, dollars and energy of the whole run of a layout, and which of these to
minimize.

With n nodes of d devices and steps of T seconds, a run of K steps takes

    hours     h = K T x(n) / 3600          x(n): wall time over steady step time (RunStretch)
    dollars   h ((n + b) d p + s) + e      p: per device-hour; b: spare nodes; s: storage per hour;
              e: egress
    energy    n d h w(mfu)                 w: watts of a device and its share of the site

with the median of x; for a limit, with the quantile of x at the required probability. All increase
with T for fixed n (power falls more slowly than utilization), so a bound on T gives a bound on the
value (`LayoutGoal`). A layout pays for whole nodes, and only for those it uses, so one search with
the maximum number of nodes covers every number of nodes.

`RunStretch` is x(n) in closed form, for ranking only. Each simulated cluster gives the value of
goodput/reliability.py, times a random step within its 90 % interval. The result is the median over
clusters and, for a limit, the quantile at the accepted probability. It is computed for numbers of
nodes with ratios of 2^(1/3) and interpolated linearly, with the random draws of `time_to_train`
except for a run's own failures. The answer and its runners-up are simulated (run_outlook.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner.layout.layout_search import Array
from planner.sizing.size_question import TOKENS
from planner.space import Counts
from profiles.sourced import SourcedRange
from simulator.energy import run_energy
from simulator.goodput.clusters import draw_clusters, two_sided
from simulator.goodput.reliability import expected
from simulator.goodput.reliability_inputs import ReliabilityInputs
from simulator.values.prediction import Interval

_PER_OCTAVE = 3
_DRAWS = 2000
_SEED, _PRICE_SEED = 0, 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunStretch:
    """[nodes] factors on steady step time, starting at 0 nodes.

    middle    for the median of the whole time
    deadline  for the quantile of the time at the accepted probability
    budget    the same for dollars: includes the spread of the price
    """

    middle: Array
    deadline: Array
    budget: Array

    def times(self, factor: float) -> RunStretch:
        """The factors of a run that takes `factor` times as long."""
        return RunStretch(
            middle=self.middle * factor,
            deadline=self.deadline * factor,
            budget=self.budget * factor,
        )


def run_stretch(
    parameters: float,
    device: str,
    node_devices: int,
    most_nodes: int,
    inputs: ReliabilityInputs,
    *,
    step_bands: Callable[[Sequence[int]], Sequence[Interval]],
    price: Interval | None,
    confidence: float,
) -> RunStretch:
    """Factors for a model with this many parameters on up to this many nodes.

    step_bands  90 % intervals of measured over predicted step time, for numbers of nodes
    price       of a device-hour
    confidence  probability (0 to 1) with which a limit must be kept
    """
    octaves = np.log2(max(2, most_nodes))
    spaced = np.geomspace(1, most_nodes, 1 + int(_PER_OCTAVE * octaves)).round()
    counts = np.unique(spaced.astype(int)).tolist()
    dearer = _dearer(price)
    found = []
    for nodes, band in zip(counts, step_bands(counts), strict=True):
        lost, normal = _drawn(parameters, nodes * node_devices, device, inputs)
        time = lost * two_sided(band.low, band.value, band.high, normal)
        median, spent = float(np.median(time)), time * dearer
        # The median of the dollars is the median time at the median price.
        unsure = float(np.quantile(spent, confidence) / np.median(spent))
        found.append((median, float(np.quantile(time, confidence)), median * unsure))
    at = np.log(np.arange(1, most_nodes + 1))
    middle, deadline, budget = (
        np.concatenate([np.ones(1), np.interp(at, np.log(counts), np.asarray(each))])
        for each in zip(*found, strict=True)
    )
    return RunStretch(middle=middle, deadline=deadline, budget=budget)


def _dearer(price: Interval | None) -> Array:
    """[draws] the price of a device-hour over its median."""
    normal = np.random.default_rng(_PRICE_SEED).standard_normal(_DRAWS)
    if price is None or price.value <= 0:
        return np.ones(_DRAWS)
    return two_sided(price.low / price.value, 1.0, price.high / price.value, normal)


@functools.lru_cache(maxsize=1024)
def _drawn(
    parameters: float, devices: int, device: str, inputs: ReliabilityInputs
) -> tuple[Array, Array]:
    """[draws] wall time over steady steps, and the quantile of the step in its interval."""
    rng = np.random.default_rng(_SEED)
    clusters = draw_clusters(parameters, devices, device, inputs, draws=_DRAWS, rng=rng)
    normal = rng.standard_normal(_DRAWS)
    return expected(clusters).wall_s * clusters.contingency, normal


# Without a deadline, ties in nodes are broken by time: this many hours count as one node.
_MANY_HOURS = 1e6
_POWER_POINTS = tuple(float(share) for share in np.linspace(0.0, 1.0, 21))


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCurve:
    """Watts of one device, including its share of host and site, over model flop utilization (of
    the 16-bit peak)."""

    mfu: tuple[float, ...]
    watts: tuple[float, ...]

    def at(self, mfu: Array) -> Array:
        """Watts, interpolated linearly."""
        return np.interp(mfu, self.mfu, self.watts)


@functools.lru_cache(maxsize=256)
def power_of(device: str, pue: SourcedRange) -> PowerCurve:
    """Power of a device by the utilization of its steps."""
    watts = [1000.0 * run_energy(device, 1, 1.0, mfu, pue).value for mfu in _POWER_POINTS]
    return PowerCurve(mfu=_POWER_POINTS, watts=tuple(watts))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGoal:
    """Minimizes `minimise` within the limits.

    node_devices  paid devices per node
    fewest, most  nodes
    steps         of the run; 1 if its tokens are unknown
    stretch       wall time divided by steady step time, by nodes
    usd           per device-hour, None if unknown
    spares        [nodes] paid spare nodes, from 0 nodes on; None for none
    usd_per_run_hour, usd_once  storage per hour of the run, and egress
    flop_per_s    16-bit peak of a node's devices
    step_flop     of the model
    """

    minimise: str
    node_devices: int
    fewest: int
    most: int
    steps: float
    stretch: RunStretch
    usd: float | None
    power: PowerCurve
    flop_per_s: float
    step_flop: float
    deadline_h: float | None
    budget_usd: float | None
    usd_per_run_hour: float
    usd_once: float
    spares: Array | None

    def values(self, nodes: Counts, seconds: Array) -> Array:
        """[layouts] value of the goal; infinite beyond a limit."""
        paid = np.maximum(nodes, self.fewest)
        allowed = paid <= self.most
        paid = np.minimum(paid, self.most)
        steady = self.steps * seconds / 3600.0
        shares = []
        if self.deadline_h is not None:
            shares.append(steady * self.stretch.deadline[paid] / self.deadline_h)
        if self.budget_usd is not None:
            spent = self.dollars(paid, steady * self.stretch.budget[paid])
            shares.append(spent / self.budget_usd)
        if self.minimise == TOKENS:
            return np.where(allowed, np.max(np.stack(shares), axis=0), np.inf)
        for share in shares:
            allowed &= share <= 1.0
        hours = self.hours(paid, seconds)
        return np.where(allowed, self._least(paid, seconds, hours), np.inf)

    def hours(self, nodes: Counts, seconds: Array) -> Array:
        """Median wall time of the run in hours."""
        return np.asarray(self.steps * seconds * self.stretch.middle[nodes] / 3600.0)

    def dollars(self, nodes: Counts, hours: Array) -> Array:
        """Dollars of devices, spare nodes, storage and egress; infinite without a price."""
        usd = np.inf if self.usd is None else self.usd
        paid = nodes if self.spares is None else nodes + self.spares[nodes]
        rent = paid * self.node_devices * hours * usd
        return np.asarray(rent + hours * self.usd_per_run_hour + self.usd_once)

    def kwh(self, nodes: Counts, seconds: Array, hours: Array) -> Array:
        """Energy of devices, hosts and site in kWh. Lost hours draw as much power as steps."""
        could = np.maximum(seconds, 1e-12) * nodes.astype(np.float64) * self.flop_per_s
        watts = self.power.at(np.asarray(self.step_flop / could))
        return np.asarray(nodes * self.node_devices * hours * watts / 1000.0)

    def _least(self, nodes: Counts, seconds: Array, hours: Array) -> Array:
        if self.minimise == "time":
            return hours
        if self.minimise == "energy":
            return self.kwh(nodes, seconds, hours)
        if self.minimise == "devices":
            faster = hours / (hours + (self.deadline_h or _MANY_HOURS))
            return np.asarray(nodes * self.node_devices + faster)
        return self.dollars(nodes, hours)
