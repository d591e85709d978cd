"""Bubbles: the part of a step in which a pipeline rank has nothing to do."""

from __future__ import annotations

from simulator.schedules.timeline import Timeline


def longest_rank_s(timeline: Timeline) -> float:
    """Seconds of the longest rank, from its own first action to its own last.

    The cost of Qi et al. (arXiv 2401.10241, section 5.3 and equation 3). Less than the makespan
    where ranks begin one after another and may end so, which needs an optimizer step that waits
    for no other rank (their section 4).
    """
    ranks = range(len(timeline.lasts))
    return max(timeline.rank_end_s(rank) - timeline.rank_start_s(rank) for rank in ranks)
