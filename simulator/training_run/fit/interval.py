"""90 % intervals of described runs: bands of the residuals of rows that were left out.

A run of somebody else is as strange as those of a source that nobody saw. How far its step may lie
off follows from how well the coefficients are known that it rests on (step_spread.py), up to a
ceiling; how many of those widths hold nine of ten, from rows left out with their source and with a
fold (shardwright/validate/source_interval.py). Jobs whose host waits for messages between nodes
stall as no coefficient says: they have conformal bands of their rows. The regimes of a peak are
those of `memory_regimes_of`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from profiles.document import read_document
from simulator.training_run.fit.step_spread import Array, run_spreads
from simulator.training_run.framework.framework import load_framework, memory_of
from simulator.training_run.framework.run_conditions import LOW_PRECISIONS
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficient_owner import software_of
from simulator.training_run.step.coefficients import COEFFICIENTS_FILE
from simulator.values.prediction import Interval

INTERVALS_SCHEMA = "shardwright/run-intervals@3"
INTERVALS_FILE = COEFFICIENTS_FILE.with_name("run_intervals.toml")
# A band needs so many residuals; the ends of a band of 15 to 38 are its extremes.
FEWEST = 15
_EVERY = "*"
# Share of the residuals beyond each end of a band.
_TAIL = 0.05
# How far the seconds may be off that nothing fitted tells of: levels beyond the network, host
# memory, compression, local steps, layers in bf16, uneven experts and the recurrences of states:
# half of them, assumed. The optimizer in host memory was within 13 % of what was measured
# (host_offload.py), Mamba-2 layers within about 20 %; of the others nothing was.
UNFITTED_UNCERTAINTY = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Measured over predicted: 5 % of left-out rows lie below `low`, 5 % above `high`."""

    low: float
    high: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBands:
    """Of step times: the band of residuals in widths, and the bands of jobs that may stall.

    low, high   the logarithms of measured over predicted, in widths (`step_width`), between which
                nine of ten rows that were left out lie
    ceiling     the width of a step of whose coefficients nothing is known, however far the fit
                would let them lie
    rows, sources   that this was found on
    stalled     by regime (`stalled_regimes`) measured over predicted
    """

    low: float
    high: float
    ceiling: float
    rows: int
    sources: int
    stalled: Mapping[str, Band] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalFile:
    """profiles/data/calibration/run_intervals.toml; memory  bands by regime."""

    source: str
    method: str
    date: str
    step: StepBands
    memory: Mapping[str, Band] = field(default_factory=dict)


@functools.cache
def shipped_intervals() -> IntervalFile:
    """The bands that the project ships."""
    return read_document(INTERVALS_FILE, IntervalFile, schema=INTERVALS_SCHEMA)


def may_stall(run: TrainingRun) -> bool:
    """Whether a run's host waits for messages between nodes: some such jobs take many times as long
    (blocked_host.py)."""
    return load_framework(run.stack).blocking_messages and run.num_nodes > 1


def stalled_regimes(run: TrainingRun) -> tuple[str, ...]:
    """The regimes of the step time of a run that may stall, the narrowest first: by size of machine
    and by whether stages lie on several nodes."""
    size = "few nodes" if run.num_nodes <= 8 else "many nodes"
    cut = "stages between nodes" if run.pp > 1 else "no stages between nodes"
    return f"{software_of(run)}, {size}, {cut}", f"{software_of(run)}, {cut}"


def step_interval(
    run: TrainingRun, time_s: float, spread: float | None = None, known: StepBands | None = None
) -> Interval:
    """The interval of a predicted step time.

    spread  of its logarithm (step_spread.py); None for that of the shipped coefficients
    known   bands other than the shipped ones
    """
    if spread is None:
        spread = float(run_spreads([run])[0])
    if known is None:
        known = shipped_intervals().step
    found = step_band(spread, known)
    if may_stall(run):
        name = next((name for name in stalled_regimes(run) if name in known.stalled), None)
        if name is not None:
            stalled = known.stalled[name]
            found = Band(
                low=min(found.low, stalled.low),
                high=max(found.high, stalled.high),
                rows=stalled.rows,
            )
    return _within(found, time_s)


def step_band(spread: float, known: StepBands) -> Band:
    """Measured over predicted of a step of a spread."""
    width = float(step_width(np.asarray(spread), known.ceiling))
    return Band(low=math.exp(known.low * width), high=math.exp(known.high * width), rows=known.rows)


