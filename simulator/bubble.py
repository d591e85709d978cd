"""Bubbles: the part of a step in which a pipeline rank has nothing to do."""

from __future__ import annotations

from simulator.timeline import Timeline


def longest_rank_s(timeline: Timeline) -> float:
    """Seconds of the longest rank, from its own first action to its own last.

    The cost of Qi et al. (arXiv 2401.10241, section 5.3 and equation 3). Less than the makespan
    where ranks begin one after another and may end so, which needs an optimizer step that waits
    for no other rank (their section 4).
    """
    ranks = range(len(timeline.lasts))
    return max(timeline.rank_end_s(rank) - timeline.rank_start_s(rank) for rank in ranks)


def busiest_rank_s(timeline: Timeline) -> float:
    """Seconds of work of the rank that has most of it."""
    busy = [0.0] * len(timeline.lasts)
    for rank, start, end in zip(timeline.ranks, timeline.start_s, timeline.end_s, strict=True):
        busy[rank] += end - start
    return max(busy)


def bubble_rate(timeline: Timeline) -> float:
    """(cost - work) / cost of the longest rank, in [0, 1): section 5.3 of arXiv 2401.10241.

    Theirs is for ranks of equal work m (T_F + T_B + T_W); here it is that of the busiest rank.
    """
    cost = longest_rank_s(timeline)
    return (cost - busiest_rank_s(timeline)) / cost
