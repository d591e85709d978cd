"""Schedules: the order of each pipeline rank's actions on its stages and micro-batches.

An `Action` prints and parses as in torch.distributed.pipelining: `2F0` is the forward of stage 2
on micro-batch 0, `B` a full backward, `I` the gradient of the inputs alone, `W` the gradient of the
weights alone.

A schedule is a function (ranks, micro-batches, ScheduleOptions) -> actions per rank, registered
with a `ScheduleKind`. Every file in `simulator/schedules/` is loaded. Planner, step time, memory
and executor use the kind's properties; there is no other list of schedules.
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
from simulator.schedules.durations import Durations

Rows = tuple[tuple[Action, ...], ...]


class Placement(StrEnum):
    """Assignment of virtual stages to ranks."""

    LOOP = "loop"
    """Stage s is on rank s % num_ranks (Narayanan et al., arXiv 2104.04473, section 2.2)."""

    V = "v"
    """Stage s is on rank s, then 2 num_ranks - 1 - s (Qi et al., arXiv 2401.10241, section 6)."""

    def rank_of(self, num_ranks: int, stage: int) -> int:
        """The rank of a virtual stage; V turns at each end."""
        turn, place = divmod(stage, num_ranks)
        return num_ranks - 1 - place if turn % 2 and self is Placement.V else place

    def ranks_of(self, num_ranks: int, stages_per_rank: int) -> tuple[int, ...]:
        """The rank of every virtual stage.

        >>> Placement.V.ranks_of(3, 2), Placement.LOOP.ranks_of(3, 2)
        ((0, 1, 2, 2, 1, 0), (0, 1, 2, 0, 1, 2))
        """
        stages = range(num_ranks * stages_per_rank)
        return tuple(self.rank_of(num_ranks, stage) for stage in stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The actions of every pipeline rank in order.

    stage_to_rank  pipeline rank of each virtual stage
    copies         copies of the model's chain of stages: two in DualPipe, otherwise one. With n
                   virtual stages, stage s is part s % (n / copies) of copy s // (n / copies). Copy
                   c processes the c-th equal part of the micro-batches
    """

    name: str
    num_microbatches: int
    stage_to_rank: tuple[int, ...]
    ranks: Rows
    copies: int = 1

    def __post_init__(self) -> None:
        check_schedule(self)

    def __hash__(self) -> int:
        # Hashing every action would be slow.
        return hash((self.name, self.num_microbatches, self.stage_to_rank))

    @property
    def num_stages(self) -> int:
        return len(self.stage_to_rank)

    @property
    def num_ranks(self) -> int:
        return len(self.ranks)

    @property
    def stages_per_copy(self) -> int:
        """Stages of one copy of the model."""
        return self.num_stages // self.copies

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Virtual stages of a pipeline rank, in order."""
        return tuple(stage for stage, owner in enumerate(self.stage_to_rank) if owner == rank)

    def microbatches_of(self, stage: int) -> range:
        """Micro-batches of a virtual stage: its copy's share of all."""
        share = self.num_microbatches // self.copies
        copy = stage // self.stages_per_copy
        return range(copy * share, (copy + 1) * share)


def check_schedule(schedule: Schedule) -> None:
    """Checks that every action occurs once, on its stage's rank, and that the schedule can finish.

    Raises InputError for the first fault: an action that is missing, duplicated or on the wrong
    rank, or a deadlock, with the actions that wait for each other.
    """
    stages, copies = schedule.num_stages, schedule.copies
    if stages % copies or schedule.num_microbatches % copies:
        raise InputError(
            f"the {copies} model copies must divide {stages} stages and "
            f"{schedule.num_microbatches} micro-batches"
        )
    seen: set[tuple[int, str, int]] = set()
    counts = dict.fromkeys("FBIW", 0)
    allowed = [schedule.microbatches_of(stage) for stage in range(stages)]
    for rank, row in enumerate(schedule.ranks):
        for action in row:
            if not 0 <= action.stage < stages:
                raise InputError(f"{action}: unknown stage; use 0 to {stages - 1}")
            if schedule.stage_to_rank[action.stage] != rank:
                owner = schedule.stage_to_rank[action.stage]
                raise InputError(f"{action} is on rank {rank}, its stage is on rank {owner}")
            if action.microbatch not in allowed[action.stage]:
                raise InputError(f"{action}: its stage does not run this micro-batch")
            letter = action.kind.value.replace("I", "B")  # either kind of backward
            if (action.stage, letter, action.microbatch) in seen:
                raise InputError(f"{action} is in the schedule twice")
            seen.add((action.stage, letter, action.microbatch))
            counts[action.kind.value] += 1
    needed = stages * schedule.num_microbatches // copies
    for kind, count in (("F", counts["F"]), ("B", counts["B"] + counts["I"])):
        if count != needed:
            raise InputError(f"the schedule has {count} {kind} actions, {needed} are needed")
    if counts["W"] != counts["I"]:
        raise InputError(
            f"the schedule has {counts['W']} W actions for {counts['I']} I actions; each I needs "
            "one W"
        )
    action_graph(schedule)


