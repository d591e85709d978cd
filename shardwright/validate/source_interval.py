"""Intervals of runs whose whole source was left out: what a new source would get.

A run of a source that the bands have never seen either belongs to a software and device of which
other sources have rows enough, and takes the band of those, or it takes the band of whole sources
left out, here of the other ones alone.
"""

from __future__ import annotations

from dataclasses import replace

from shardwright.validate.cross_fit import Array, FitTable
from shardwright.validate.groups import source_of
from simulator.training_run.fit.interval import (
    UNSEEN,
    UNSEEN_STRANGE,
    Band,
    bands,
    group_band,
    step_interval,
    step_regimes_of,
    unseen_regime,
)
from simulator.training_run.framework.framework import load_framework
from simulator.values.prediction import Interval


def step_bands(
    table: FitTable, fold_s: Array, source_s: Array, *, without: str = ""
) -> dict[str, Band]:
    """The bands of step times by regime, and of sources left out, from the rows of all but one.

    Empty where there is no other source: `step_interval` then takes the shipped ones.
    A regime that one source alone makes says nothing of how far another one may be: its band
    reaches at least as far as `unseen`. The jobs that stall because their host waits for messages
    between nodes (blocked_host.py) say nothing of other frameworks.

    fold_s, source_s  [runs] step times predicted with a fold, and with the whole source left out
    """
    regimes: dict[str, list[float]] = {}
    unseen: dict[str, dict[str, list[float]]] = {UNSEEN: {}, UNSEEN_STRANGE: {}}
    makers: dict[str, set[str]] = {}
    for i, run in enumerate(table.runs):
        source = source_of(run.id)
        if source == without:
            continue
        if not (load_framework(run.stack).blocking_messages and run.num_nodes > 1):
            ratio = float(table.measured_s[i] / source_s[i])
            unseen[unseen_regime(run)].setdefault(source, []).append(ratio)
        for name in step_regimes_of(run):
            regimes.setdefault(name, []).append(float(table.measured_s[i] / fold_s[i]))
            makers.setdefault(name, set()).add(source)
    whole = {name: group_band(found) for name, found in unseen.items() if found}
    if not whole:
        return {}
    plain = whole.setdefault(UNSEEN, next(iter(whole.values())))
    whole[UNSEEN_STRANGE] = _reaching(whole.get(UNSEEN_STRANGE, plain), plain)
    known = {
        name: band if len(makers[name]) > 1 else _reaching(band, plain)
        for name, band in bands(regimes).items()
    }
    return known | whole


def _reaching(band: Band, other: Band) -> Band:
    return replace(band, low=min(band.low, other.low), high=max(band.high, other.high))


def source_intervals(table: FitTable, fold_s: Array, source_s: Array) -> tuple[Interval, ...]:
    """[runs] 90 % intervals of step times, each from the rows of other sources alone."""
    sources = [source_of(run.id) for run in table.runs]
    known = {
        name: step_bands(table, fold_s, source_s, without=name) for name in sorted(set(sources))
    }
    return tuple(
        step_interval(run, float(source_s[i]), known[sources[i]])
        for i, run in enumerate(table.runs)
    )
