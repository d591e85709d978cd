"""Widths of the intervals of peaks, from measured over predicted peaks of rows that were left out.

What they are used for: simulator/training_run/fit/memory_interval.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from simulator.training_run.fit.memory_interval import EVERY, Band, SourceSpread

# A band needs so many residuals; the ends of a band of 15 to 38 are its extremes.
FEWEST = 15


def source_spread(ratios: Mapping[str, Sequence[float]]) -> SourceSpread | None:
    """The spread of measured over predicted ratios by source; None for fewer than two sources.

    Every source counts once, whatever its rows. A source of one row has no `within`.
    """
    if len(ratios) < 2:
        return None
    logs = [[math.log(ratio) for ratio in rows] for rows in ratios.values()]
    medians = [median(rows) for rows in logs]
    within = [
        fmean((one - middle) ** 2 for one in rows)
        for rows, middle in zip(logs, medians, strict=True)
        if len(rows) > 1
    ]
    return SourceSpread(
        between=math.sqrt(fmean(middle**2 for middle in medians)),
        within=math.sqrt(fmean(within)) if within else 0.0,
        rows=sum(map(len, logs)),
        sources=len(logs),
    )


def is_family(name: str) -> bool:
    """Whether a band is of a family."""
    return name.endswith("-*")


def band_of(ratios: Sequence[float]) -> Band:
    """The band of measured over predicted ratios, each end with the finite-sample rank of split
    conformal prediction (ceil(0.95 (n + 1)) of n; Lei et al., JASA 113(523), 2018, section 2)."""
    ordered = sorted(ratios)
    count = len(ordered)
    rank = min(count, math.ceil(0.95 * (count + 1)))
    return Band(low=ordered[count - rank], high=ordered[rank - 1], rows=count)


def bands(ratios: Mapping[str, Sequence[float]]) -> dict[str, Band]:
    """The band of every name with enough rows, and of all."""
    return {
        name: band_of(found)
        for name, found in sorted(ratios.items())
        if len(found) >= FEWEST or name == EVERY
    }
