"""Phases of one run: ramps of batch and sequence length, context extension, annealing.

    schema = "shardwright/phases@1"

    [[phases]]
    name = "main"
    tokens = "14T"
    seq = 8192
    global_batch = 2048

    [[phases]]
    name = "context extension"
    tokens = "800B"
    seq = 131072
    global_batch = 128

The nodes are chosen for the phase with the most tokens, for the total time of all phases: each
other phase runs on the same nodes with its fastest layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner.layout.layout_question import LayoutSolver
from planner.sizing.size_question import SizeQuestion
from planner.sizing.sizing_search import SizedRun, question_of_run
from profiles.errors import InputError
from profiles.units import parse_quantity

PHASES_SCHEMA = "shardwright/phases@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """A part of a run with constant sequence length and batch.

    tokens        a count as text: `14T`
    seq           tokens per sequence
    global_batch  sequences per step
    """

    tokens: str
    seq: int
    global_batch: int
    name: str = ""

    def __post_init__(self) -> None:
        if parse_quantity(self.tokens, "count", where="tokens") < 1:
            raise InputError(f"tokens = {self.tokens!r} must be 1 or more")
        if min(self.seq, self.global_batch) < 1:
            raise InputError(
                f"seq = {self.seq}, global_batch = {self.global_batch}: both must be 1 or more"
            )

    @property
    def tokens_count(self) -> float:
        """Tokens of the phase."""
        return parse_quantity(self.tokens, "count")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseFile:
    """The phases of a file, in their order."""

    phases: tuple[Phase, ...]


def stretch_of_phases(
    question: SizeQuestion,
    run: SizedRun,
    phases: Sequence[Phase],
    solver: LayoutSolver,
) -> float:
    """Steady time of all phases on a run's nodes, over that of the phase with the most tokens.

    Raises InputError if a phase has no layout there.
    """
    longest = max(phases, key=lambda phase: phase.tokens_count)
    total = 0.0
    for phase in phases:
        if phase is longest:
            step_s = run.layout.step_time_s
        else:
            asked = question_of_run(
                replace(question, seq_len=phase.seq), run, batch=phase.global_batch
            )
            best = solver.best(asked)
            if best is None:
                raise InputError(
                    f"phase {phase.name or phase.tokens!r}: no layout of {run.stack} for "
                    f"{phase.global_batch:,} sequences of {phase.seq:,} tokens fits on "
                    f"{run.devices:,} {run.choice.asked}; change the phase's batch or length, or "
                    "--nodes"
                )
            step_s = best.step_time_s
        total += phase.tokens_count / (phase.seq * phase.global_batch) * step_s
    own = longest.tokens_count / (longest.seq * longest.global_batch) * run.layout.step_time_s
    return total / own
