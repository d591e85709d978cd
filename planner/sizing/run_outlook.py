"""`RunOutlook`: duration and cost of a sized run with 90 % intervals, by simulation."""

from __future__ import annotations

from dataclasses import dataclass

from planner.layout.layout_answer import LayoutChoice
from planner.layout.layout_choice import choice_of
from planner.sizing.size_question import SizeQuestion
from planner.sizing.sizing_search import SizedRun, question_of_run, spare_nodes
from profiles.hardware.catalogue.catalog import get_device
from simulator.energy import carbon, run_energy
from simulator.goodput.time_to_train import TimeToTrain, time_to_train
from simulator.log_interval import probability_below, product, total
from simulator.values.prediction import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutlook:
    """A simulated run.

    plan                  its layout, with the interval of the step
    days, device_hours, usd, kwh, tco2e  of the whole run; usd None without a price
    rent_usd, spare_usd, storage_usd, egress_usd  parts of usd: devices, spare nodes, storage,
                                                  egress; the last two None if not counted
    productive_time       share of the time in steps that are kept
    probability_of_deadline, probability_of_budget  None without a limit
    lost                  share of the time by cause of loss, largest first
    checkpoint_every_s    the interval with the smallest loss
    interruptions         number of unexpected ones
    spare_nodes           also paid: as many as cost less than waiting for repairs
    why_not               difference from the best; "" for the best
    """

    run: SizedRun
    plan: LayoutChoice
    days: Interval
    device_hours: Interval
    usd: Interval | None = None
    rent_usd: Interval | None = None
    spare_usd: Interval | None = None
    storage_usd: Interval | None = None
    egress_usd: Interval | None = None
    kwh: Interval
    tco2e: Interval
    productive_time: Interval
    probability_of_deadline: float | None = None
    probability_of_budget: float | None = None
    lost: tuple[tuple[str, float], ...]
    checkpoint_every_s: float
    interruptions: Interval
    spare_nodes: int
    why_not: str = ""

    @property
    def lost_usd(self) -> Interval | None:
        """Rent of lost time: failures, checkpoints, stragglers."""
        if self.rent_usd is None:
            return None
        rent, kept = self.rent_usd.value, self.productive_time
        return Interval(
            value=rent * (1.0 - kept.value),
            low=rent * (1.0 - kept.high),
            high=rent * (1.0 - kept.low),
        )


def simulated_time(
    question: SizeQuestion, run: SizedRun, step: Interval, *, seed: int, runs: int
) -> TimeToTrain:
    """The time of a run with this step time, simulated `runs` times."""
    return time_to_train(
        step,
        run.steps,
        run.devices,
        run.choice.device,
        question.model.parameters,
        inputs=question.reliability,
        seed=seed,
        runs=runs,
    )


def outlook_of(question: SizeQuestion, run: SizedRun, *, seed: int, runs: int) -> RunOutlook:
    """The run simulated `runs` times."""
    asked = question_of_run(question, run)
    plan = choice_of(run.layout, None, asked.cluster)
    step = plan.prediction.step_time_s.scaled(question.stretch)
    time = simulated_time(question, run, step, seed=seed, runs=runs)
    choice = run.choice
    by_nodes = spare_nodes(
        choice.device, choice.node_devices, max(run.nodes, choice.most), question.reliability
    )
    spares = int(by_nodes[run.nodes])
    hours = time.days.scaled(24.0)
    rent = waiting = usd = None
    if run.choice.usd_per_hour is not None:
        rent = product(time.device_hours, run.choice.usd_per_hour)
        waiting = rent.scaled(spares / run.nodes)
        usd = rent.scaled(1.0 + spares / run.nodes)
    kept = sent = None
    if question.storage is not None:
        kept, sent = question.storage.storage_usd(hours), question.storage.egress_usd
        usd = None if usd is None else total(usd, kept, sent)
    kwh = _kwh(question, run, hours)
    one = Interval(value=1.0, low=1.0, high=1.0)
    per_kwh = carbon(one, question.region)
    deadline = question.deadline_s
    budget = question.budget_usd
    return RunOutlook(
        run=run,
        plan=plan,
        days=time.days,
        device_hours=time.device_hours,
        usd=usd,
        rent_usd=rent,
        spare_usd=waiting,
        storage_usd=kept,
        egress_usd=sent,
        kwh=kwh,
        tco2e=product(kwh, per_kwh.scaled(1e-3)),
        productive_time=time.productive_time,
        probability_of_deadline=(
            time.probability_by(deadline / 86400.0) if deadline is not None else None
        ),
        probability_of_budget=(
            probability_below(usd, budget) if budget is not None and usd is not None else None
        ),
        lost=tuple(sorted(time.parts.items(), key=lambda part: -part[1])),
        checkpoint_every_s=time.checkpoint_every_s,
        interruptions=time.interruptions,
        spare_nodes=spares,
    )


