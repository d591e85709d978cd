"""The timeline: start and end of each action of a schedule.

Actions of a rank run one after another in the schedule's order. An action also waits for its
neighbor's output, which arrives after the time of a send. The start times are the longest paths of
this directed acyclic graph (`action_graph`). One pass over arrays computes the times, at about 3
million actions a second (one core of an EPYC, 2026-11-21); networkx takes 4 to 16 times as long
for a topological order (131,072 and 1,024 actions, 2026-11-24).
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InputError
from simulator.schedules.durations import Durations as Durations
from simulator.schedules.schedule import Action, Schedule, action_graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Start and end seconds of every action, in the order of `actions` (rank by rank).

    lasts  index of each rank's last action
    """

    actions: tuple[Action, ...]
    ranks: tuple[int, ...]
    start_s: tuple[float, ...]
    end_s: tuple[float, ...]
    lasts: tuple[int, ...]

    def rank_end_s(self, rank: int) -> float:
        """End of a rank's last action, in seconds."""
        return self.end_s[self.lasts[rank]]

    def rank_start_s(self, rank: int) -> float:
        """Start of a rank's first action, in seconds."""
        return self.start_s[self.lasts[rank - 1] + 1 if rank else 0]


def simulate(schedule: Schedule, durations: Durations) -> Timeline:
    """Timeline of the schedule with these durations; complexity is linear in the actions."""
    if len(durations.forward_s) != schedule.num_stages:
        raise InputError(
            f"the schedule has {schedule.num_stages} stages, durations are given for "
            f"{len(durations.forward_s)}"
        )
    graph = action_graph(schedule)
    lengths = durations.lengths()
    sends = [*durations.send_forward_s, *durations.send_backward_s]
    crossings = [0.0, *sends, *(send_s + durations.ramp_send_s for send_s in sends)]
    before, source, crossing, length = graph.before, graph.source, graph.crossing, graph.length
    start = [0.0] * len(length)
    end = [0.0] * (len(length) + 1)  # one more, always 0: index -1 reads it
    for number in graph.order:
        time_s = end[before[number]]
        awaited = source[number]
        if awaited >= 0:
            arrival = end[awaited] + crossings[crossing[number]]
            if arrival > time_s:
                time_s = arrival
        start[number] = time_s
        end[number] = time_s + lengths[length[number]]
    end.pop()
    return Timeline(
        actions=graph.actions,
        ranks=graph.ranks,
        start_s=tuple(start),
        end_s=tuple(end),
        lasts=graph.lasts,
    )


def longest_rank_s(timeline: Timeline) -> float:
    """Largest time between a rank's first and last action, in seconds.

    The cost of Qi et al. (arXiv 2401.10241, section 5.3 and equation 3). It is less than the
    makespan if ranks start and end at different times, which needs an optimizer step without
    synchronization of all ranks (their section 4).
    """
    ranks = range(len(timeline.lasts))
    return max(timeline.rank_end_s(rank) - timeline.rank_start_s(rank) for rank in ranks)
