"""Pipelines whose messages are instructions of the rank, in order with its computation.

`timeline.simulate` lets a message leave when its tensor is ready and arrive while the receiver
computes. Engines that send and receive in the stream that computes do not: a rank that receives
waits, and what stands behind the receive waits too. The order between two computations is that of
DeepSpeed's `TrainSchedule` (deepspeed/runtime/pipe/schedule.py at 83fd8f8, read 2026-11-21: "the
communication is blocking"): before a forward the last gradient is sent and then the activation
received; before a backward the gradient is received and then the last activation sent. (Old
releases had either pair the other way round.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiles.errors import InputError
from simulator.schedules.action import Action, ActionKind
from simulator.schedules.durations import Durations
from simulator.schedules.schedule import Schedule


@dataclass(frozen=True, slots=True)
class _Message:
    """The activation (`down`) or gradient of a micro-batch over the cut after stage `cut`."""

    cut: int
    down: bool
    microbatch: int


@dataclass(frozen=True, slots=True)
class _Instruction:
    """A computation, or one end of a message."""

    action: Action | None = None
    message: _Message | None = None
    sends: bool = False


def rank_ends(
    schedule: Schedule, durations: Durations, *, sender_held: Sequence[float]
) -> tuple[float, ...]:
    """Seconds from the start of the step to the end of each rank's last instruction.

    A message begins when both ends have come to it; the receiver goes on when all of it is there.

    sender_held  per stage, entry 0 not used: part of the transfer over the cut before the stage
                 for which the sender is held too; less than 1 where the last bytes wait in a
                 buffer of the transport

    Raises InputError for schedules other than 1f1b. Complexity linear in the instructions.
    """
    if schedule.name != "1f1b":
        raise InputError(
            f"messages in order with the computation are modelled for the 1f1b schedule, not for "
            f"{schedule.name!r}; build_schedule('1f1b', ...) makes one"
        )
    stages = schedule.num_stages
    if len(durations.forward_s) != stages or len(sender_held) != stages:
        raise InputError(
            f"the schedule has {stages} stages, durations are given for {len(durations.forward_s)} "
            f"and sender_held for {len(sender_held)}"
        )
    if not all(0.0 <= share <= 1.0 for share in sender_held):
        raise InputError(f"sender_held must be parts between 0 and 1, got {tuple(sender_held)}")
    programs = [_program(schedule, rank) for rank in range(schedule.num_ranks)]
    ready = [0.0] * stages
    position = [0] * stages
    waiting: dict[_Message, int] = {}
    open_ranks = list(range(stages))
    while open_ranks:
        rank = open_ranks.pop()
        while position[rank] < len(programs[rank]):
            step = programs[rank][position[rank]]
            message = step.message
            if message is None:
                ready[rank] += _seconds(step, durations)
            else:
                other = waiting.pop(message, None)
                if other is None:
                    waiting[message] = rank
                    break
                sender, receiver = (rank, other) if step.sends else (other, rank)
                start_s = max(ready[rank], ready[other])
                crossing_s = _crossing(message, durations)
                ready[receiver] = start_s + crossing_s
                ready[sender] = start_s + crossing_s * sender_held[message.cut + 1]
                position[other] += 1
                open_ranks.append(other)
            position[rank] += 1
    left = [rank for rank in range(stages) if position[rank] < len(programs[rank])]
    assert not left, f"ranks {left} wait for messages that nobody sends"
    return tuple(ready)


def _program(schedule: Schedule, rank: int) -> list[_Instruction]:
    """The rank's computations with its messages between them."""
    program: list[_Instruction] = []
    unsent: _Instruction | None = None
    before: Action | None = None
    for action in schedule.ranks[rank]:
        needed = _end(action, schedule.num_stages, sends=False)
        ends = (unsent, needed)
        if before is not None and _in_step(before, action, schedule.num_stages):
            ends = (needed, unsent)
        program.extend(end for end in ends if end is not None)
        program.append(_Instruction(action=action))
        unsent = _end(action, schedule.num_stages, sends=True)
        before = action
    if unsent is not None:
        program.append(unsent)
    return program


def _in_step(before: Action, action: Action, stages: int) -> bool:
    """Whether a backward follows a forward without the idle turn of a pipeline that fills.

    In DeepSpeed's count of turns stage s has forward m in turn 2 m + s and backward k in turn
    2 (k + stages) - s - 1; in a turn that is idle for lack of micro-batches it only sends.
    """
    if before.kind is not ActionKind.FORWARD or action.kind is not ActionKind.BACKWARD:
        return False
    return before.microbatch - action.microbatch == stages - action.stage - 1


def _end(action: Action, stages: int, *, sends: bool) -> _Instruction | None:
    """The rank's end of the message that the action needs or, with `sends`, makes."""
    down = action.kind is ActionKind.FORWARD
    cut = action.stage if down == sends else action.stage - 1
    if not 0 <= cut < stages - 1:
        return None
    return _Instruction(message=_Message(cut, down, action.microbatch), sends=sends)


def _seconds(step: _Instruction, durations: Durations) -> float:
    assert step.action is not None
    row = durations.forward_s if step.action.kind is ActionKind.FORWARD else durations.backward_s
    return row[step.action.stage]


def _crossing(message: _Message, durations: Durations) -> float:
    row = durations.send_forward_s if message.down else durations.send_backward_s
    return row[message.cut + 1]