def step_width(spread: Array, ceiling: float) -> Array:
    """What residuals of steps are counted in: their spread, which nears the ceiling from below."""
    return np.asarray(spread / np.sqrt(1.0 + (spread / ceiling) ** 2))


def widened(found: Interval, unfitted_s: float) -> Interval:
    """The interval of a step, half of the seconds that no fitted run had wider on either side."""
    off_s = UNFITTED_UNCERTAINTY * abs(unfitted_s)
    low = max(found.low - off_s, min(found.low, 0.5 * found.value))
    return Interval(value=found.value, low=low, high=found.high + off_s)


def memory_regimes_of(run: TrainingRun) -> tuple[str, ...]:
    """The regimes of a run's memory, the narrowest first: what was not predicted of a peak goes
    with what the stack keeps (its name, the precision, adapters), with collectives that
    hold tensors back (tensor parallelism and its reach) and with what is in flight. What the device
    showed holds blocks that the allocator could have given back: it says nothing of those regimes,
    nor of what fits.

    Raises what memory_of raises.
    """
    stack = memory_of(run).name
    if run.memory_kind == "device":
        return (f"as the device shows, {stack}", "as the device shows", _EVERY)
    low = run.precision in LOW_PRECISIONS
    kind = "adapters" if run.lora else "8 bit or less" if low else "16 bit"
    reach = "in a node" if run.tp <= run.node_devices else "across nodes"
    tensor = f"tp {reach}" if run.tp > 1 else "no tp"
    depth = "pipeline" if run.pp > 1 else "no pipeline"
    return (
        f"{stack}, {kind}, {tensor}, {depth}",
        f"{stack}, {kind}, {tensor}",
        f"{stack}, {kind}",
        stack,
        _EVERY,
    )


def memory_regime(run: TrainingRun, known: Mapping[str, Band]) -> str:
    """The regime whose band a run's peak takes."""
    return next(name for name in memory_regimes_of(run) if name in known)


def memory_interval(
    run: TrainingRun, peak_bytes: float, known: Mapping[str, Band] | None = None
) -> Interval:
    """The interval of a predicted peak, of the shipped bands, or of others where there are any."""
    if not known:
        known = shipped_intervals().memory
    return _applied(known, memory_regimes_of(run), peak_bytes)


def memory_margin(run: TrainingRun, risk: float) -> float:
    """The ratio of a run's peak to its prediction that is exceeded with probability `risk`.

    Ratios are taken as log-normal, with the band's two ends as their 5 % and 95 % quantiles.
    """
    return math.exp(_ratios(run).inv_cdf(1.0 - risk))


def out_of_memory_probability(run: TrainingRun, peak_bytes: float, capacity_bytes: float) -> float:
    """The probability that a run of this predicted peak needs more than `capacity_bytes`."""
    return 1.0 - _ratios(run).cdf(math.log(capacity_bytes / peak_bytes))


def _ratios(run: TrainingRun) -> NormalDist:
    """The logarithm of measured over predicted peaks of runs like this."""
    return _ratios_in(memory_regimes_of(run))


@functools.cache
def _ratios_in(regimes: tuple[str, ...]) -> NormalDist:
    known = shipped_intervals().memory
    band = next(known[name] for name in regimes if name in known)
    low, high = math.log(band.low), math.log(band.high)
    return NormalDist((low + high) / 2, (high - low) / (2 * NormalDist().inv_cdf(1.0 - _TAIL)))


def _applied(bands: Mapping[str, Band], names: Sequence[str], value: float) -> Interval:
    return _within(next(bands[name] for name in names if name in bands), value)


def _within(band: Band, value: float) -> Interval:
    return Interval(value=value, low=value * min(1.0, band.low), high=value * max(1.0, band.high))


def band_of(ratios: Sequence[float]) -> Band:
    """The band of measured over predicted ratios, each end with the finite-sample rank of split
    conformal prediction (ceil(0.95 (n + 1)) of n; Lei et al., JASA 113(523), 2018, section 2)."""
    ordered = sorted(ratios)
    count = len(ordered)
    rank = min(count, math.ceil(0.95 * (count + 1)))
    return Band(low=ordered[count - rank], high=ordered[rank - 1], rows=count)


def bands(ratios: Mapping[str, Sequence[float]]) -> dict[str, Band]:
    """The band of every regime with enough rows, and of all."""
    return {
        name: band_of(found)
        for name, found in sorted(ratios.items())
        if len(found) >= FEWEST or name == _EVERY
    }
