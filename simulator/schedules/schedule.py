"""Schedules: in which order each pipeline rank runs which action on which micro-batch.

An `Action` prints and parses as in torch.distributed.pipelining: `2F0` is the forward of stage 2
on micro-batch 0, `B` a full backward, `I` the gradient of the inputs alone, `W` that of the
weights alone.

A schedule is a function (ranks, micro-batches, ScheduleOptions) -> Schedule, registered under a
`ScheduleKind`, in a file of its own in `simulator/schedules/`; every file there is read. Planner,
prices, memory and executor ask the kind; no other list of schedules is kept.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate

from profiles.errors import InputError, UnknownNameError
from simulator.schedules.action import Action as Action
from simulator.schedules.action import ActionKind as ActionKind
from simulator.schedules.action import backward_input, forward
from simulator.schedules.durations import Durations

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
    executable_order(schedule)


def executable_order(schedule: Schedule) -> tuple[int, ...]:
    """A topological order of the actions, numbered rank by rank, found by running the ranks against
    each other; raises InputError if all remaining actions wait for each other."""
    micro, per_copy = schedule.num_microbatches, schedule.stages_per_copy
    first = [0, *accumulate(map(len, schedule.ranks))]
    order: list[int] = []
    gone = bytearray(schedule.num_stages * micro)  # forwards that are done
    back = bytearray(schedule.num_stages * micro)  # 1 after an I, 2 after a B or a W
    position = [0] * schedule.num_ranks
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(schedule.ranks):
            place = position[rank]
            while place < len(row) and _run(row[place], gone, back, micro, per_copy):
                order.append(first[rank] + place)
                place += 1
                moved = True
            position[rank] = place
    waiting = [str(row[p]) for row, p in zip(schedule.ranks, position, strict=True) if p < len(row)]
    if waiting:
        raise InputError(f"the schedule never ends: {', '.join(waiting)} wait for each other")
    return tuple(order)


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
HeldFunction = Callable[[int, int, int], tuple[tuple[int, ...], ...]]
"""From ranks, micro-batches and stages per rank to the micro-batches that each stage of each rank
keeps when its rank keeps most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleKind:
    """A schedule's name and all that follows from it; whatever depends on a schedule asks here.

    placement        of its virtual stages on the ranks
    stages_per_rank  how many it needs; 0 for two or more, as the plan says
    splits_backward  runs the gradients of inputs (I) and of weights (W) as actions of their own
    copies           of the model that it holds (`Schedule.copies`)
    pairs            runs a forward beside a backward, so that the all-to-alls of each hide under
                     the other's compute (DeepSeek-V3, arXiv 2412.19437, section 3.2.1, figure 4)
    microbatches_per_rank   it needs so many times the number of ranks, at least
    whole_rounds     it needs micro-batches in multiples of the number of ranks
    even             it needs even numbers of ranks and of micro-batches
    follows_durations  its order depends on how long actions take, so that no plan file names it
    closed_form      its idle time is that of 1F1B's closed form; of others it is the timeline's
    words            other names for it in published rows, lower case with hyphens
    held             what it keeps in flight in closed form, until the weights' gradients are
                     there; None: it is counted off the actions
    """

    name: str
    placement: Placement = Placement.LOOP
    stages_per_rank: int = 1
    splits_backward: bool = False
    copies: int = 1
    pairs: bool = False
    microbatches_per_rank: int = 0
    whole_rounds: bool = False
    even: bool = False
    follows_durations: bool = False
    closed_form: bool = False
    words: tuple[str, ...] = ()
    held: HeldFunction | None = None

    def why_not(self, num_ranks: int, num_microbatches: int) -> str:
        """Why it cannot run so many micro-batches on so many ranks, or ""."""
        least = self.microbatches_per_rank * num_ranks
        has = f"pp={num_ranks}, there are {num_microbatches}"
        if num_microbatches < least:
            return f"{self.name} needs {least} micro-batches or more on {has}"
        if self.whole_rounds and num_microbatches % num_ranks:
            return f"{self.name} needs micro-batches in whole rounds of {has}"
        if self.even and (num_ranks % 2 or num_microbatches % 2):
            return f"{self.name} needs even numbers of ranks and of micro-batches: {has}"
        return ""

    @property
    def needs(self) -> str:
        """What it needs beside a pipeline, in words; "" where every pipeline will do."""
        chunks = {0: "vpp of 2 or more", 1: ""}.get(self.stages_per_rank)
        least = f"{self.microbatches_per_rank} x pp micro-batches or more"
        parts = (
            f"vpp {self.stages_per_rank}" if chunks is None else chunks,
            least if self.microbatches_per_rank else "",
            "micro-batches in multiples of pp" if self.whole_rounds else "",
            "even pp and micro-batches" if self.even else "",
        )
        return ", ".join(part for part in parts if part)

    @property
    def is_v(self) -> bool:
        """Whether every rank holds two stages in a V, of one copy of the model."""
        return self.placement is Placement.V and self.stages_per_rank == 2 and self.copies == 1

    def takes_stages(self, stages_per_rank: int) -> bool:
        """Whether ranks may hold so many stages each."""
        wanted = self.stages_per_rank
        return stages_per_rank >= 2 if wanted == 0 else stages_per_rank == wanted

    def rank_of(self, num_ranks: int, stage: int) -> int:
        """The pipeline rank that holds a virtual stage.

        >>> [schedule_kind("zbv").rank_of(3, stage) for stage in range(6)]
        [0, 1, 2, 2, 1, 0]
        """
        turn, place = divmod(stage, num_ranks)
        return num_ranks - 1 - place if turn % 2 and self.placement is Placement.V else place

    def stages_of(self, num_ranks: int, stages_per_rank: int, rank: int) -> tuple[int, ...]:
        """Virtual stages that a pipeline rank holds, in chain order."""
        stages = range(num_ranks * stages_per_rank)
        return tuple(stage for stage in stages if self.rank_of(num_ranks, stage) == rank)


