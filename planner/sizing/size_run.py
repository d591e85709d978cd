"""The answer to a sizing question: search, proof, simulation and sensitivities."""

from __future__ import annotations

from dataclasses import replace

from planner.layout.layout_question import LayoutSolver, context_of
from planner.sizing.run_outlook import RunOutlook, outlook_of
from planner.sizing.size_answer import SizeAnswer, value_words
from planner.sizing.size_front import front_of, runs_beside
from planner.sizing.size_gains import gains_of
from planner.sizing.size_limits import Search, binding_limit, memory_short, relaxations_of
from planner.sizing.size_question import SizeQuestion
from planner.sizing.sizing_search import SizedDevice, SizedRun, question_of_run, size_device
from planner.tolerances import status_of
from simulator.training_run.fit.evidence import evidence_words

# Seconds of the search for each compared framework that was not chosen.
_FRAMEWORK_S = 6.0


def search_here(solver: LayoutSolver) -> Search:
    """Search every device type in this process, one after the other."""
    return lambda question: tuple(
        size_device(question, choice, solver) for choice in question.choices
    )


def answer_of(
    question: SizeQuestion,
    found: tuple[SizedDevice, ...],
    *,
    search: Search,
    solver: LayoutSolver,
    seed: int = 0,
    runs: int = 2000,
    relaxed: bool = True,
) -> SizeAnswer:
    """The best run over all device types, with its proof, or why there is none.

    search  function that searches the device types (`search_here`, or on workers)
    solver  of all further searches
    runs    number of simulations of each reported run
    relaxed  where no run keeps the limits, include the smallest changes of limits that allow one

    Equal inputs give equal answers; the search time is left at 0.
    """
    done = _ranked(found)
    refused = _refused(question, found)
    considered = sum(one.considered for one in found)
    if not done:
        return SizeAnswer(
            status="infeasible",
            minimised=question.minimise,
            relaxations=relaxations_of(question, search) if relaxed else (),
            binds=memory_short(question, solver) if relaxed else "",
            refused=refused,
            considered=considered,
        )
    best = done[0]
    bound = min(one.bound for one in found if one.bound is not None)
    gap = max(0.0, (best.value - bound) / best.value)
    first, *others = (
        outlook_of(question, run, solver.coefficients, seed=seed, runs=runs) for run in done
    )
    return SizeAnswer(
        status=status_of(gap),
        minimised=question.minimise,
        bound=bound,
        gap=gap,
        best=first,
        others=tuple(replace(other, why_not=value_words(other.run, best)) for other in others),
        binds=binding_limit(question, best, ()),
        flop=best.tokens * question.flop_per_token,
        refused=refused,
        considered=considered,
        assumptions=_assumed(question, best),
    )


def compared(
    question: SizeQuestion,
    found: tuple[SizedDevice, ...],
    answer: SizeAnswer,
    solver: LayoutSolver,
    *,
    seed: int = 0,
    runs: int = 2000,
) -> SizeAnswer:
    """The answer with the best run of each other compared framework."""
    done = _ranked(found)
    if not done:
        return answer
    return replace(answer, frameworks=_frameworks(question, done[0], solver, seed=seed, runs=runs))


def explained(
    question: SizeQuestion,
    found: tuple[SizedDevice, ...],
    answer: SizeAnswer,
    solver: LayoutSolver,
) -> SizeAnswer:
    """The answer with its Pareto front, the binding limit, and the gains of one more node, dollar,
    GB/s, GiB and point of MFU."""
    done = _ranked(found)
    if not done:
        return answer
    beside = runs_beside(question, done, solver)
    return replace(
        answer,
        front=front_of(beside),
        gains=gains_of(question, done[0], solver),
        binds=binding_limit(question, done[0], beside),
    )


def _frameworks(
    question: SizeQuestion, best: SizedRun, solver: LayoutSolver, *, seed: int, runs: int
) -> tuple[RunOutlook, ...]:
    """The best run of each other compared framework on the devices of the best one, in order of
    preference; none if the request names its frameworks."""
    every = []
    for name in (name for group in best.choice.preferred for name in group):
        if name == best.stack or not solver.has_time:
            continue
        choice = replace(best.choice, preferred=((name,),))
        short = replace(solver, end_s=min(solver.end_s, solver.clock() + _FRAMEWORK_S))
        run = size_device(question, choice, short).best
        if run is not None:
            outlook = outlook_of(question, run, solver.coefficients, seed=seed, runs=runs)
            every.append(replace(outlook, why_not=value_words(run, best)))
    return tuple(every)


def _ranked(found: tuple[SizedDevice, ...]) -> list[SizedRun]:
    """The best run of every device type that has one, least value first."""
    return sorted((one.best for one in found if one.best is not None), key=lambda run: run.value)


def _assumed(question: SizeQuestion, best: SizedRun) -> tuple[str, ...]:
    """Assumptions of the best run's prediction."""
    _, context = context_of(question_of_run(question, best))
    risk = f"a layout may run out of memory with a probability of {question.fit_risk:.0%}"
    # A network is changed by a flag of its own here.
    said = [
        each.replace("--on names a cluster file to change it", "--network")
        for each in context.assumptions
    ]
    return (*said, evidence_words(best.layout.run), risk)


def _refused(question: SizeQuestion, found: tuple[SizedDevice, ...]) -> tuple[tuple[str, str], ...]:
    """The device types without an answer: the reason of the first framework, or that no number of
    nodes keeps the limits."""
    limited = question.deadline_s is not None or question.budget_usd is not None
    none = "no number of its nodes keeps the limits" if limited else "too little memory"
    said = []
    for one in found:
        if one.best is None:
            reasons = [why for _, why in one.refused]
            every = len(reasons) == sum(map(len, question.stack_groups(one.choice)))
            said.append((one.choice.asked, reasons[0] if every else none))
    return tuple(said)
