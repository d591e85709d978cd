"""`FleetProblem`: runs, the pools of nodes that they may use, and time in whole steps of a grid.

Durations and earliest begins are rounded up to the grid, latest ends down, so that a schedule on
the grid can be kept in real time.

Error bound of the grid: take any schedule of N phases, numbered in the order in which they begin.
Phase k that begins at s and takes d begins on the grid at ceil(s) + k and takes ceil(d). Of two
phases that do not overlap, i before j, s_j >= s_i + d_i, so that

    ceil(s_j) + j >= ceil(s_i + d_i) + i + 1 >= (ceil(s_i) + i) + ceil(d_i)

and they do not overlap on the grid either: capacities and orders are kept, and every phase ends
less than N + 1 steps later. The best schedule on the grid is at most this much worse than the best
one at any times (`FleetProblem.grid_error_h`), if windows and hard deadlines leave room.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InputError

LATENESS, COST, END = "lateness", "cost", "end"
"""The objectives in lexicographic order: weighted lateness, dollars, end of the last phase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Nodes shared by phases: `nodes` of them from step `opens` until step `closes` (None: no
    end)."""

    nodes: int
    opens: int = 0
    closes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A way to run a phase: nodes of a pool, duration in steps of the grid, and US dollars."""

    pool: int
    nodes: int
    steps: int
    usd: float = 0.0

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.steps < 1 or self.usd < 0:
            raise InputError(f"a choice needs 1 node, 1 step and 0 dollars or more: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run as a sequence of phases.

    phases        the choices of each phase
    release       earliest step at which it may begin
    deadline      step by which it should end, None for none
    hard          whether it must end by the deadline
    priority      weight of a step of lateness without a price
    usd_per_step  cost of a step of lateness; 0: lateness is weighted by `priority` and minimized
                  before dollars
    after         jobs that must end before it begins
    may_move      whether its phases may use different pools
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
    """Jobs and pools; `step_h` are the hours of a step, `levels` the objectives in order."""

    pools: tuple[Pool, ...]
    jobs: tuple[Job, ...]
    step_h: float = 1.0
    levels: tuple[str, ...] = (LATENESS, COST, END)

    @property
    def horizon(self) -> int:
        """Number of steps until all phases have ended, if each begins as early as possible."""
        begin = max((job.release for job in self.jobs), default=0)
        begin = max([begin, *(pool.opens for pool in self.pools)])
        longest = sum(
            max(choice.steps for choice in phase) for job in self.jobs for phase in job.phases
        )
        return begin + longest

    @property
    def grid_error_h(self) -> float:
        """Hours by which a phase might end earlier without the grid."""
        return (sum(len(job.phases) for job in self.jobs) + 1) * self.step_h


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A phase in a schedule: the index of its choice, and its first step."""

    choice: int
    start: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The minimized values of a schedule.

    lateness   steps times priorities
    usd        including the cost of lateness
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
