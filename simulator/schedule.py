"""Schedules: in which order each pipeline rank runs which action on which micro-batch.

An `Action` prints and parses as in torch.distributed.pipelining: `2F0` is the forward of stage 2
on micro-batch 0, `B` a full backward, `I` the gradient of the inputs alone, `W` that of the
weights alone. A `Schedule` as CSV has one line per rank and one action per cell; torch reads it.

A schedule is a function (ranks, micro-batches, ScheduleOptions) -> Schedule under a name, in a
file of its own in `simulator/schedules/`; every file there is read, no list is kept.
"""

from __future__ import annotations

import functools
import importlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from profiles.errors import InputError, UnknownNameError
from simulator.action import Action as Action
from simulator.action import ActionKind as ActionKind
from simulator.action import backward_input, forward
from simulator.durations import Durations

Rows = tuple[tuple[Action, ...], ...]


class Placement(StrEnum):
    """Which rank holds which virtual stage."""

    LOOP = "loop"
    """Stage s is on rank s % num_ranks (Narayanan et al., arXiv 2104.04473, section 2.2)."""

    V = "v"
    """Stage s is on rank s, then back again: 2 num_ranks - 1 - s (Qi et al., 2401.10241, sec. 6)"""

    OTHER = "other"

    def ranks_of(self, num_ranks: int, stages_per_rank: int) -> tuple[int, ...]:
        """The rank of every virtual stage; V turns at each end, OTHER cannot be computed.

        >>> Placement.V.ranks_of(3, 2), Placement.LOOP.ranks_of(3, 2)
        ((0, 1, 2, 2, 1, 0), (0, 1, 2, 0, 1, 2))
        """
        there = list(range(num_ranks))
        if self is Placement.V:
            turns = [there[:: -1 if turn % 2 else 1] for turn in range(stages_per_rank)]
        elif self is Placement.LOOP:
            turns = [there] * stages_per_rank
        else:
            raise InputError("only loop and v placements follow from the number of ranks")
        return tuple(rank for turn in turns for rank in turn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The actions of every pipeline rank in order.

    stage_to_rank  pipeline rank that holds each virtual stage
    copies         how many times the model's chain of stages is held: with n virtual stages, stage
                   s is part s % (n / copies) of copy s // (n / copies), and copy c takes the c-th
                   equal part of the micro-batches. Two in DualPipe, else one.
    """

    name: str
    num_microbatches: int
    stage_to_rank: tuple[int, ...]
    ranks: Rows
    copies: int = 1

    def __post_init__(self) -> None:
        check_schedule(self)

    @property
    def num_stages(self) -> int:
        return len(self.stage_to_rank)

    @property
    def num_ranks(self) -> int:
        return len(self.ranks)

    @property
    def stages_per_copy(self) -> int:
        """Parts that the model is cut into."""
        return self.num_stages // self.copies

    @property
    def placement(self) -> Placement:
        """LOOP, V or, where `stage_to_rank` is neither, OTHER."""
        per_rank, rest = divmod(self.num_stages, self.num_ranks)
        for placement in (Placement.LOOP, Placement.V):
            if not rest and placement.ranks_of(self.num_ranks, per_rank) == self.stage_to_rank:
                return placement
        return Placement.OTHER

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Virtual stages that a pipeline rank holds, in order."""
        return tuple(stage for stage, owner in enumerate(self.stage_to_rank) if owner == rank)

    def microbatches_of(self, stage: int) -> range:
        """Micro-batches that go through a virtual stage: all, but for its copy's share."""
        share = self.num_microbatches // self.copies
        copy = stage // self.stages_per_copy
        return range(copy * share, (copy + 1) * share)

    def to_csv(self) -> str:
        """One line per rank, actions separated by commas, as torch's runtime reads it."""
        return "".join(",".join(str(action) for action in row) + "\n" for row in self.ranks)


def schedule_from_csv(text: str, name: str = "csv") -> Schedule:
    """The schedule in a CSV as torch writes it (idle cells are empty); raises InputError.

    Where parts of the stages share no micro-batch with the others, they are copies of the model.
    """
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
        copies=_copies(actions, count),
    )


def _copies(actions: list[Action], num_stages: int) -> int:
    """Into how many equal parts the stages fall that share no micro-batch."""
    taken: list[set[int]] = [set() for _ in range(num_stages)]
    for action in actions:
        taken[action.stage].add(action.microbatch)
    parts = 1 + sum(a.isdisjoint(b) for a, b in itertools.pairwise(taken))
    return parts if num_stages % parts == 0 else 1


def check_schedule(schedule: Schedule) -> None:
    """Every action once, on its stage's rank, in an order that can end.

    Raises InputError with the first fault: an action missing, twice or on a foreign rank, or a
    deadlock with the actions that wait for each other.
    """
    stages, copies = schedule.num_stages, schedule.copies
    if stages % copies or schedule.num_microbatches % copies:
        raise InputError(
            f"{copies} copies of the model need equal parts of {stages} stages and "
            f"{schedule.num_microbatches} micro-batches"
        )
    seen: set[Action] = set()
    found = dict.fromkeys("FBIW", 0)
    takes = [schedule.microbatches_of(stage) for stage in range(stages)]
    for rank, row in enumerate(schedule.ranks):
        for action in row:
            if not 0 <= action.stage < stages:
                raise InputError(f"{action} is of a stage that does not exist")
            if schedule.stage_to_rank[action.stage] != rank:
                owner = schedule.stage_to_rank[action.stage]
                raise InputError(f"{action} stands on rank {rank}, its stage is on rank {owner}")
            if action.microbatch not in takes[action.stage]:
                raise InputError(f"{action} is of a micro-batch that its stage does not take")
            if action in seen:
                raise InputError(f"{action} stands twice in the schedule")
            seen.add(action)
            found[action.kind.value] += 1
    wanted = stages * schedule.num_microbatches // copies
    for kind, count in (("F", found["F"]), ("B", found["B"] + found["I"])):
        if count != wanted:
            raise InputError(f"the schedule has {count} {kind} actions, {wanted} are needed")
    if found["W"] != found["I"]:
        raise InputError(
            f"the schedule has {found['W']} W actions for {found['I']} I actions; each I needs one"
        )
    _check_order(schedule)


