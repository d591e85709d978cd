"""Moments of a pipeline rank: which micro-batches it keeps and which messages are in transit while
an action runs.

The executor runs a schedule on torch's pipeline runtime, which inserts sends and receives between
the actions. To place them, torch simulates ranks that run each action as soon as possible: a
receive is posted when the sender has run the corresponding action (torch.distributed.pipelining,
`_add_send_recv`). A message between two ranks uses memory as follows (executor/torch_pipeline.py,
Messages):

    an activation    from the post of its receive; from its forward on it counts as kept
    a gradient       from the post of its receive to the end of its backward
    a sent gradient  until the stage sends the next one

A gradient for another stage of the same rank uses memory from the end of one backward to the end of
the other. An activation for it uses none: it is the output that the earlier stage keeps.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from simulator.schedules.action import Action, ActionKind
from simulator.schedules.schedule import Schedule

Counts = tuple[int, ...]
"""One for each stage of a rank, in their order."""


class Moment(NamedTuple):
    """Micro-batches and messages of each stage of a rank while an action runs.

    whole      micro-batches that a stage keeps completely, including that of the action
    half       micro-batches of which it keeps only the operands of W
    arriving   received activations whose forward has not begun
    returning  received gradients whose backward has not begun, except that of the action
    leaving    gradients still being sent
    turn       which of the rank's stages runs
    first      whether the action is a stage's first B or I, which allocates its gradients
    begun      stages whose gradients already existed
    """

    whole: Counts
    half: Counts
    arriving: Counts
    returning: Counts
    leaving: Counts
    turn: int
    kind: ActionKind
    first: bool
    begun: int


@functools.lru_cache(maxsize=64)
def rank_moments(schedule: Schedule, *, early: bool) -> tuple[tuple[Moment, ...], ...]:
    """The moments of each rank, one for each of its actions, in the order in which they run.

    early  a receive is posted at least one action before it is needed, as on a CPU
           (executor/torch_pipeline.py, received_early)

    A forward adds a micro-batch to its stage. An I frees all but the operands of its W, the W frees
    these, and a B frees all (Qi et al., arXiv 2401.10241, section 2.3 and equation 7).
    """
    rows = _with_receives(schedule)
    if early:
        rows = [_received_early(row) for row in rows]
    return tuple(_moments(schedule, rank, row) for rank, row in enumerate(rows))


class _Receive(NamedTuple):
    """The post of a receive: an activation for a forward, or a gradient for a backward."""

    forward: bool
    stage: int
    microbatch: int


_Row = list[Action | _Receive]


def _with_receives(schedule: Schedule) -> list[_Row]:
    """The actions of each rank with its receives, in torch's order."""
    rank_of, copy = schedule.stage_to_rank, schedule.stages_per_copy
    given: set[_Receive] = set()  # outputs of all actions so far
    rows: list[_Row] = [[] for _ in schedule.ranks]
    at = [0] * len(rows)
    left = [rank for rank, row in enumerate(schedule.ranks) if row]
    while left:
        for rank in left:
            action = schedule.ranks[rank][at[rank]]
            stage, number = action.stage, action.microbatch
            if action.kind is ActionKind.BACKWARD_WEIGHT:
                rows[rank].append(action)
            else:
                forward = action.kind is ActionKind.FORWARD
                opens = (stage if forward else stage + 1) % copy == 0
                if not opens and _Receive(forward, stage, number) not in given:
                    continue
                rows[rank].append(action)
                target = stage + 1 if forward else stage - 1
                if (target if forward else stage) % copy:
                    given.add(message := _Receive(forward, target, number))
                    if rank_of[target] != rank:
                        rows[rank_of[target]].append(message)
            at[rank] += 1
        left = [rank for rank in left if at[rank] < len(schedule.ranks[rank])]
    return rows


def _received_early(row: _Row) -> _Row:
    """A rank's actions; a receive directly before its action is moved one action earlier."""
    moved: _Row = []
    earliest = 0  # position after the previous receive
    for number, item in enumerate(row):
        if isinstance(item, Action):
            moved.append(item)
            continue
        following = next((each for each in row[number:] if isinstance(each, Action)), None)
        at = len(moved)
        if following and (following.stage, following.microbatch) == (item.stage, item.microbatch):
            at = next((i for i in reversed(range(at)) if isinstance(moved[i], Action)), at)
        at = max(earliest, at)
        moved.insert(at, item)
        earliest = at + 1
    return moved


def _moments(schedule: Schedule, rank: int, row: Sequence[Action | _Receive]) -> tuple[Moment, ...]:
    """The moments of a rank, by the rules at the top."""
    own, copy = schedule.stages_of(rank), schedule.stages_per_copy
    turns = {stage: turn for turn, stage in enumerate(own)}
    remote = [s % copy and schedule.stage_to_rank[s - 1] != rank for s in own]
    whole, half, arriving, returning, leaving = ([0] * len(own) for _ in range(5))
    begun: set[int] = set()
    found = []
    for item in row:
        turn = turns[item.stage]
        if isinstance(item, _Receive):
            (arriving if item.forward else returning)[turn] += 1
            continue
        forward = item.kind is ActionKind.FORWARD
        weights = item.kind is ActionKind.BACKWARD_WEIGHT
        backward = not (forward or weights)
        if forward:
            whole[turn] += 1
            arriving[turn] -= bool(remote[turn])
        elif backward and (item.stage + 1) % copy:
            returning[turn] -= 1
        found.append(
            Moment(
                whole=tuple(whole),
                half=tuple(half),
                arriving=tuple(arriving),
                returning=tuple(returning),
                leaving=tuple(leaving),
                turn=turn,
                kind=item.kind,
                first=backward and turn not in begun,
                begun=len(begun),
            )
        )
        if weights:
            half[turn] -= 1
        elif backward:
            begun.add(turn)
            whole[turn] -= 1
            half[turn] += item.kind is ActionKind.BACKWARD_INPUT
            if remote[turn]:
                leaving[turn] = 1
            elif item.stage % copy:
                returning[turns[item.stage - 1]] += 1
    return tuple(found)
