"""What an interleaved rank of equal blocks can do in its memory: least seconds, and a filling.

What a rank of equal blocks computes depends on counts alone: so many blocks under each strategy.
For given counts, the bytes kept at one moment are least when the blocks that save least lie where
most micro-batches are in flight (rearrangement inequality: Hardy, Littlewood,
Polya, Inequalities, theorem 368).

`least_seconds` asks that of a few moments, one at a time, and takes the fastest counts for which
each is within the capacity: no filling is faster. `fill` lays the blocks out in a few orders of the
stages and checks all moments: what it returns fits, and it is the fastest of its rank where it is
as fast as `least_seconds`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.problem import Array
from planner.rank_blocks import Choice, Counts, RankBlocks, compositions

_PLACEMENTS = 10  # of extra blocks among a rank's stages, up to which all are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """What a rank holds: blocks of each of its stages, the strategies of each in chain order, and
    seconds per micro-batch, in all and of each stage."""

    sizes: tuple[int, ...]
    strategies: tuple[tuple[int, ...], ...]
    seconds: float
    stage_seconds: tuple[float, ...]


def least_seconds(ranks: Sequence[RankBlocks], extras: int) -> Array:
    """[ranks] seconds per micro-batch with so many stages of one block more, of ranks that are
    `alike`; infinite where these do not fit."""
    first, v = ranks[0], ranks[0].v
    counts = compositions(int(first.equal.sum()) + extras, first.saved_bytes.size)
    ends = np.cumsum(counts[:, first.by_saved], axis=1)
    saved, seconds = first.saved_bytes[first.by_saved], counts @ first.seconds
    statics = [rank.statics(extras) for rank in ranks]
    room = np.asarray([row.room_bytes for row in statics])
    gradients = np.asarray([row.gradient_bytes for row in statics])
    edges = np.stack([rank.least_edges for rank in ranks])

    def need(held: Array, begun: Array, rise: Array, at: Counts) -> Array:
        spots = np.concatenate(
            [np.repeat(held, first.equal, axis=1), np.sort(held, axis=1)[:, :extras]], axis=1
        )
        most = np.cumsum(-np.sort(-spots, axis=1), axis=1)
        most = np.concatenate([np.zeros((len(held), 1)), most], axis=1)
        kept = np.diff(most[:, ends], axis=2, prepend=0.0) @ saved
        fixed = (held * edges[at]).sum(axis=1) + gradients[at] * begun / v
        return np.asarray(kept + rise + fixed[:, None])

    every = np.arange(len(ranks))
    full = [(rank.moments, rank.fullest) for rank in ranks]
    held = np.asarray([known.held[at] for known, at in full], dtype=float)
    begun = np.asarray([known.begun[at] for known, at in full])
    stages = np.asarray([known.stage[at] for known, at in full])
    asked = [(held, every, need(held, begun, _least_rises(first, counts).T[stages], every))]
    settled = np.asarray([at for at, rank in enumerate(ranks) if rank.average.size], dtype=np.intp)
    if settled.size:
        held = np.stack([ranks[at].average for at in settled])
        begun = np.full(len(settled), v)
        asked.append((held, settled, need(held, begun, _mean_rise(first, counts), settled)))
    best = np.full(len(ranks), np.inf)
    for choice in first.choices:
        fits = np.ones((len(ranks), len(counts)), dtype=bool)
        for held, at, least in asked:
            ends_kept = held @ first.kept_at_ends(choice)
            fits[at] &= least + ends_kept[:, None] <= room[at][:, None]
        fastest = np.where(fits, seconds, np.inf).min(axis=1)
        best = np.minimum(best, fastest + choice.seconds)
    return best


def least_stage_seconds(ranks: Sequence[RankBlocks], turn: int) -> Array:
    """[ranks] seconds of one stage of ranks that are `alike` at least, all others saving what they
    can; infinite where that does not fit."""
    first = ranks[0]
    counts = compositions(int(first.equal[turn]), first.saved_bytes.size)
    saves_most = float(first.saved_bytes.min())
    ends = np.zeros(first.v)
    for block in first.front + first.rear:
        ends[0 if block in first.front else -1] += first.costs.saved_bytes[block].min()
    base = []
    for rank in ranks:
        statics, known = rank.statics(0), rank.moments
        kept = known.held @ (saves_most * rank.equal + rank.least_edges + ends)
        kept += statics.gradient_bytes * known.begun / rank.v - statics.room_bytes
        base.append(kept + rank.back_bytes.min())
    held = np.concatenate([rank.moments.held[:, turn] for rank in ranks])
    over = np.concatenate(base)[:, None] + held[:, None] * (
        counts @ (first.saved_bytes - saves_most)
    )
    starts = np.cumsum([0, *[len(row) for row in base[:-1]]])
    fits = np.maximum.reduceat(over, starts, axis=0) <= 0
    others = (first.front if turn == 0 else ()) + (first.rear if turn == first.v - 1 else ())
    fastest = first.costs.forward_s + first.costs.backward_s.min(axis=1)
    least = np.where(fits, counts @ first.seconds, np.inf).min(axis=1)
    return np.asarray(least + float(sum(fastest[block] for block in others)))


def longest_forward_s(rank: RankBlocks, extras: int) -> float:
    """Forward seconds of the rank's longest stage at most."""
    most = rank.problem.longest_forward_s[rank.problem.chain.slots[rank.rank].costs]
    times = float(most[rank.middle]) * (rank.equal + (extras > 0))
    times[0] += sum(most[block] for block in rank.front)
    times[-1] += sum(most[block] for block in rank.rear)
    return float(times.max())


