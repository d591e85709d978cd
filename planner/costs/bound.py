"""The lower bound of a cell: no plan of the cell has a smaller step time.

Symbols as in chain/problem.py. Also: W is the time of all blocks for one micro-batch, each with its
fastest strategy; b_last is that of the last block; R is the minimum time per micro-batch of the
busiest of p equal ranks with whole blocks (`least_busiest_s`). Unequal ranks and memory count in
the linear program (chain/relaxed_bound.py), which takes a hundred times as long.

1f1b, gpipe   step >= W + (p - 1) send + tail + (M - 1) b_last
              step >= W + (p - 1) send + tail + (M - p) R
              step >= M R + tail
              step >= W + (p - 1) send + tail + (M - 1) W / p          where M > p
              The last is a weighted sum of the steady paths of all stages. Its weights telescope
              (lambda_0 = c / (M-p), lambda_j = c (M-p-1) / ((M-p+j-1) (M-p+j)),
              c = (M-1) / p), so that every stage's time has the same factor, and no uneven split
              has a smaller sum than the even one.
interleaved   step >= M max(W / p, R) + any_tail: the work of the busiest rank;
              step >= W + (p v - 1) send + (M - 1) b_last + any_tail: one micro-batch through all
              p v stages, and all of them through the last
split backward   the first bound of interleaved schedules

tail is a lower bound on the time of the stage with block 0 after its last backward; any_tail is the
same for the fastest stage.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from planner.cell import Cell
from planner.chain.problem import Array
from simulator.schedules.schedule import schedule_kind

_OTHERS = 4  # blocks other than the most frequent kind: five have 52 groupings, four have 15


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainTotals:
    """Sums over the chain of blocks for the bound of a cell, at the fastest strategies.

    total_s, busiest_s, last_s  W, R and b_last of the formulas above, in seconds per micro-batch
    send_s              minimum time of one crossing between stages, forward and back
    tail_s, any_tail_s  minimum time after the last backward, of the first stage and of any stage
    """

    total_s: float
    busiest_s: float
    last_s: float
    send_s: float
    tail_s: float
    any_tail_s: float


def lower_bound(cell: Cell, totals: ChainTotals) -> float:
    """Lower bound in seconds on the step time of every plan of the cell."""
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
    """Minimum time of the busiest of `num_ranks` equal ranks that share whole blocks, in any order.

    Exact for one repeated kind and at most four other blocks (an embedding, a head): for each
    grouping of the others onto ranks, repeated blocks go one by one to the least loaded rank. With
    more than four others, only the repeated kind and the longest block are counted.
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


def _deal(unit: float, count: int, loads: list[float]) -> float:
    """The highest load after giving `count` blocks of `unit` seconds, each to the least loaded
    rank."""
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
