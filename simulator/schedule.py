"""Schedules: in which order each pipeline rank runs which action on which micro-batch.

An `Action` prints and parses as in torch.distributed.pipelining: `2F0` is the forward of stage 2
on micro-batch 0, `B` a full backward, `I` the gradient of the inputs alone, `W` that of the
weights alone. A `Schedule` as CSV has one line per rank and one action per cell; torch reads it.

A schedule is a function (num_ranks, num_microbatches, stages_per_rank) -> Schedule, registered by
name in `SCHEDULES`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from profiles.errors import InputError

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