def fill(rank: RankBlocks, extras: int) -> tuple[Filling, ...]:
    """The fastest fillings found, with so many stages of one block more: each with other stages
    longer, the fastest first, of equal ones that with the least longest stage. Empty where none
    tried fits."""
    counts = compositions(int(rank.equal.sum()) + extras, rank.saved_bytes.size)
    seconds = counts @ rank.seconds
    room = rank.statics(extras).room_bytes
    found: list[tuple[float, float, Filling]] = []
    least = float(least_seconds([rank], extras)[0]) * (1 + 1e-9)
    for longer in _placements(rank, extras):
        best: tuple[float, float, Filling] | None = None
        for order in _orders(rank):
            if best is not None and best[0] <= least:
                break
            laid = _lay(rank, counts, rank.equal + longer, order)
            for choice in rank.choices:
                fits = np.flatnonzero(rank.peaks(laid, longer, choice) <= room)
                if not fits.size:
                    continue
                fastest = int(fits[np.argmin(seconds[fits])])
                time_s = float(seconds[fastest]) + choice.seconds
                if best is None or time_s < best[0] * (1 - 1e-12):
                    filling = _filling(rank, laid[fastest], longer, choice, time_s)
                    best = (time_s, round(max(filling.stage_seconds), 12), filling)
        if best is not None:
            found.append(best)
    return tuple(row[2] for row in sorted(found, key=lambda row: row[:2]))


def _placements(rank: RankBlocks, extras: int) -> list[Counts]:
    """[v] each, 1 for stages of one block more: the least in flight first, then all if
    they are few, else neighbours."""
    chosen = [tuple(sorted(order[:extras])) for order in _orders(rank)]
    if math.comb(rank.v, extras) <= _PLACEMENTS:
        chosen += itertools.combinations(range(rank.v), extras)
    chosen += [tuple(range(at, at + extras)) for at in range(rank.v - extras + 1)]
    found = []
    for stages in dict.fromkeys(chosen):
        longer = np.zeros(rank.v, dtype=np.intp)
        longer[list(stages)] = 1
        found.append(longer)
    return found


def _stage_seconds(rank: RankBlocks, laid: Counts, choice: Choice) -> tuple[float, ...]:
    times = laid @ rank.seconds
    for turn in (0, rank.v - 1):
        for block, strategy in rank.at_end(turn, choice):
            times[turn] += rank.costs.forward_s[block] + rank.costs.backward_s[block, strategy]
    return tuple(times.tolist())


