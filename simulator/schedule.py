"""Schedules: in which order each pipeline rank runs which action on which micro-batch.

An `Action` prints and parses as in torch.distributed.pipelining: `2F0` is the forward of stage 2
on micro-batch 0, `B` a full backward, `I` the gradient of the inputs alone, `W` that of the
weights alone. A `Schedule` as CSV has one line per rank and one action per cell; torch reads it.

A schedule is a function (num_ranks, num_microbatches, stages_per_rank) -> Schedule, registered by
name in `SCHEDULES`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from profiles.errors import InputError, UnknownNameError

_ACTION = re.compile(r"^(\d+)([FBIW])(\d+)$")


class ActionKind(StrEnum):
    """F forward, B full backward, I backward of the inputs, W backward of the weights."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One action of a rank; prints as torch writes it.

    >>> str(Action(2, ActionKind.FORWARD, 0)), Action.parse("3B7").microbatch
    ('2F0', 7)
    """

    stage: int
    kind: ActionKind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{self.microbatch}"

    @classmethod
    def parse(cls, text: str) -> Action:
        """The action that `text` names; raises InputError."""
        match = _ACTION.match(text.strip())
        if match is None:
            raise InputError(f"{text!r} is not an action; write stage, kind, micro-batch: 2F0")
        return cls(int(match.group(1)), ActionKind(match.group(2)), int(match.group(3)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The actions of every pipeline rank in order.

    stage_to_rank  pipeline rank that holds each virtual stage
    """

    name: str
    num_microbatches: int
    stage_to_rank: tuple[int, ...]
    ranks: tuple[tuple[Action, ...], ...]

    def __post_init__(self) -> None:
        check_schedule(self)

    @property
    def num_stages(self) -> int:
        return len(self.stage_to_rank)

    @property
    def num_ranks(self) -> int:
        return len(self.ranks)

    def to_csv(self) -> str:
        """One line per rank, actions separated by commas, as torch's runtime reads it."""
        return "".join(",".join(str(action) for action in row) + "\n" for row in self.ranks)


def schedule_from_csv(text: str, name: str = "csv") -> Schedule:
    """The schedule in a CSV as torch writes it (idle cells are empty); raises InputError."""
    rows = tuple(
        tuple(Action.parse(cell) for cell in line.split(",") if cell.strip())
        for line in text.splitlines()
        if line.strip()
    )
    actions = [action for row in rows for action in row]
    if not actions:
        raise InputError("the schedule has no actions")
    count = max(action.stage for action in actions) + 1
    owner = {action.stage: rank for rank, row in enumerate(rows) for action in row}
    if set(owner) != set(range(count)):
        missing = sorted(set(range(count)) - set(owner))
        raise InputError(f"the schedule has stages up to {count - 1} but none numbered {missing}")
    return Schedule(
        name=name,
        num_microbatches=max(action.microbatch for action in actions) + 1,
        stage_to_rank=tuple(owner[stage] for stage in range(count)),
        ranks=rows,
    )


def check_schedule(schedule: Schedule) -> None:
    """Every action once, on its stage's rank, in an order that can end.

    Raises InputError with the first fault: an action missing, twice or on a foreign rank, or a
    deadlock with the actions that wait for each other.
    """
    wanted = schedule.num_stages * schedule.num_microbatches
    seen: set[Action] = set()
    for rank, row in enumerate(schedule.ranks):
        for action in row:
            if not 0 <= action.stage < schedule.num_stages:
                raise InputError(f"{action} is of a stage that does not exist")
            if schedule.stage_to_rank[action.stage] != rank:
                owner = schedule.stage_to_rank[action.stage]
                raise InputError(f"{action} stands on rank {rank}, its stage is on rank {owner}")
            if action in seen:
                raise InputError(f"{action} stands twice in the schedule")
            seen.add(action)
    for kind, halves in (("F", {"F"}), ("B", {"B", "I"})):
        found = sum(action.kind.value in halves for action in seen)
        if found != wanted:
            raise InputError(f"the schedule has {found} {kind} actions, {wanted} are needed")
    _check_order(schedule)


