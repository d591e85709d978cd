"""Whether the messages of a pipeline can hang where the transport keeps an order, as NCCL does.

A rank gives its device computations and messages and waits for none. Computations run one after
the other; a message begins when the computations that were given before it are done, when the
messages before it in its queue are over, and when its partner has begun the same message
(rendezvous). A computation waits for what it receives, and the executor lets some wait for messages
that were sent (executor/torch_pipeline.py, Messages). torch runs the messages of one communicator
one after the other: `Queue.RANK` is that of a whole pipeline's, in which every order that hangs in
a queue per pair, or per pair and direction, hangs too.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from torch.distributed.pipelining.schedules import _Action, _add_send_recv, _ComputationType

from simulator.schedules.schedule import Schedule

_SENDS = {_ComputationType.SEND_F: "F", _ComputationType.SEND_B: "B"}
_RECEIVES = {_ComputationType.RECV_F: "F", _ComputationType.RECV_B: "B"}
_FORWARD = _ComputationType.FORWARD
_INPUT_BACKWARDS = (_ComputationType.FULL_BACKWARD, _ComputationType.BACKWARD_INPUT)

Key = tuple[str, int, int]
"""A message: F or B, the stage that sends it, its micro-batch."""


class Queue(Enum):
    """What shares one queue of messages on a rank."""

    RANK = "rank"
    PAIR = "pair"
    DIRECTION = "direction"


@dataclass(frozen=True, slots=True)
class Compute:
    """A computation, or a wait in the order of computations: what it waits for."""

    waits: tuple[tuple[Key, str], ...]


@dataclass(frozen=True, slots=True)
class Transfer:
    """One end of a message: `send` or `receive`, and the other rank."""

    key: Key
    end: str
    peer: int


def with_messages(schedule: Schedule) -> dict[int, list[_Action]]:
    """Each rank's actions as torch's runtime orders them, messages among them."""
    actions = {
        rank: [_Action.from_str(str(action)) for action in row]
        for rank, row in enumerate(schedule.ranks)
    }
    where = schedule.stage_to_rank
    made: dict[int, list[_Action]] = _add_send_recv(
        actions, stage_to_rank=lambda stage: where[stage], num_stages=schedule.num_stages
    )
    return made


def under_way(schedule: Schedule, rank: int, row: list[Any]) -> list[tuple[tuple[int, ...], ...]]:
    """At each computation, by stage of the rank: activations and gradients that are there and not
    used yet, and whether a gradient is being sent."""
    own, where = schedule.stages_of(rank), schedule.stage_to_rank
    last = schedule.num_stages - 1
    arrived, returned, sent = (dict.fromkeys(own, 0) for _ in range(3))
    found = []
    for action in row:
        kind, stage = action.computation_type.name, action.stage_index
        if kind == "RECV_F":
            arrived[stage] += 1
        elif kind == "RECV_B":
            returned[stage] += 1
        elif kind == "SEND_B":
            sent[stage] = 1
        if not action.is_compute_op:
            continue
        if kind == "FORWARD" and stage and where[stage - 1] != rank:
            arrived[stage] -= 1
        backward = kind in ("FULL_BACKWARD", "BACKWARD_INPUT")
        returned[stage] -= backward and stage < last
        found.append(tuple(tuple(each.values()) for each in (arrived, returned, sent)))
        if backward and stage and where[stage - 1] == rank:
            returned[stage - 1] += 1
    return found


def programs(
    rows: dict[int, list[Any]], stage_to_rank: Sequence[int]
) -> list[list[Compute | Transfer]]:
    """What each rank gives its device, in order."""
    last = len(stage_to_rank) - 1
    made = []
    for rank in sorted(rows):
        program: list[Compute | Transfer] = []
        sent: deque[Key] = deque()  # gradients that are not waited for yet
        for action in rows[rank]:
            kind, stage, chunk = (
                action.computation_type,
                action.stage_index,
                action.microbatch_index,
            )
            if kind in _SENDS:
                way = _SENDS[kind]
                other = stage_to_rank[stage + (1 if way == "F" else -1)]
                if way == "B":
                    waits = tuple((key, "send") for key in sent if key[1] == stage)
                    program.append(Compute(waits))
                    sent = deque(key for key in sent if key[1] != stage)
                    sent.append((way, stage, chunk))
                program.append(Transfer((way, stage, chunk), "send", other))
            elif kind in _RECEIVES:
                way = _RECEIVES[kind]
                source = stage + (-1 if way == "F" else 1)
                program.append(Transfer((way, source, chunk), "receive", stage_to_rank[source]))
            elif kind is _FORWARD or kind in _INPUT_BACKWARDS:
                forward = kind is _FORWARD
                source = stage + (-1 if forward else 1)
                waits_for: list[tuple[Key, str]] = []
                if 0 <= source <= last and stage_to_rank[source] != rank:
                    waits_for.append((("F" if forward else "B", source, chunk), "receive"))
                    if not forward:
                        waits_for.append((("F", stage, chunk), "send"))
                program.append(Compute(tuple(waits_for)))
            else:
                program.append(Compute(()))
        made.append(program)
    return made


def stuck(programs: Sequence[Sequence[Compute | Transfer]], queue: Queue) -> list[str]:
    """What each rank that cannot end waits for; [] where all end."""
    queues: dict[Any, deque[tuple[int, Transfer]]] = defaultdict(deque)
    place: list[dict[tuple[Key, str], Any]] = []
    computes: list[list[Compute]] = []
    for rank, program in enumerate(programs):
        mine: list[Compute] = []
        places = {}
        for item in program:
            if isinstance(item, Compute):
                mine.append(item)
                continue
            name: Any = (rank, item.peer)
            if queue is Queue.RANK:
                name = (rank,)
            elif queue is Queue.DIRECTION:
                name = (rank, item.peer, item.end)
            queues[name].append((len(mine), item))
            places[item.key, item.end] = name
        computes.append(mine)
        place.append(places)
    done: list[set[tuple[Key, str]]] = [set() for _ in programs]
    at = [0] * len(programs)
    ready = deque(range(len(programs)))
    while ready:
        rank = ready.popleft()
        mine = computes[rank]
        while at[rank] < len(mine) and all(w in done[rank] for w in mine[at[rank]].waits):
            at[rank] += 1
        for name in {place[rank][key] for key in place[rank]}:
            line = queues[name]
            while line and _meets(line[0], queues, place, at, rank):
                _, item = line.popleft()
                other = "receive" if item.end == "send" else "send"
                queues[place[item.peer][item.key, other]].popleft()
                done[rank].add((item.key, item.end))
                done[item.peer].add((item.key, other))
                ready += [rank, item.peer]
    found = []
    for rank, mine in enumerate(computes):
        left = [line[0][1] for name, line in queues.items() if name[0] == rank and line]
        if at[rank] < len(mine) or left:
            found.append(f"rank {rank}: computation {at[rank]} of {len(mine)}, {left}")
    return found


def _meets(
    head: tuple[int, Transfer],
    queues: dict[Any, deque[tuple[int, Transfer]]],
    place: list[dict[tuple[Key, str], Any]],
    at: list[int],
    rank: int,
) -> bool:
    """Whether a message and its other end are both at the head of their queues and may begin."""
    before, item = head
    other = "receive" if item.end == "send" else "send"
    name = place[item.peer].get((item.key, other))
    if name is None or not queues[name]:
        return False
    before_peer, facing = queues[name][0]
    return (
        before <= at[rank]
        and before_peer <= at[item.peer]
        and (facing.key, facing.end, facing.peer) == (item.key, other, rank)
    )
