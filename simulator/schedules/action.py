"""An action of a pipeline rank, in the letters and the notation of torch.distributed.pipelining."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ActionKind(StrEnum):
    """F forward, B full backward, I backward of the inputs, W backward of the weights."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One action of a rank; prints as torch writes it.

    >>> str(Action(2, ActionKind.FORWARD, 0))
    '2F0'
    """

    stage: int
    kind: ActionKind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{self.microbatch}"


def forward(stage: int, microbatch: int) -> Action:
    """`F` of the stage on the micro-batch."""
    return Action(stage, ActionKind.FORWARD, microbatch)


def backward(stage: int, microbatch: int) -> Action:
    """`B` of the stage on the micro-batch."""
    return Action(stage, ActionKind.BACKWARD, microbatch)


def backward_input(stage: int, microbatch: int) -> Action:
    """`I` of the stage on the micro-batch."""
    return Action(stage, ActionKind.BACKWARD_INPUT, microbatch)


def backward_weight(stage: int, microbatch: int) -> Action:
    """`W` of the stage on the micro-batch."""
    return Action(stage, ActionKind.BACKWARD_WEIGHT, microbatch)