# Filled by the files in simulator/schedules when the first schedule is asked for.
_KINDS: dict[str, ScheduleKind] = {}
_MAKERS: dict[str, ScheduleFunction] = {}
_PIPELINES: list[str] = []


def register(kind: ScheduleKind) -> Callable[[ScheduleFunction], ScheduleFunction]:
    """Decorator: the function makes the schedules of this kind."""

    def put(function: ScheduleFunction) -> ScheduleFunction:
        if kind.name != "none" and kind.name not in _KINDS:
            _PIPELINES.append(kind.name)
        _KINDS[kind.name] = kind
        _MAKERS[kind.name] = function
        return function

    return put


@functools.cache
def _read_all() -> None:
    # Late, as those files import this one.
    importlib.import_module("simulator.schedules")


def schedule_kind(name: str) -> ScheduleKind:
    """What a schedule's name says; raises UnknownNameError."""
    _read_all()
    if name not in _KINDS:
        raise UnknownNameError("schedule", name, _KINDS)
    return _KINDS[name]


def schedule_names() -> tuple[str, ...]:
    """Names that `build_schedule` knows, in the order of their registration."""
    _read_all()
    return tuple(_KINDS)


def pipeline_names() -> Sequence[str]:
    """Schedules of two ranks or more, in the order of their registration; it grows with them."""
    _read_all()
    return _PIPELINES


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
    kind = schedule_kind(name)
    if num_ranks < 1 or num_microbatches < 1 or stages_per_rank < 1:
        raise InputError(
            f"a schedule needs at least one rank, micro-batch and stage per rank, got {num_ranks}, "
            f"{num_microbatches} and {stages_per_rank}"
        )
    # Rounds may be uneven, as in torch; our searches want whole ones.
    refusal = "" if kind.whole_rounds else kind.why_not(num_ranks, num_microbatches)
    if refusal:
        raise InputError(refusal)
    options = ScheduleOptions(
        stages_per_rank=stages_per_rank, durations=durations, kept_for_weights=kept_for_weights
    )
    return _MAKERS[name](num_ranks, num_microbatches, options)