def _check_order(schedule: Schedule) -> None:
    done: set[Action] = set()
    position = [0] * schedule.num_ranks
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(schedule.ranks):
            while position[rank] < len(row) and _ready(row[position[rank]], done, schedule):
                done.add(row[position[rank]])
                position[rank] += 1
                moved = True
    waiting = [str(row[p]) for row, p in zip(schedule.ranks, position, strict=True) if p < len(row)]
    if waiting:
        raise InputError(f"the schedule never ends: {', '.join(waiting)} wait for each other")


def dependencies(action: Action, num_stages: int) -> tuple[Action, ...]:
    """Actions whose results an action needs (its own stage's forward, its neighbour's output).

    For a backward the neighbour's may be `B` or `I`: the one of the same letter is named, and
    whichever of the two is in the schedule counts.
    """
    stage, mb = action.stage, action.microbatch
    if action.kind is ActionKind.FORWARD:
        return (Action(stage - 1, ActionKind.FORWARD, mb),) if stage else ()
    if action.kind is ActionKind.BACKWARD_WEIGHT:
        return (Action(stage, ActionKind.BACKWARD_INPUT, mb),)
    own = Action(stage, ActionKind.FORWARD, mb)
    if stage == num_stages - 1:
        return (own,)
    return (own, Action(stage + 1, action.kind, mb))


def _ready(action: Action, done: set[Action], schedule: Schedule) -> bool:
    swap = {
        ActionKind.BACKWARD: ActionKind.BACKWARD_INPUT,
        ActionKind.BACKWARD_INPUT: ActionKind.BACKWARD,
    }
    for need in dependencies(action, schedule.num_stages):
        other = Action(need.stage, swap.get(need.kind, need.kind), need.microbatch)
        if need not in done and other not in done:
            return False
    return True


def in_flight(schedule: Schedule) -> tuple[int, ...]:
    """Per virtual stage, the most micro-batches whose activations it keeps at once."""
    held = [0] * schedule.num_stages
    most = [0] * schedule.num_stages
    for row in schedule.ranks:
        for action in row:
            if action.kind is ActionKind.FORWARD:
                held[action.stage] += 1
                most[action.stage] = max(most[action.stage], held[action.stage])
            elif action.kind in (ActionKind.BACKWARD, ActionKind.BACKWARD_WEIGHT):
                held[action.stage] -= 1
    return tuple(most)


def picture(schedule: Schedule) -> str:
    """The order of actions as a text grid, one line per rank, without times."""
    width = max(len(str(action)) for row in schedule.ranks for action in row) + 1
    return "\n".join(
        f"rank {rank}  " + "".join(str(action).ljust(width) for action in row).rstrip()
        for rank, row in enumerate(schedule.ranks)
    )


Rows = tuple[tuple[Action, ...], ...]
SCHEDULES: dict[str, Callable[[int, int, int], Rows]] = {}


def schedule_names() -> tuple[str, ...]:
    """Names that `build_schedule` knows."""
    return tuple(sorted(SCHEDULES))


def _registered(
    name: str,
) -> Callable[[Callable[[int, int, int], Rows]], Callable[[int, int, int], Rows]]:
    def register(function: Callable[[int, int, int], Rows]) -> Callable[[int, int, int], Rows]:
        SCHEDULES[name] = function
        return function

    return register


@functools.lru_cache(maxsize=256)
def build_schedule(
    name: str, *, num_ranks: int, num_microbatches: int, stages_per_rank: int = 1
) -> Schedule:
    """The schedule `name`; virtual stage s runs on rank s % num_ranks.

    Raises UnknownNameError for another name, InputError for counts that the schedule cannot take.
    """
    if name not in SCHEDULES:
        raise UnknownNameError("schedule", name, SCHEDULES)
    if num_ranks < 1 or num_microbatches < 1 or stages_per_rank < 1:
        raise InputError(
            f"a schedule needs at least one rank, micro-batch and stage per rank, got {num_ranks}, "
            f"{num_microbatches} and {stages_per_rank}"
        )
    rows = SCHEDULES[name](num_ranks, num_microbatches, stages_per_rank)
    return Schedule(
        name=name,
        num_microbatches=num_microbatches,
        stage_to_rank=tuple(s % num_ranks for s in range(num_ranks * stages_per_rank)),
        ranks=rows,
    )


def _forward(stage: int, mb: int) -> Action:
    return Action(stage, ActionKind.FORWARD, mb)


