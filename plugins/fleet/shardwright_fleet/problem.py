"""`FleetProblem`: runs, the pools of nodes that they may use, and time in whole steps of a grid.

Every duration is rounded up to the grid, every date by which something must be over down, and every
date from which something may begin up, so that a schedule on the grid can be kept in real time.

What that costs: let a schedule of N phases, at any times, be given, its phases numbered in the
order in which they begin. Phase k that begins at s and takes d begins on the grid at ceil(s) + k
and takes ceil(d). Of two phases that do not overlap, i before j, s_j >= s_i + d_i, so that

    ceil(s_j) + j >= ceil(s_i + d_i) + i + 1 >= (ceil(s_i) + i) + ceil(d_i)

and they do not overlap on the grid either: capacities and orders are kept, and every phase ends
less than N + 1 steps later. The best schedule of the grid is so much worse at most than the best at
any times (`FleetProblem.grid_error_h`), as far as windows and hard deadlines leave room.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InputError

LATENESS, COST, END = "lateness", "cost", "end"
"""What is least, one after the other: weighted lateness, dollars, the end of the last phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Nodes that phases share: `nodes` of them from step `opens` until step `closes` (None: for
    ever)."""

    nodes: int
    opens: int = 0
    closes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A way to run a phase: on so many nodes of a pool, for so many steps of the grid, for so many
    US dollars."""

    pool: int
    nodes: int
    steps: int
    usd: float = 0.0

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.steps < 1 or self.usd < 0:
            raise InputError(f"a choice needs 1 node, 1 step and 0 dollars or more: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Phases, one after the other.

    phases        of each its choices
    release       step from which on it may begin
    deadline      step by which it should be over, None for none;  hard  whether it must
    priority      what a step of lateness weighs, where it has no price
    usd_per_step  what a step of lateness costs; 0: it weighs `priority` and comes before all money
    after         jobs that must be over before
    may_move      between pools, from phase to phase
    """

    phases: tuple[tuple[Choice, ...], ...]
    release: int = 0
    deadline: int | None = None
    hard: bool = False
    priority: int = 1
    usd_per_step: float = 0.0
    after: tuple[int, ...] = ()
    may_move: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetProblem:
    """Jobs and pools; step_h  hours of a step;  levels  what is least, one after the other."""

    pools: tuple[Pool, ...]
    jobs: tuple[Job, ...]
    step_h: float = 1.0
    levels: tuple[str, ...] = (LATENESS, COST, END)

    @property
    def horizon(self) -> int:
        """Steps after which all is over, if every phase begins as soon as it can."""
        begin = max((job.release for job in self.jobs), default=0)
        begin = max([begin, *(pool.opens for pool in self.pools)])
        longest = sum(
            max(choice.steps for choice in phase) for job in self.jobs for phase in job.phases
        )
        return begin + longest

    @property
    def grid_error_h(self) -> float:
        """Hours by which a phase may end earlier where it need not begin on the grid."""
        return (sum(len(job.phases) for job in self.jobs) + 1) * self.step_h


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A phase in a schedule: which of its choices, and from which step on."""

    choice: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The values of a schedule that are minimized.

    lateness   steps times priorities;  usd  with what lateness costs
    end        step after the last phase
    """

    lateness: int
    usd: float
    end: int

    def at(self, level: str) -> float:
        """The value of a level."""
        return {LATENESS: float(self.lateness), COST: self.usd, END: float(self.end)}[level]


Schedule = tuple[tuple[Placed, ...], ...]
"""[job][phase]"""


def end_of(job: Job, placed: tuple[Placed, ...]) -> int:
    """The step after the last phase of a job."""
    return placed[-1].start + job.phases[-1][placed[-1].choice].steps


def late_steps(job: Job, end: int) -> int:
    """Steps after the deadline."""
    return 0 if job.deadline is None else max(0, end - job.deadline)


def values_of(problem: FleetProblem, schedule: Schedule) -> Values:
    """The values of a schedule."""
    ends = [end_of(job, placed) for job, placed in zip(problem.jobs, schedule, strict=True)]
    late = [late_steps(job, end) for job, end in zip(problem.jobs, ends, strict=True)]
    return Values(
        lateness=sum(
            job.priority * steps
            for job, steps in zip(problem.jobs, late, strict=True)
            if not job.usd_per_step
        ),
        usd=sum(
            job.phases[number][one.choice].usd
            for job, placed in zip(problem.jobs, schedule, strict=True)
            for number, one in enumerate(placed)
        )
        + sum(job.usd_per_step * steps for job, steps in zip(problem.jobs, late, strict=True)),
        end=max(ends),
    )
