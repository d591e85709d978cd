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
    events: list[Event] = []

    def add(pp_rank: int, stream: str, name: str, start_s: float, end_s: float) -> None:
        rank = plan.degrees.rank(pp=pp_rank)
        events.append(Event(rank=rank, stream=stream, name=name, start_s=start_s, end_s=end_s))

    for i, action in enumerate(timeline.actions):
        pp_rank, start, end = timeline.ranks[i], timeline.start_s[i], timeline.end_s[i]
        add(pp_rank, "compute", str(action), start, end)
        if action.kind is ActionKind.BACKWARD_WEIGHT:
            continue
        forward = action.kind is ActionKind.FORWARD
        cut = action.stage + 1 if forward else action.stage
        crossing_s = send_s[cut] if 0 < cut < len(send_s) else 0.0
        if crossing_s > 0:
            name = f"{action.stage}SEND_{'F' if forward else 'B'}{action.microbatch}"
            add(pp_rank, "send", name, end, end + crossing_s)
    for pp_rank, (exchange, optimizer) in enumerate(zip(exchange_s, optimizer_s, strict=True)):
        begin = timeline.rank_end_s(pp_rank)
        middle = begin + exchange
        if exchange > 0:
            add(pp_rank, "collective", "data_parallel", begin, middle)
        add(pp_rank, "compute", "optimizer", middle, middle + optimizer)
    return tuple(events)
