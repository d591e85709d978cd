"""`size_run`: the answer to a question: searched, proven, simulated, and what would change it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from planner.layout.layout_question import ground_of
from planner.sizing.run_goal import PowerCurve
from planner.sizing.run_outlook import outlook_of
from planner.sizing.size_answer import SizeAnswer, value_words
from planner.sizing.size_front import front_of, runs_beside
from planner.sizing.size_gains import gains_of
from planner.sizing.size_limits import binding_limit, memory_short, relaxations_of
from planner.sizing.size_question import DeviceChoice, SizeQuestion
from planner.sizing.sizing_search import (
    SizedDevice,
    SizedRun,
    question_of_run,
    size_device,
)
from planner.tolerances import status_of
from profiles.sourced import SourcedRange
from simulator.energy import run_energy
from simulator.mfu import model_flop_per_token
from simulator.training_run.fit.evidence import evidence_words
from simulator.training_run.step.coefficients import CoefficientFile

Search = Callable[[SizeQuestion], tuple[SizedDevice, ...]]
_POWER_POINTS = tuple(float(share) for share in np.linspace(0.0, 1.0, 21))


def power_of(choice: DeviceChoice, pue: SourcedRange) -> PowerCurve:
    """What a device draws by the utilisation of its steps."""
    watts = [1000.0 * run_energy(choice.device, 1, 1.0, mfu, pue).value for mfu in _POWER_POINTS]
    return PowerCurve(mfu=_POWER_POINTS, watts=tuple(watts))


def search_here(
    coefficients: CoefficientFile, clock: Callable[[], float], end_s: float = math.inf
) -> Search:
    """The search of every type of device in this process, one after the other."""

    def search(question: SizeQuestion) -> tuple[SizedDevice, ...]:
        return tuple(
            size_device(
                question,
                choice,
                power=power_of(choice, question.pue),
                coefficients=coefficients,
                clock=clock,
                end_s=end_s,
            )
            for choice in question.choices
        )

    return search


def size_run(
    question: SizeQuestion,
    *,
    search: Search,
    coefficients: CoefficientFile,
    clock: Callable[[], float],
    end_s: float = math.inf,
    seed: int = 0,
    runs: int = 2000,
    explain: bool = True,
) -> SizeAnswer:
    """The best run over the question's choices, with its proof, or why there is none.

    search   how the types of devices are searched (`search_here`, or on workers)
    end_s    of the clock, after which nothing further is solved
    runs     of the simulation of each run that is shown
    explain  adds the front and what the next node, dollar, GB/s, GiB and point of MFU brings

    Equal inputs give equal answers, but for `search_time_s`.
    """
    start = clock()
    found = search(question)
    answer = answer_of(
        question,
        found,
        search=search,
        coefficients=coefficients,
        clock=clock,
        end_s=end_s,
        seed=seed,
        runs=runs,
    )
    if explain:
        answer = explained(question, found, answer, coefficients, clock=clock, end_s=end_s)
    return replace(answer, search_time_s=clock() - start)


def answer_of(
    question: SizeQuestion,
    found: tuple[SizedDevice, ...],
    *,
    search: Search,
    coefficients: CoefficientFile,
    clock: Callable[[], float],
    end_s: float = math.inf,
    seed: int = 0,
    runs: int = 2000,
) -> SizeAnswer:
    """The answer from what was found of every type of device, without what `explained` adds; its
    search time is left at 0. The parameters are those of `size_run`."""
    done = _ranked(found)
    refused = _refused(question, found)
    considered = sum(one.considered for one in found)
    if not done:
        return SizeAnswer(
            status="infeasible",
            minimised=question.minimise,
            relaxations=relaxations_of(question, search),
            binds=memory_short(question, coefficients, clock, end_s),
            refused=refused,
            considered=considered,
        )
    best = done[0]
    bound = min(one.bound for one in found if one.bound is not None)
    gap = max(0.0, (best.value - bound) / best.value)
    outlooks = [outlook_of(question, run, coefficients, seed=seed, runs=runs) for run in done]
    return SizeAnswer(
        status=status_of(gap),
        minimised=question.minimise,
        bound=bound,
        gap=gap,
        best=outlooks[0],
        others=tuple(
            replace(other, why_not=value_words(other.run, best)) for other in outlooks[1:]
        ),
        binds=binding_limit(question, best, ()),
        flop=best.tokens * model_flop_per_token(question.model, question.seq_len),
        refused=refused,
        considered=considered,
        assumptions=_assumed(question, best),
    )


def explained(
    question: SizeQuestion,
    found: tuple[SizedDevice, ...],
    answer: SizeAnswer,
    coefficients: CoefficientFile,
    *,
    clock: Callable[[], float],
    end_s: float = math.inf,
) -> SizeAnswer:
    """The answer with its front, what binds, and what the next node, dollar, GB/s, GiB and point of
    MFU bring."""
    done = _ranked(found)
    if not done:
        return answer
    power = power_of(done[0].choice, question.pue)
    beside = runs_beside(question, done, power, coefficients, clock, end_s)
    return replace(
        answer,
        front=front_of(beside),
        gains=gains_of(question, done[0], power, coefficients, clock, end_s),
        binds=binding_limit(question, done[0], beside),
    )


def _ranked(found: tuple[SizedDevice, ...]) -> list[SizedRun]:
    """The best run of every type of device that has one, the least value first."""
    return sorted((one.best for one in found if one.best is not None), key=lambda run: run.value)


def _assumed(question: SizeQuestion, best: SizedRun) -> tuple[str, ...]:
    """What the best run's prediction rests on."""
    _, ground = ground_of(question_of_run(question, best))
    risk = f"a layout may run out of memory with a probability of {question.fit_risk:.0%}"
    # A network is changed by a flag of its own here.
    said = [
        each.replace("--on names a cluster file to change it", "--network")
        for each in ground.assumptions
    ]
    return (*said, evidence_words(best.layout.run), risk)


def _refused(question: SizeQuestion, found: tuple[SizedDevice, ...]) -> tuple[tuple[str, str], ...]:
    """The types of devices without an answer: of each the reason of its first framework, or that no
    number of its nodes keeps the limits."""
    said = []
    for one in found:
        if one.best is None:
            reasons = dict(one.refused)
            every = len(reasons) == len(question.stacks)
            limited = question.deadline_s is not None or question.budget_usd is not None
            none = "no number of its nodes keeps the limits" if limited else "too little memory"
            why = next(iter(reasons.values())) if every else none
            said.append((one.choice.asked, why))
    return tuple(said)
