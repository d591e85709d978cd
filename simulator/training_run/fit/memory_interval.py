"""90 % intervals of predicted peaks, and the margin that a layout needs to fit.

There are two widths, for two questions:

- How far is the peak of a run of a new source from its prediction? Sources differ (`between`:
effects common to a source's rows, such as a version or the tool that printed them), and so do the
rows of a source (`within`). Both are standard deviations of log(measured / predicted), with peaks
predicted by a fit without the source. The variances add up.
- With which probability does a layout run out of memory? Its framework is known, so the margin
comes from the residuals of that framework's rows in cross-validation (`margins`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import NormalDist

from profiles.document import read_document
from simulator.training_run.framework.framework import memory_of
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import COEFFICIENTS_FILE
from simulator.values.prediction import Interval

MEMORY_INTERVALS_SCHEMA = "shardwright/memory-intervals@1"
MEMORY_INTERVALS_FILE = COEFFICIENTS_FILE.with_name("memory_intervals.toml")
EVERY = "*"
# Share of the residuals above, and below, a band or interval.
_TAIL = 0.05
_OF_NINE_TENTHS = NormalDist().inv_cdf(1.0 - _TAIL)
# `between` of a framework whose memory was never compared with a measured peak: root mean square of
# the median log(measured / predicted) of four sources, predicted by release c731d44, to which their
# frameworks were new (FlagPerf 0.14, torchao 0.05, Kwai 0.24, vocabulary parallelism 0.83).
NEVER_COMPARED = 0.44


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Ratio of measured to predicted peak: 5 % of held-out rows are below `low`, 5 % above
    `high`."""

    low: float
    high: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpread:
    """Standard deviations of log(measured / predicted) of peaks: of the medians of sources
    (`between`), and of a source's rows around their median (`within`)."""

    between: float
    within: float
    rows: int
    sources: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryIntervalFile:
    """profiles/data/calibration/memory_intervals.toml; margins  bands by framework."""

    source: str
    method: str
    date: str
    spread: SourceSpread
    margins: Mapping[str, Band] = field(default_factory=dict)


@functools.cache
def shipped_memory_intervals() -> MemoryIntervalFile:
    """The shipped widths."""
    return read_document(MEMORY_INTERVALS_FILE, MemoryIntervalFile, schema=MEMORY_INTERVALS_SCHEMA)


def memory_interval(
    run: TrainingRun, peak_bytes: float, spread: SourceSpread | None = None
) -> Interval:
    """The interval of a predicted peak; `spread` replaces the shipped one.

    Raises the errors of memory_of.
    """
    factor = math.exp(_OF_NINE_TENTHS * memory_spread(run, spread))
    return Interval(value=peak_bytes, low=peak_bytes / factor, high=peak_bytes * factor)


def memory_spread(run: TrainingRun, spread: SourceSpread | None = None) -> float:
    """The standard deviation of log(measured / predicted) of a run of a new source."""
    known = spread or shipped_memory_intervals().spread
    between = known.between if memory_of(run).compared else max(NEVER_COMPARED, known.between)
    return math.hypot(between, known.within)


def margin_names(run: TrainingRun) -> tuple[str, ...]:
    """Names of the possible bands of a run's margin, the narrowest group first: the framework's
    kept tensors at its ZeRO stage (`FrameworkMemory.name`), its family (the name's first word), all
    frameworks.

    Raises the errors of memory_of.
    """
    name = memory_of(run).name
    return (name, family_of(name), EVERY)


def family_of(name: str) -> str:
    """The name of a family's band: `torchtitan-*` for `torchtitan` and `torchtitan-gathered`."""
    return f"{name.partition('-')[0]}-*"


def memory_margin(run: TrainingRun, risk: float) -> float:
    """The ratio of a run's peak to its prediction that is exceeded with probability `risk`.

    Ratios are taken as log-normal, with the band's two ends as their 5 % and 95 % quantiles.
    """
    return math.exp(_ratios(margin_names(run)).inv_cdf(1.0 - risk))


def out_of_memory_probability(run: TrainingRun, peak_bytes: float, capacity_bytes: float) -> float:
    """The probability that a run with this predicted peak needs more than `capacity_bytes`."""
    return 1.0 - _ratios(margin_names(run)).cdf(math.log(capacity_bytes / peak_bytes))


@functools.cache
def _ratios(names: tuple[str, ...]) -> NormalDist:
    """The logarithm of measured over predicted peaks of the first band among `names`."""
    known = shipped_memory_intervals().margins
    band = next(known[name] for name in names if name in known)
    low, high = math.log(band.low), math.log(band.high)
    return NormalDist((low + high) / 2, (high - low) / (2 * _OF_NINE_TENTHS))
