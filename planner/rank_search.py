"""A search for a faster filling of an interleaved rank, through all there are.

Stage by stage, every mix of strategies is tried beside those of the stages before; a partial
filling is dropped where the rest cannot be within the capacity at some moment, saving all it can,
or cannot be fast enough, at its fastest. Memory here is that of backwards alone, as in
`least_seconds`, so that `nothing found` is a proof.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.rank_blocks import Choice, RankBlocks
from planner.rank_fill import Filling, filling

Counts = npt.NDArray[np.intp]
_MOST = 20_000  # partial fillings that are looked at; beyond it the question stays open


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """The least seconds of any filling, and a filling that reaches them, if one that fits was
    found."""

    seconds: float
    filling: Filling | None


def search_filling(rank: RankBlocks, extras: int, within_s: float) -> Searched | None:
    """The fastest filling with so many stages of one block more; `within_s` if none is faster.
    None where there are too many to tell."""
    best = Searched(seconds=within_s, filling=None)
    for choice in rank.choices:
        found = _search(rank, extras, best.seconds - choice.seconds, choice)
        if found is None:
            return None
        if found.seconds + choice.seconds < best.seconds:
            best = Searched(seconds=found.seconds + choice.seconds, filling=found.filling)
    return best


def _search(rank: RankBlocks, extras: int, within_s: float, choice: Choice) -> Searched | None:
    more = (0, 1) if rank.problem.num_extras else (0,)
    known, v = rank.moments, rank.v
    statics = rank.statics(extras)
    room, share = statics.room_bytes, statics.gradient_bytes / v
    runs = (known.stage[None, :] == np.arange(v)[:, None]).astype(float)
    ways = [[rank.ways(turn, longer, choice) for longer in more] for turn in range(v)]
    counts = [np.concatenate([way.counts for way in row]) for row in ways]
    longer = [np.repeat(more, [len(way.seconds) for way in row]) for row in ways]
    seconds = [np.concatenate([way.seconds for way in row]) for row in ways]
    # [K, moments] of every way, and the least of a stage: what those to come take at least.
    takes = [
        np.concatenate([way.kept_bytes for way in row])[:, None] * known.held[:, turn]
        + np.concatenate([way.rise_bytes for way in row])[:, None] * runs[turn]
        for turn, row in enumerate(ways)
    ]
    least = np.stack([take.min(axis=0) for take in takes])
    fastest = np.asarray([times.min() for times in seconds])
    need = (share * known.begun + least.sum(axis=0))[None, :]
    time_s, used = np.asarray([float(fastest.sum())]), np.zeros(1, dtype=np.intp)
    picked = np.zeros((1, 0), dtype=np.intp)
    for turn in range(v):
        count = len(seconds[turn])
        if len(time_s) * count > _MOST:
            return None
        times = (time_s[:, None] + (seconds[turn] - fastest[turn])).ravel()
        extra = (used[:, None] + longer[turn]).ravel()
        left = v - 1 - turn
        tried = np.flatnonzero(
            (times < within_s * (1 - 1e-12)) & (extra <= extras) & (extra + left >= extras)
        )
        before, way = tried // count, tried % count
        after = need[before] + (takes[turn] - least[turn])[way]
        fits = np.flatnonzero(after.max(axis=1) <= room)
        if not fits.size:
            return Searched(seconds=within_s, filling=None)
        need, time_s, used = after[fits], times[tried[fits]], extra[tried[fits]]
        picked = np.column_stack([picked[before[fits]], way[fits]])
    at = int(np.argmin(time_s))
    laid = np.stack([counts[turn][picked[at, turn]] for turn in range(v)])
    longer_of = np.asarray([longer[turn][picked[at, turn]] for turn in range(v)])
    return Searched(seconds=float(time_s[at]), filling=filling(rank, laid, longer_of, choice))