def _least_rises(rank: RankBlocks, counts: Counts) -> Array:
    """[len(counts), v] rise of each stage at least: that of its last block."""
    used = np.where(counts > 0, rank.back, np.inf).min(axis=1, initial=np.inf)
    found = np.repeat(used[:, None], rank.v, axis=1)
    if rank.front and rank.equal[0] == 0:
        found[:, 0] = np.minimum(used, rank.back_bytes[rank.front[-1]].min())
    if rank.rear:
        found[:, -1] = rank.back_bytes[rank.rear[-1]].min()
    return found


def _mean_rise(rank: RankBlocks, counts: Counts) -> Array:
    """[len(counts)] mean of the stages' rises at least: a strategy ends no more stages than it
    has blocks."""
    rise = rank.back
    total, left = 0.0, rank.v
    if rank.front and rank.equal[0] == 0:
        total, left = (
            total + float(min(rise.min(), rank.back_bytes[rank.front[-1]].min())),
            left - 1,
        )
    if rank.rear:
        total, left = total + float(rank.back_bytes[rank.rear[-1]].min()), left - 1
    open_stages = np.full(len(counts), left)
    found = np.full(len(counts), total)
    for k in np.argsort(rise, kind="stable"):
        ended = np.minimum(open_stages, counts[:, k])
        found += ended * rise[k]
        open_stages = open_stages - ended
    return found / rank.v


def _orders(rank: RankBlocks) -> tuple[tuple[int, ...], ...]:
    """Stages by rising weight of what they keep, by several weights; equal ones from the middle
    of the chain first."""
    weights = [
        rank.moments.held[rank.fullest],
        -np.arange(rank.v),
        rank.moments.held.max(axis=0),
    ]
    if rank.average.size:
        weights = [rank.average, *weights]
    from_middle = np.abs(np.arange(rank.v) - (rank.v - 1) / 2)
    orders = [tuple(np.lexsort((from_middle, weight)).tolist()) for weight in weights]
    return tuple(dict.fromkeys(orders))


def _lay(rank: RankBlocks, counts: Counts, sizes: Counts, rising: tuple[int, ...]) -> Counts:
    """[len(counts), v, S]: the blocks that save least in the last of the stages given."""
    order = rank.by_saved
    stages = np.asarray(rising[::-1])
    upto = np.cumsum(counts[:, order], axis=1)
    ends = np.cumsum(sizes[stages])
    found = np.zeros((len(counts), rank.v, rank.saved_bytes.size), dtype=np.intp)
    before = np.zeros((len(counts), 1), dtype=np.intp)
    for stage, end in zip(stages.tolist(), ends.tolist(), strict=True):
        reached = np.minimum(upto, end)
        within = np.maximum(reached - before, 0)
        found[:, stage, order] = np.diff(within, axis=1, prepend=0)
        before = np.full_like(before, end)
    return found


def filling(rank: RankBlocks, laid: Counts, longer: Counts, choice: Choice) -> Filling | None:
    """The filling with these counts [v, S]; None where it does not fit."""
    room = rank.statics(int(longer.sum())).room_bytes
    if rank.peaks(laid[None], longer, choice)[0] > room:
        return None
    seconds = float((laid @ rank.seconds).sum()) + choice.seconds
    return _filling(rank, laid, longer, choice, seconds)


def _filling(
    rank: RankBlocks, laid: Counts, longer: Counts, choice: Choice, seconds: float
) -> Filling:
    strategies = []
    for stage in range(rank.v):
        mine = [k for k in rank.falling() for _ in range(int(laid[stage, k]))]
        front = choice.strategies[: len(rank.front)] if stage == 0 else ()
        rear = choice.strategies[len(rank.front) :] if stage == rank.v - 1 else ()
        strategies.append((*front, *mine, *rear))
    sizes = tuple((rank.problem.least_blocks + longer).tolist())
    return Filling(
        sizes=sizes,
        strategies=tuple(strategies),
        seconds=seconds,
        stage_seconds=_stage_seconds(rank, laid, choice),
    )
