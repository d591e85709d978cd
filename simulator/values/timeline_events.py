"""The events of a prediction: every action, message, gradient exchange and optimizer step."""

from __future__ import annotations

from collections.abc import Sequence

from simulator.schedules.schedule import ActionKind
from simulator.schedules.timeline import Timeline
from simulator.values.plan import Plan
from simulator.values.prediction import Event


def timeline_events(
    plan: Plan,
    timeline: Timeline,
    *,
    send_s: Sequence[float],
    exchange_s: Sequence[float],
    optimizer_s: Sequence[float],
) -> tuple[Event, ...]:
    """One replica's timeline: dp rank 0 and tp rank 0 of every pipeline rank.

    send_s                   seconds to send across the cut before each stage, 0 without a send
    exchange_s, optimizer_s  seconds of every pipeline rank after its last action
    """
    events = []
    for i, action in enumerate(timeline.actions):
        rank = plan.degrees.rank(pp=timeline.ranks[i])
        start, end = timeline.start_s[i], timeline.end_s[i]
        events.append(
            Event(rank=rank, stream="compute", name=str(action), start_s=start, end_s=end)
        )
        if action.kind is ActionKind.BACKWARD_WEIGHT:
            continue
        forward = action.kind is ActionKind.FORWARD
        cut = action.stage + 1 if forward else action.stage
        crossing_s = send_s[cut] if 0 < cut < len(send_s) else 0.0
        if crossing_s > 0:
            name = f"{action.stage}SEND_{'F' if forward else 'B'}{action.microbatch}"
            events.append(
                Event(rank=rank, stream="send", name=name, start_s=end, end_s=end + crossing_s)
            )
    for pp_rank, (exchange, optimizer) in enumerate(zip(exchange_s, optimizer_s, strict=True)):
        begin = timeline.rank_end_s(pp_rank)
        rank = plan.degrees.rank(pp=pp_rank)
        middle = begin + exchange
        if exchange > 0:
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
                end_s=middle + optimizer,
            )
        )
    return tuple(events)
