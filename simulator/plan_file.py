"""The plan file: what `plan` answers, and what `run`, `compare` and `export` read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from profiles.document import read_document
from profiles.errors import DocumentError
from simulator.plan import PLAN_SCHEMA, Plan
from simulator.prediction import Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """A runner-up: the best plan of another cell, and why it is not first."""

    plan: Plan
    step_time_s: float
    step_time_low_s: float
    step_time_high_s: float
    mfu: float
    peak_memory_bytes: float
    usd_per_million_tokens: float | None = None
    why_not_first: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """A change under which a plan exists, checked by solving it."""

    change: str
    flag: str
    step_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasibility:
    """Why nothing fits: the plan that comes nearest, its tight stage and term, what would help."""

    nearest: str
    stage: int
    term: str
    needed_bytes: float
    capacity_bytes: float
    relaxations: tuple[Relaxation, ...]

    @property
    def bytes_over(self) -> float:
        """What the device lacks."""
        return self.needed_bytes - self.capacity_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanFile:
    """The whole answer of a search.

    status       `optimal`, `feasible` or `infeasible`
    bound        no plan of the searched space is predicted faster than this many seconds
    gap          (step_time_s - bound) / step_time_s
    assumptions  what was assumed because no flag said it, each with the flag that changes it
    solver       what proved it: `dp`, `ilp` or `dp+ilp`
    machine      what the machine that runs it must show (Cluster.machine); empty where unknown
    """

    status: str
    bound: float | None = None
    gap: float | None = None
    step_time_s: float | None = None
    step_time_low_s: float | None = None
    step_time_high_s: float | None = None
    mfu: float | None = None
    peak_memory_bytes: float | None = None
    usd_per_million_tokens: float | None = None
    search_time_s: float
    cells_considered: int
    cells_pruned: int = 0
    cells_refined: int = 0
    solver: str = ""
    plan: Plan | None = None
    prediction: Prediction | None = None
    alternatives: tuple[Alternative, ...] = ()
    infeasibility: Infeasibility | None = None
    assumptions: tuple[str, ...] = ()
    machine: Mapping[str, str] = field(default_factory=dict)


def read_plan(path: str | Path) -> Plan:
    """The plan in a plan file; raises DocumentError where the file holds an infeasible answer."""
    answer = read_document(path, PlanFile, schema=PLAN_SCHEMA)
    if answer.plan is None:
        raise DocumentError(f"{path} holds no plan: its status is {answer.status!r}")
    return answer.plan
