"""The events of a prediction: every action, message, gradient exchange and optimizer step."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.schedules.schedule import ActionKind
from simulator.schedules.timeline import Timeline
from simulator.traced.comm_cost import CommCost
from simulator.traced.step_tail import Tail
from simulator.values.plan import Plan
from simulator.values.prediction import Event


def predicted_events(
    plan: Plan, timeline: Timeline, sends: Sequence[CommCost | None], tails: Sequence[Tail]
) -> tuple[Event, ...]:
    """One replica's timeline: dp rank 0 and tp rank 0 of every pipeline rank.

    sends  cost of crossing the cut before each stage, None where nothing crosses
    """
    events = []
    for i, action in enumerate(timeline.actions):
        rank = plan.rank(timeline.ranks[i])
        start, end = timeline.start_s[i], timeline.end_s[i]
        events.append(
            Event(rank=rank, stream="compute", name=timeline.names[i], start_s=start, end_s=end)
        )
        if action.kind is ActionKind.BACKWARD_WEIGHT:
            continue
        forward = action.kind is ActionKind.FORWARD
        cut = action.stage + 1 if forward else action.stage
        send = sends[cut] if 0 < cut < len(sends) else None
        if send is not None and send.time_s > 0:
            name = f"{action.stage}SEND_{'F' if forward else 'B'}{action.microbatch}"
            events.append(
                Event(rank=rank, stream="send", name=name, start_s=end, end_s=end + send.time_s)
            )
    for pp_rank, tail in enumerate(tails):
        begin = timeline.rank_end_s(pp_rank)
        rank = plan.rank(pp_rank)
        middle = begin + tail.data_parallel_s
        if tail.data_parallel_s > 0:
            events.append(
                Event(
                    rank=rank,
                    stream="collective",
                    name="data_parallel",
                    start_s=begin,
                    end_s=middle,
                )
            )
        events.append(
            Event(
                rank=rank,
                stream="compute",
                name="optimizer",
                start_s=middle,
                end_s=middle + tail.optimizer_s,
            )
        )
    return tuple(events)
