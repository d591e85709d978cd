"""The lower bound of a cell: no plan of the cell has a smaller step time.

Symbols as in chain/problem.py; W is the time of all blocks for one micro-batch with every block
at its fastest strategy, b_last the last block's, R the least time per micro-batch that the busiest
of p ranks can have when blocks are dealt out: whole ones to ranks as fast as the fastest
(`least_busiest_s`), or, to ranks of unlike speeds, parts of them (`unlike_busiest_s`) and as many
to each as near-even stages hold at least (`near_even_busiest_s`).

1f1b, gpipe   step >= W + (p - 1) send + tail + (M - 1) b_last
              step >= W + (p - 1) send + tail + (M - p) R
              step >= M R + tail
              step >= W + (p - 1) send + tail + (M - 1) W / p          where M > p
              The last sums the steady paths of all stages with weights that telescope
              (lambda_0 = c / (M-p), lambda_j = c (M-p-1) / ((M-p+j-1) (M-p+j)),
              c = (M-1) / p), so that every stage's time has the same factor: no split, however
              uneven, does better than the even one.
interleaved   step >= M max(W / p, R) + any_tail: the busiest rank's own work;
              step >= W + (p v - 1) send + (M - 1) b_last + any_tail: one micro-batch through all
              p v stages, and all of them through the last
split backward   the first of these

tail is what a stage that begins with block 0 needs after its last backward, at least; any_tail
what any stage needs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.cell import Cell
from planner.chain.problem import Array
from simulator.schedules.schedule import schedule_kind

_OTHERS = 4  # blocks that are not of the repeated kind: five have 52 groupings, four 15


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainTotals:
    """Sums over the chain of blocks for the bound of a cell, at the fastest strategies.

    total_s, busiest_s, last_s  W, R, b_last
    send_s          least time of one crossing between stages, forward and back
    tail_s, any_tail_s  least time of the first, and of any stage, after its last backward
    """

    total_s: float
    busiest_s: float
    last_s: float
    send_s: float
    tail_s: float
    any_tail_s: float


def lower_bound(cell: Cell, totals: ChainTotals) -> float:
    """Lower bound in seconds on every plan of the cell."""
    p, m, t = cell.degrees.pp, cell.num_microbatches, totals
    if cell.needs_timeline:
        through = 0.0
        if schedule_kind(cell.schedule).is_interleaved:
            through = t.total_s + (cell.degrees.num_stages - 1) * t.send_s + (m - 1) * t.last_s
        return max(m * t.total_s / p, m * t.busiest_s, through) + t.any_tail_s
    window = 1 if cell.schedule == "gpipe" else p
    steady = max((m - 1) * t.last_s, (m - window) * t.busiest_s)
    if m > window:
        steady = max(steady, (m - 1) * t.total_s / p)
    return max(t.total_s + (p - 1) * t.send_s + steady, m * t.busiest_s) + t.tail_s


def least_busiest_s(fastest: Array, kinds: Sequence[int], num_ranks: int) -> float:
    """The least time of the busiest of `num_ranks` ranks that share whole blocks, in any order.

    Exact for one repeated kind and a few other blocks (an embedding, a head): for each way to put
    these together, a rank takes as many repeated blocks as fit under the limit beside them, and
    the limit is the least at which all are taken. With more than four other blocks only the
    repeated kind is counted.
    """
    kind, count = Counter(kinds).most_common(1)[0]
    unit = float(fastest[list(kinds).index(kind)])
    others = [float(time) for time, name in zip(fastest, kinds, strict=True) if name != kind]
    longest = float(fastest.max())
    if len(others) > _OTHERS:
        return max(longest, math.ceil(count / num_ranks) * unit)
    least = math.inf
    for groups in _groupings(others):
        if len(groups) > num_ranks:
            continue
        loads = [*(sum(group) for group in groups), *[0.0] * (num_ranks - len(groups))]
        least = min(least, _deal(unit, count, loads))
    return max(longest, least)


def unlike_busiest_s(seconds: Array) -> float:
    """The least time of the busiest of ranks of unlike speeds; seconds [p, n] of blocks on each.

    Weights w of the ranks, of sum 1, bound it from below, however finely blocks are dealt out:
    sum over blocks of min_r w_r t_rb is no more than sum_r w_r T_r, the ranks' times T, and so no
    more than the longest of them (the dual of the linear program of unrelated machines: Lenstra,
    Shmoys and Tardos, Mathematical Programming 46, 1990). With the ranks' speeds as weights that is
    the least itself where a rank is as much faster in every block.

    Llama 3.1 8B on 8 H100 and 8 A100 (docs/clusters.md) ends within 1.3 % of the bound with it,
    within 32 % without (2026-11-24).
    """
    speed = 1.0 / seconds.sum(axis=1)
    return float((seconds * (speed / speed.sum())[:, None]).min(axis=0).sum())


def near_even_busiest_s(seconds: Array, fewest: int, *, any_order: bool = False) -> float:
    """The least time of the busiest of two ranks or more that each hold `fewest` blocks at least,
    the first one the first block and the last one the last.

    seconds    [p, n] of each block on each rank
    any_order  the blocks may stand in another order, and any of them first and last
    """
    if any_order:
        return float(np.sort(seconds, axis=1)[:, :fewest].sum(axis=1).max())
    inner = np.sort(seconds[:, 1:-1], axis=1)
    least = inner[:, :fewest].sum(axis=1)
    for rank in (0, -1):
        least[rank] = seconds[rank, rank] + inner[rank, : fewest - 1].sum()
    return float(least.max())


def _deal(unit: float, count: int, loads: list[float]) -> float:
    """The highest load after each of `count` units went to the rank that it loads least."""
    ranks = sorted(loads)
    for _ in range(count):
        ranks.sort()
        ranks[0] += unit
    return max(ranks)


def _groupings(items: list[float]) -> list[list[list[float]]]:
    """All ways to split items into groups."""
    if not items:
        return [[]]
    found: list[list[list[float]]] = []
    for rest in _groupings(items[1:]):
        found.append([[items[0]], *rest])
        for index in range(len(rest)):
            found.append([*rest[:index], [items[0], *rest[index]], *rest[index + 1 :]])
    return found