def _backward(stage: int, mb: int) -> Action:
    return Action(stage, ActionKind.BACKWARD, mb)


def _one_stage_per_rank(name: str, stages_per_rank: int) -> None:
    if stages_per_rank != 1:
        raise InputError(f"{name} has one stage per rank, got {stages_per_rank}; use interleaved")


@_registered("none")
def _none(num_ranks: int, num_microbatches: int, stages_per_rank: int) -> Rows:
    """No pipeline: gradient accumulation on one rank, one micro-batch after the other."""
    _one_stage_per_rank("none", stages_per_rank)
    if num_ranks != 1:
        raise InputError(f"the schedule 'none' is for one pipeline rank, got {num_ranks}")
    return (tuple(f(0, m) for m in range(num_microbatches) for f in (_forward, _backward)),)


@_registered("gpipe")
def _gpipe(num_ranks: int, num_microbatches: int, stages_per_rank: int) -> Rows:
    """All forwards, then all backwards (Huang et al., arXiv 1811.06965, figure 2c)."""
    _one_stage_per_rank("gpipe", stages_per_rank)
    micro_batches = range(num_microbatches)
    return tuple(
        tuple([_forward(r, m) for m in micro_batches] + [_backward(r, m) for m in micro_batches])
        for r in range(num_ranks)
    )


@_registered("1f1b")
def _one_forward_one_backward(num_ranks: int, num_microbatches: int, stages_per_rank: int) -> Rows:
    """After num_ranks - rank forwards, a backward and a forward in turn.

    PipeDream-Flush (Narayanan et al., arXiv 2104.04473, figure 3 bottom); keeps at most
    num_ranks - rank micro-batches.
    """
    _one_stage_per_rank("1f1b", stages_per_rank)
    rows = []
    for rank in range(num_ranks):
        warm_up = min(num_microbatches, num_ranks - rank)
        row = [_forward(rank, m) for m in range(warm_up)]
        for m in range(num_microbatches):
            row.append(_backward(rank, m))
            if warm_up + m < num_microbatches:
                row.append(_forward(rank, warm_up + m))
        rows.append(tuple(row))
    return tuple(rows)


@_registered("interleaved")
def _interleaved(num_ranks: int, num_microbatches: int, stages_per_rank: int) -> Rows:
    """1F1B over several stages per rank (Narayanan et al., arXiv 2104.04473, section 2.2).

    Micro-batches go in rounds of m / max(1, m // ranks), as torch's ScheduleInterleaved1F1B orders
    them; the number of micro-batches must be a multiple of the number of rounds.
    """
    if stages_per_rank < 2:
        raise InputError("interleaved needs two or more stages per rank (--vpp 2)")
    rounds = max(1, num_microbatches // num_ranks)
    if num_microbatches % rounds:
        raise InputError(
            f"interleaved runs {num_microbatches} micro-batches in {rounds} rounds, which does not "
            f"divide them; use a multiple of {num_ranks} micro-batches"
        )
    per_round = num_microbatches // rounds
    total = stages_per_rank * num_microbatches
    rows = []
    for rank in range(num_ranks):
        warm_up = (stages_per_rank - 1) * per_round + 2 * (num_ranks - 1 - rank)
        warm_up = min(warm_up, total)
        forwards = _turns(rank, num_ranks, stages_per_rank, per_round, total, reverse=False)
        backwards = _turns(rank, num_ranks, stages_per_rank, per_round, total, reverse=True)
        row = [_forward(*turn) for turn in forwards[:warm_up]]
        for i in range(total - warm_up):
            row += [_forward(*forwards[warm_up + i]), _backward(*backwards[i])]
        row += [_backward(*turn) for turn in backwards[total - warm_up :]]
        rows.append(tuple(row))
    return tuple(rows)


def _turns(
    rank: int, num_ranks: int, local_stages: int, per_round: int, total: int, *, reverse: bool
) -> list[tuple[int, int]]:
    """(stage, micro-batch) in the order in which a rank takes its forwards or backwards."""
    counts = [0] * local_stages
    turns = []
    for step in range(total):
        local = step // per_round % local_stages
        if reverse:
            local = local_stages - 1 - local
        turns.append((local * num_ranks + rank, counts[local]))
        counts[local] += 1
    return turns
