"""`FleetAnswer`: a schedule of runs on nodes, with its cost and its distance from the optimum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from shardwright_fleet.own_or_rent import OwnOrRent
from shardwright_fleet.phase_price import PhasePrice
from shardwright_fleet.problem import (
    COST,
    FleetProblem,
    end_of,
    late_steps,
    values_of,
)
from shardwright_fleet.question import FleetQuestion, Priced, usd_of
from shardwright_fleet.relax import Relaxed
from shardwright_fleet.solver import Proof, Solution
from simulator.log_interval import probability_below, total

_LEVEL_WORDS = {
    "lateness": "days late, weighted",
    "cost": "US dollars",
    "end": "days until the last phase is over",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A minimized quantity: its value and its proven lower bound, in days or US dollars."""

    name: str
    counted_in: str
    value: float
    bound: float
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPhase:
    """A phase in the schedule; hours after the start.

    begin_h, end_h   on the grid: nodes are reserved until then
    usd              of this phase, 0 on owned nodes
    """

    job: str
    phase: str
    cluster: str
    nodes: int
    devices: int
    begin_h: float
    end_h: float
    price: PhasePrice
    usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRun:
    """A run in the schedule.

    late_h, usd_late   hours after the deadline, and their cost
    probability   of meeting the deadline if each phase begins as planned
    """

    job: str
    priority: int
    deadline_h: float | None
    hard: bool
    begin_h: float
    end_h: float
    late_h: float
    usd_late: float
    probability: float | None
    phases: tuple[PlannedPhase, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterUse:
    """Use of a cluster, from its opening to the end of the last phase of all runs.

    used    used share of its node-hours (`open_device_hours` / devices of a node)
    usd     of the used hours, if it is rented
    usd_standing   of all its hours, used or not, if it is owned and has a price
    """

    cluster: str
    on: str
    nodes: int
    used: float
    open_device_hours: float
    device_hours: float
    usd: float
    usd_standing: float | None
    price_words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Lower bounds on the gains of a purchase, from solving the schedule with it.

    late_days   sum over all jobs
    usd         of rented hours and of lateness
    end_days    end of the last job
    """

    change: str
    late_days: float
    weighted_days: float
    usd: float
    end_days: float
    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededChange:
    """A change that makes the hard deadlines possible."""

    change: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAnswer:
    """The answer.

    status    `optimal`, `feasible` (see gap) or `infeasible`
    gap       the largest of the levels
    owning    each cluster bought and rented, if a file of ownership costs is given
    binds     the obstacles if infeasible
    changes   the smallest sufficient changes
    """

    status: str
    start: str
    step_h: float
    levels: tuple[Level, ...] = ()
    gap: float | None = None
    runs: tuple[PlannedRun, ...] = ()
    clusters: tuple[ClusterUse, ...] = ()
    usd: float = 0.0
    end_h: float = 0.0
    advice: tuple[Advice, ...] = ()
    owning: tuple[OwnOrRent, ...] = ()
    binds: tuple[str, ...] = ()
    changes: tuple[NeededChange, ...] = ()
    assumptions: tuple[str, ...] = ()
    search_time_s: float = 0.0


def fleet_answer(
    question: FleetQuestion, priced: Priced, problem: FleetProblem, solution: Solution
) -> FleetAnswer:
    """The answer of a solution that has a schedule."""
    schedule = solution.schedule
    assert schedule is not None
    step = problem.step_h
    runs = []
    for number, (run, job, placed) in enumerate(
        zip(question.runs, problem.jobs, schedule, strict=True)
    ):
        phases = []
        for index, one in enumerate(placed):
            choice = priced[number][index][one.choice]
            cluster = question.clusters[choice.cluster]
            phases.append(
                PlannedPhase(
                    job=run.name,
                    phase=run.phases[index].name,
                    cluster=cluster.name,
                    nodes=choice.nodes,
                    devices=choice.nodes * cluster.node_devices,
                    begin_h=one.start * step,
                    end_h=(one.start + job.phases[index][one.choice].steps) * step,
                    price=choice.price,
                    usd=usd_of(cluster, choice),
                )
            )
        end = end_of(job, placed)
        late = late_steps(job, end)
        runs.append(
            PlannedRun(
                job=run.name,
                priority=run.priority,
                deadline_h=run.deadline_h,
                hard=job.hard,
                begin_h=phases[0].begin_h,
                end_h=end * step,
                late_h=late * step,
                usd_late=late * job.usd_per_step,
                probability=_probability(run.deadline_h, phases),
                phases=tuple(phases),
            )
        )
    values = values_of(problem, schedule)
    return FleetAnswer(
        status=solution.status,
        start=question.start,
        step_h=step,
        levels=tuple(level_of(proof, step) for proof in solution.proofs),
        gap=solution.gap,
        runs=tuple(runs),
        clusters=_uses(question, runs, values.end * step),
        usd=values.usd,
        end_h=values.end * step,
    )


def level_of(proof: Proof, step_h: float) -> Level:
    """A proof in days or US dollars."""
    unit = 1.0 if proof.level == COST else step_h / 24.0
    return Level(
        name=proof.level,
        counted_in=_LEVEL_WORDS[proof.level],
        value=proof.value * unit,
        bound=proof.bound * unit,
        gap=proof.gap,
    )


def _probability(deadline_h: float | None, phases: Sequence[PlannedPhase]) -> float | None:
    """Probability of meeting a deadline; delays of a run's phases are fully correlated."""
    if deadline_h is None:
        return None
    whole = total(*(phase.price.days for phase in phases))
    waited = phases[0].begin_h + sum(
        behind.begin_h - before.end_h for before, behind in pairwise(phases)
    )
    return probability_below(whole, (deadline_h - waited) / 24.0)


def _uses(
    question: FleetQuestion, runs: Sequence[PlannedRun], end_h: float
) -> tuple[ClusterUse, ...]:
    found = []
    for cluster in question.clusters:
        phases = [p for run in runs for p in run.phases if p.cluster == cluster.name]
        closes = end_h if cluster.closes_h is None else min(end_h, cluster.closes_h)
        open_h = max(0.0, closes - cluster.opens_h)
        hours = sum(p.devices * (p.end_h - p.begin_h) for p in phases)
        have = cluster.nodes * cluster.node_devices * open_h
        price = cluster.price
        found.append(
            ClusterUse(
                cluster=cluster.name,
                on=cluster.on,
                nodes=cluster.nodes,
                used=hours / have if have else 0.0,
                open_device_hours=have,
                device_hours=hours,
                usd=sum(p.usd for p in phases),
                usd_standing=have * price.value if cluster.owned and price else None,
                price_words=price.source if price is not None else "",
            )
        )
    return tuple(found)


def advice_of(
    change: str, problem: FleetProblem, solution: Solution, before: FleetAnswer
) -> Advice | None:
    """The gain of a change; None if it was not solved in time."""
    if solution.schedule is None:
        return None
    values = values_of(problem, solution.schedule)
    late = sum(
        late_steps(job, end_of(job, placed))
        for job, placed in zip(problem.jobs, solution.schedule, strict=True)
    )
    days = problem.step_h / 24.0
    weighted = next(level.value for level in before.levels if level.name == "lateness")
    return Advice(
        change=change,
        late_days=late * days - sum(run.late_h for run in before.runs) / 24.0,
        weighted_days=values.lateness * days - weighted,
        usd=values.usd - before.usd,
        end_days=values.end * days - before.end_h / 24.0,
        gap=solution.gap or 0.0,
    )


def infeasible_answer(
    question: FleetQuestion, problem: FleetProblem, relaxed: Relaxed
) -> FleetAnswer:
    """Why hard deadlines cannot be kept, and the smallest changes that make them possible."""
    step_d = problem.step_h / 24.0
    runs = question.runs
    binds = [
        f"{runs[each.job].name} alone, with every cluster to itself, is over "
        f"{each.steps * step_d:.1f} days after its deadline"
        for each in relaxed.alone
    ]
    moved = [each for each in relaxed.extensions if each.job not in {a.job for a in relaxed.alone}]
    if not relaxed.alone:
        hard = [run for run in runs if run.late == "never"]
        shared = sorted({question.clusters[n].name for run in hard for n in run.clusters})
        binds.append(
            f"{', '.join(run.name for run in hard)} must all be in time and share "
            f"{', '.join(shared)}; each alone would be in time"
        )
    changes = []
    if relaxed.extensions:
        dates = ", ".join(
            f"{runs[each.job].name} {each.steps * step_d:.1f} days later"
            for each in relaxed.extensions
        )
        changes.append(NeededChange(change=f"deadlines: {dates}"))
    elif not moved and not relaxed.alone:
        binds.append("clusters close before the runs are over (available_until)")
    for pool, nodes in enumerate(relaxed.added):
        if nodes:
            where = question.clusters[pool]
            changes.append(NeededChange(change=f"{nodes} more nodes of {where.name} ({where.on})"))
    return FleetAnswer(
        status="infeasible",
        start=question.start,
        step_h=problem.step_h,
        binds=tuple(binds),
        changes=tuple(changes),
    )