def _check_order(schedule: Schedule) -> None:
    """Run the rows against each other; raises InputError where all that is left waits."""
    micro, per_copy = schedule.num_microbatches, schedule.stages_per_copy
    gone = bytearray(schedule.num_stages * micro)  # forwards that are done
    back = bytearray(schedule.num_stages * micro)  # 1 after an I, 2 after a B or a W
    position = [0] * schedule.num_ranks
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(schedule.ranks):
            place = position[rank]
            while place < len(row) and _run(row[place], gone, back, micro, per_copy):
                place += 1
                moved = True
            position[rank] = place
    waiting = [str(row[p]) for row, p in zip(schedule.ranks, position, strict=True) if p < len(row)]
    if waiting:
        raise InputError(f"the schedule never ends: {', '.join(waiting)} wait for each other")


def _run(action: Action, gone: bytearray, back: bytearray, micro: int, per_copy: int) -> bool:
    """Whether the action can run now; if so, it is noted as done."""
    stage, kind = action.stage, action.kind
    at = stage * micro + action.microbatch
    if kind is ActionKind.FORWARD:
        if stage % per_copy and not gone[at - micro]:
            return False
        gone[at] = 1
        return True
    if kind is ActionKind.BACKWARD_WEIGHT:
        if back[at] != 1:
            return False
        back[at] = 2
        return True
    last = stage % per_copy == per_copy - 1
    if back[at] or not gone[at] or not (last or back[at + micro]):
        return False
    back[at] = 1 if kind is ActionKind.BACKWARD_INPUT else 2
    return True


def dependencies(action: Action, num_stages: int, copies: int = 1) -> tuple[Action, ...]:
    """Actions whose results an action needs (its own stage's forward, its neighbour's output).

    For a backward the neighbour's may be `B` or `I`: the one of the same letter is named, and
    whichever of the two is in the schedule counts.
    """
    stage, mb = action.stage, action.microbatch
    per_copy = num_stages // copies
    if action.kind is ActionKind.FORWARD:
        return (forward(stage - 1, mb),) if stage % per_copy else ()
    if action.kind is ActionKind.BACKWARD_WEIGHT:
        return (backward_input(stage, mb),)
    own = forward(stage, mb)
    if stage % per_copy == per_copy - 1:
        return (own,)
    return (own, Action(stage + 1, action.kind, mb))


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


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """What a schedule may depend on beside its ranks and micro-batches.

    stages_per_rank   parts of the model per rank
    durations         seconds per virtual stage, for schedules that are searched for them (zb-1p,
                      zb-2p); None: F, I and W take equally long and sends nothing
    kept_for_weights  part of a micro-batch's activations that is kept from I to W, M_W / M_B of
                      Qi et al. (arXiv 2401.10241, section 2.3); 1 keeps all of them
    """

    stages_per_rank: int = 1
    durations: Durations | None = None
    kept_for_weights: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.kept_for_weights <= 1.0:
            raise InputError(f"kept_for_weights is a part of 1, got {self.kept_for_weights}")

    def require_stages_per_rank(self, name: str, count: int, *, hint: str) -> None:
        """Raises InputError unless there are `count` stages per rank."""
        if self.stages_per_rank != count:
            number = {1: "one stage", 2: "two stages"}[count]
            raise InputError(f"{name} has {number} per rank, got {self.stages_per_rank}; {hint}")


ScheduleFunction = Callable[[int, int, ScheduleOptions], Schedule]

# Filled by the files in simulator/schedules when the first schedule is asked for.
SCHEDULES: dict[str, ScheduleFunction] = {}


def register(name: str) -> Callable[[ScheduleFunction], ScheduleFunction]:
    """Decorator: the function makes the schedule `name`."""

    def put(function: ScheduleFunction) -> ScheduleFunction:
        SCHEDULES[name] = function
        return function

    return put


@functools.cache
def _read_all() -> None:
    # Late, as those files import this one.
    importlib.import_module("simulator.schedules")


def schedule_names() -> tuple[str, ...]:
    """Names that `build_schedule` knows."""
    _read_all()
    return tuple(sorted(SCHEDULES))


@functools.lru_cache(maxsize=256)
def build_schedule(
    name: str,
    *,
    num_ranks: int,
    num_microbatches: int,
    stages_per_rank: int = 1,
    durations: Durations | None = None,
    kept_for_weights: float = 1.0,
) -> Schedule:
    """The schedule `name`; `ScheduleOptions` says what the last three are.

    Raises UnknownNameError for another name, InputError for counts that the schedule cannot take.
    """
    _read_all()
    if name not in SCHEDULES:
        raise UnknownNameError("schedule", name, SCHEDULES)
    if num_ranks < 1 or num_microbatches < 1 or stages_per_rank < 1:
        raise InputError(
            f"a schedule needs at least one rank, micro-batch and stage per rank, got {num_ranks}, "
            f"{num_microbatches} and {stages_per_rank}"
        )
    options = ScheduleOptions(
        stages_per_rank=stages_per_rank, durations=durations, kept_for_weights=kept_for_weights
    )
    return SCHEDULES[name](num_ranks, num_microbatches, options)