def _kwh(question: SizeQuestion, run: SizedRun, hours: Interval) -> Interval:
    """Energy of the run at the utilization of its steps, with the errors of power and hours."""
    mfu = power_mfu_of(question, run)
    each = run_energy(run.choice.device, run.devices, hours.value, mfu, question.pue)
    return product(each.scaled(1.0 / hours.value), hours)


def power_mfu_of(question: SizeQuestion, run: SizedRun) -> float:
    """The utilization that determines power (simulator/energy.py): model FLOPs over the 16-bit peak
    of all paid devices."""
    peak = run.devices * get_device(run.choice.device).peak_or_twins("bfloat16").value
    step = run.batch * question.seq_len * question.flop_per_token
    return step / (run.layout.step_time_s * peak)


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A run on the Pareto front of days, dollars, energy and devices; in closed form."""

    device: str
    stack: str
    nodes: int
    devices: int
    layout: str
    step_time_s: float
    days: float
    usd: float | None
    kwh: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Effect of one change, from a search: additional days and dollars (below 0: saved)."""

    change: str
    days: float
    usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """A change of the request that gives it an answer, found by a search."""

    change: str
    flag: str
    days: float
    usd: float | None
    devices: int
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeAnswer:
    """The answer.

    status      `optimal`, `feasible` (a limit ended the search: see gap) or `infeasible`
    bound       lower bound on the goal of every run over the listed choices
    others      the best of each other device type
    refused     choices without an answer, with reasons
    frameworks  the best of each compared framework that was not chosen, on the chosen devices
    binds       the limit that restricts the best run
    flop        of the whole run
    considered  layouts evaluated or discarded
    """

    status: str
    minimised: str
    bound: float | None = None
    gap: float | None = None
    best: RunOutlook | None = None
    others: tuple[RunOutlook, ...] = ()
    frameworks: tuple[RunOutlook, ...] = ()
    front: tuple[FrontPoint, ...] = ()
    gains: tuple[Gain, ...] = ()
    binds: str = ""
    flop: float = 0.0
    refused: tuple[tuple[str, str], ...] = ()
    relaxations: tuple[Relaxation, ...] = ()
    considered: int = 0
    search_time_s: float = 0.0
    assumptions: tuple[str, ...] = ()


def value_words(run: SizedRun, best: SizedRun) -> str:
    """Difference of a run from the best: `12 % dearer, 8.1 d longer`."""
    said = []
    if run.usd is not None and best.usd:
        said.append(_more(run.usd / best.usd - 1, "dearer", "cheaper"))
    said.append(_more(run.hours / best.hours - 1, "longer", "shorter"))
    said.append(_more(run.kwh / best.kwh - 1, "more energy", "less energy"))
    return ", ".join(word for word in said if word)


def _more(share: float, above: str, below: str) -> str:
    if abs(share) < 5e-3:
        return ""
    return f"{abs(share):.0%} {above if share > 0 else below}"
