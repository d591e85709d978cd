"""The bubble rate that the literature prints, of a timeline."""

from __future__ import annotations

from simulator.schedules.timeline import Timeline, longest_rank_s


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