@dataclass(frozen=True, slots=True)
class ActionGraph:
    """Dependencies of the actions of a schedule, numbered rank by rank.

    ranks    rank of each action;  lasts  last action of each rank
    order    a topological order
    length   index of each action's seconds in `Durations.lengths`
    before   previous action of the same rank, -1 for none
    source   neighbor's action to wait for, -1 for none (the action's own forward, or I before W,
             is before it on its rank)
    crossing index of the message's seconds in (0, *send_forward_s, *send_backward_s), followed by
             the same sends with `ramp_send_s` added
    """

    actions: tuple[Action, ...]
    ranks: tuple[int, ...]
    lasts: tuple[int, ...]
    order: tuple[int, ...]
    length: tuple[int, ...]
    before: tuple[int, ...]
    source: tuple[int, ...]
    crossing: tuple[int, ...]


@functools.lru_cache(maxsize=64)
def action_graph(schedule: Schedule) -> ActionGraph:
    """The graph of a schedule; the order is from a simulation of all ranks.

    Raises InputError if all remaining actions wait for each other.
    """
    micro, stages, per_copy = (
        schedule.num_microbatches,
        schedule.num_stages,
        schedule.stages_per_copy,
    )
    actions = tuple(action for row in schedule.ranks for action in row)
    ranks = tuple(rank for rank, row in enumerate(schedule.ranks) for _ in row)
    ends = list(accumulate(map(len, schedule.ranks)))
    # Numbers of the F and of the B or I of each stage and micro-batch.
    forwards, backwards = [-1] * (stages * micro), [-1] * (stages * micro)
    for number, action in enumerate(actions):
        if action.kind is not ActionKind.BACKWARD_WEIGHT:
            numbers = forwards if action.kind is ActionKind.FORWARD else backwards
            numbers[action.stage * micro + action.microbatch] = number
    own, source, crossing = [-1] * len(actions), [-1] * len(actions), [0] * len(actions)
    for number, action in enumerate(actions):
        stage, kind = action.stage, action.kind
        at = stage * micro + action.microbatch
        ahead = kind is ActionKind.FORWARD
        if kind is ActionKind.BACKWARD_WEIGHT:
            halved = actions[backwards[at]].kind is ActionKind.BACKWARD_INPUT
            own[number] = backwards[at] if halved else number
            continue
        if ahead and stage % per_copy:
            source[number] = forwards[at - micro]
        elif not ahead:
            own[number] = forwards[at]
            if (stage + 1) % per_copy:
                source[number] = backwards[at + micro]
        if source[number] >= 0 and ranks[source[number]] != ranks[number]:
            cut, last = (stage, 0) if ahead else (stage + 1, micro - 1)
            ramp = action.microbatch == last and cut < len(ends)
            crossing[number] = 1 + cut + stages * (2 * ramp + (not ahead))
    return ActionGraph(
        actions=actions,
        ranks=ranks,
        lasts=tuple(end - 1 for end in ends),
        order=_executable_order(actions, ends, own, source),
        length=tuple(_LENGTHS[action.kind] * stages + action.stage for action in actions),
        before=tuple(-1 if n == 0 or ranks[n] != ranks[n - 1] else n - 1 for n in range(ends[-1])),
        source=tuple(source),
        crossing=tuple(crossing),
    )


_LENGTHS = {kind: number for number, kind in enumerate(ActionKind)}


def _executable_order(
    actions: Sequence[Action], ends: Sequence[int], own: Sequence[int], source: Sequence[int]
) -> tuple[int, ...]:
    """The actions in the order of a simulation; `own` is an action of the same rank to wait for."""
    order: list[int] = []
    done = bytearray(len(actions) + 1)
    done[-1] = True  # read by actions that wait for no other
    position = [0, *ends[:-1]]
    moved = True
    while moved:
        moved = False
        for rank, end in enumerate(ends):
            number = position[rank]
            while number < end and own[number] < number and done[source[number]]:
                done[number] = True
                order.append(number)
                number += 1
                moved = True
            position[rank] = number
    waiting = [str(actions[n]) for n, end in zip(position, ends, strict=True) if n < end]
    if waiting:
        raise InputError(f"the schedule never ends: {', '.join(waiting)} wait for each other")
    return tuple(order)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleOptions:
    """Inputs of a schedule in addition to its ranks and micro-batches.

    stages_per_rank   stages on each rank
    durations         seconds per virtual stage, for schedules optimized for them (zb-1p, zb-2p);
                      None: F, I and W take equally long, sends take no time
    kept_for_weights  share of a micro-batch's activations kept from I to W, M_W / M_B of Qi et al.
                      (arXiv 2401.10241, section 2.3); 1 keeps all of them
    """

    stages_per_rank: int
    durations: Durations | None
    kept_for_weights: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.kept_for_weights <= 1.0:
            raise InputError(f"kept_for_weights must be from 0 to 1, got {self.kept_for_weights}")


ScheduleFunction = Callable[[int, int, ScheduleOptions], Rows]
WHOLE_EXPERTS = ("mlp", "norm-mlp", "full")
"""Kinds of recomputation that run the experts' messages again."""

HeldFunction = Callable[[int, int, int], tuple[tuple[int, ...], ...]]
"""(ranks, micro-batches, stages per rank) -> per rank the micro-batches of each stage when the rank
keeps the most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleKind:
    """A schedule's name and its properties, the only definition of both.

    placement        of its virtual stages on the ranks
    stages_per_rank  required number; 0 for two or more, as given by the plan
    splits_backward  runs the gradients of inputs (I) and of weights (W) as separate actions
    copies           of the model (`Schedule.copies`)
    pairs            overlaps a forward with a backward, so that all-to-alls of one overlap with the
                     other's compute (DeepSeek-V3, arXiv 2412.19437, section 3.2.1, figure 4)
    for_experts      exists only for such pairs: searched if experts are spread over ranks and no
                     layer is fully recomputed (Megatron-Core core_v0.14,
                     core/transformer/transformer_config.py: overlap_moe_expert_parallel_comm)
    microbatches_per_rank   minimum number of micro-batches per rank
    whole_rounds     the number of micro-batches must be a multiple of the number of ranks
    even             needs even numbers of ranks and of micro-batches
    follows_durations  its order depends on the durations, so plan files cannot name it
    closed_form      its idle time is 1F1B's closed form; otherwise taken from the timeline
    words            other names for it in published rows, lower case with hyphens
    held             closed form of the micro-batches in flight, each until its weight gradients;
                     None: counted from the actions
    """

    name: str
    placement: Placement = Placement.LOOP
    stages_per_rank: int = 1
    splits_backward: bool = False
    copies: int = 1
    pairs: bool = False
    for_experts: bool = False
    microbatches_per_rank: int = 0
    whole_rounds: bool = False
    even: bool = False
    follows_durations: bool = False
    closed_form: bool = False
    words: tuple[str, ...] = ()
    held: HeldFunction | None = None

    def why_not(self, num_ranks: int, num_microbatches: int) -> str:
        """Why it cannot run these numbers of micro-batches and ranks, or ""."""
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
        """Its requirements on a pipeline as text; "" if it runs on every pipeline."""
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
    def is_interleaved(self) -> bool:
        """Whether a plan chooses the number of stages per rank, two or more."""
        return self.stages_per_rank == 0

    def suits(self, *, ep: int, recompute: str) -> bool:
        """Whether it can run with experts on ep ranks and this kind of recomputation."""
        return not self.for_experts or (ep > 1 and recompute not in WHOLE_EXPERTS)

    @property
    def is_v(self) -> bool:
        """Whether every rank has two stages, placed in a V, of one copy of the model."""
        return self.placement is Placement.V and self.stages_per_rank == 2 and self.copies == 1

    def takes_stages(self, stages_per_rank: int) -> bool:
        """Whether it can run with this number of stages per rank."""
        needed = self.stages_per_rank
        return stages_per_rank >= 2 if needed == 0 else stages_per_rank == needed

    def rank_of(self, num_ranks: int, stage: int) -> int:
        """Pipeline rank of a virtual stage.

        >>> [schedule_kind("zbv").rank_of(3, stage) for stage in range(6)]
        [0, 1, 2, 2, 1, 0]
        """
        return self.placement.rank_of(num_ranks, stage)

    def stages_of(self, num_ranks: int, stages_per_rank: int, rank: int) -> tuple[int, ...]:
        """Virtual stages of a pipeline rank, in chain order."""
        ranks = self.placement.ranks_of(num_ranks, stages_per_rank)
        return tuple(stage for stage, owner in enumerate(ranks) if owner == rank)


# Filled by the files in simulator/schedules at the first lookup.
_KINDS: dict[str, ScheduleKind] = {}
_MAKERS: dict[str, ScheduleFunction] = {}
_PIPELINES: list[str] = []


def register(kind: ScheduleKind) -> Callable[[ScheduleFunction], ScheduleFunction]:
    """Decorator: registers the function that builds schedules of this kind."""

    def put(function: ScheduleFunction) -> ScheduleFunction:
        if kind.name != "none" and kind.name not in _KINDS:
            _PIPELINES.append(kind.name)
        _KINDS[kind.name] = kind
        _MAKERS[kind.name] = function
        return function

    return put


@functools.cache
def _read_all() -> None:
    # Not at import time, since those files import this one.
    importlib.import_module("simulator.schedules")


def schedule_kind(name: str) -> ScheduleKind:
    """The kind of a schedule by name; raises UnknownNameError."""
    _read_all()
    if name not in _KINDS:
        raise UnknownNameError("schedule", name, _KINDS)
    return _KINDS[name]


def schedule_names() -> tuple[str, ...]:
    """Names of all schedules, in the order of their registration."""
    _read_all()
    return tuple(_KINDS)


def pipeline_names() -> Sequence[str]:
    """Names of schedules for two or more ranks, in the order of registration; a live list."""
    _read_all()
    return _PIPELINES


# By `ScheduleKind.stages_per_rank`: the text, and the fix for another number.
_STAGES = {
    0: ("two or more stages", "use --vpp 2"),
    1: ("one stage", "use --vpp 1, or interleaved"),
    2: ("two stages", "use --vpp 2"),
}


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
    """The schedule `name`; `ScheduleOptions` documents the last three arguments.

    Raises UnknownNameError for an unknown name, InputError for counts it cannot run.
    """
    kind = schedule_kind(name)
    if num_ranks < 1 or num_microbatches < 1 or stages_per_rank < 1:
        raise InputError(
            f"a schedule needs at least one rank, micro-batch and stage per rank, got {num_ranks}, "
            f"{num_microbatches} and {stages_per_rank}"
        )
    if not kind.takes_stages(stages_per_rank):
        needed, fix = _STAGES[kind.stages_per_rank]
        raise InputError(f"{name} has {needed} per rank, got {stages_per_rank}; {fix}")
    # Rounds may be uneven here, as in torch; only the searches require whole rounds.
    refusal = "" if kind.whole_rounds else kind.why_not(num_ranks, num_microbatches)
    if refusal:
        raise InputError(refusal)
    options = ScheduleOptions(
        stages_per_rank=stages_per_rank, durations=durations, kept_for_weights=kept_for_weights
    )
    # Two copies of the model run down and up the ranks: they are placed as a V of two stages.
    placement = Placement.V if kind.copies > 1 else kind.placement
    return Schedule(
        name=name,
        num_microbatches=num_microbatches,
        stage_to_rank=placement.ranks_of(num_ranks, kind.copies * stages_per_rank),
        ranks=_MAKERS[name](num_ranks, num_microbatches, options),
        copies=kind.copies,
    )
