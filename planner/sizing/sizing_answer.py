"""The answer to a sizing question: search, proof, simulation and sensitivities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.layout.layout_answer import layout_title
from planner.layout.layout_question import LayoutSolver, context_of
from planner.layout.refined_layout import PricedLayout
from planner.sizing.run_outlook import FrontPoint, Gain, SizeAnswer, outlook_of, value_words
from planner.sizing.size_limits import Search, binding_limit, memory_short, relaxations_of
from planner.sizing.size_question import SizeQuestion
from planner.sizing.sizing_search import (
    SizedDevice,
    SizedRun,
    goal_of,
    layout_question_of,
    question_of_run,
    size_device,
    sized_run,
    stack_named,
)
from planner.tolerances import status_of
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_device
from profiles.units import format_usd
from simulator.training_run.explain.run_prediction import mfu_of_run
from simulator.training_run.fit.evidence import evidence_words
from simulator.training_run.run.training_run import TrainingRun
from simulator.values.prediction import Interval

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
    done = sorted((one.best for one in found if one.best is not None), key=lambda run: run.value)
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
    first, *others = (outlook_of(question, run, seed=seed, runs=runs) for run in done)
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
    question: SizeQuestion, answer: SizeAnswer, solver: LayoutSolver, *, seed: int, runs: int
) -> SizeAnswer:
    """The answer with the best run of each other compared framework on the devices of the best one,
    in order of preference. Unchanged if the request names its frameworks."""
    if answer.best is None:
        return answer
    best, every = answer.best.run, []
    for name in (name for group in best.choice.preferred for name in group):
        if name == best.stack or not solver.has_time:
            continue
        choice = replace(best.choice, preferred=((name,),))
        short = replace(solver, end_s=min(solver.end_s, solver.clock() + _FRAMEWORK_S))
        run = size_device(question, choice, short).best
        if run is not None:
            outlook = outlook_of(question, run, seed=seed, runs=runs)
            every.append(replace(outlook, why_not=value_words(run, best)))
    return replace(answer, frameworks=tuple(every))


def explained(question: SizeQuestion, answer: SizeAnswer, solver: LayoutSolver) -> SizeAnswer:
    """The answer with its Pareto front, the binding limit, and the effects of one more node,
    dollar, GB/s, GiB and point of MFU."""
    if answer.best is None:
        return answer
    best = answer.best.run
    beside = runs_to_compare(question, [best, *(other.run for other in answer.others)], solver)
    return replace(
        answer,
        front=front_of(beside),
        gains=gains_of(question, best, solver),
        binds=binding_limit(question, best, beside),
    )


def _assumed(question: SizeQuestion, best: SizedRun) -> tuple[str, ...]:
    """Assumptions of the best run's prediction."""
    _, context = context_of(question_of_run(question, best))
    risk = f"a layout may run out of memory with a probability of {question.fit_risk:.0%}"
    # The network is changed by another flag here (--network).
    said = [
        each.replace("--on names a cluster file to change it", "--network")
        for each in context.assumptions
    ]
    return (*said, evidence_words(best.layout.run), risk)


def _refused(question: SizeQuestion, found: tuple[SizedDevice, ...]) -> tuple[tuple[str, str], ...]:
    """The device types without an answer, with the reason of the first framework, or that no number
    of nodes keeps the limits."""
    limited = question.deadline_s is not None or question.budget_usd is not None
    none = "no number of its nodes keeps the limits" if limited else "too little memory"
    said = []
    for one in found:
        if one.best is None:
            reasons = [why for _, why in one.refused]
            every = len(reasons) == sum(map(len, question.stack_groups(one.choice)))
            said.append((one.choice.asked, reasons[0] if every else none))
    return tuple(said)


_GIB = 2**30
# Increments: GiB per device; as fractions, of the rate between nodes and of the dollars.
_MORE_GIB, _MORE_RATE, _MORE_USD = 8, 0.1, 0.05
# More nodes are tried as these fractions of the current number; more dollars on up to twice the
# nodes.
_MORE_NODES = (8, 4, 2)


def gains_of(question: SizeQuestion, best: SizedRun, solver: LayoutSolver) -> tuple[Gain, ...]:
    """The effects that could be computed within the time limit."""
    asked = question_of_run(question, best)

    def times_as_long(change: str, times: float) -> Gain:
        """Effect on the best run, on the same nodes, if its steps take `times` as long."""
        usd = best.usd * times if best.usd is not None else None
        return Gain(change=change, days=best.hours / 24.0 * times, usd=usd)

    def step(change: str, layout: PricedLayout | None) -> list[Gain]:
        """Effect on the best run, on the same nodes, if it had this layout's step time."""
        if layout is None:
            return []
        return [times_as_long(change, layout.step_time_s / best.layout.step_time_s - 1.0)]

    found = _more_nodes(question, best, solver)
    if best.usd is not None:
        richer = _with_more_dollars(question, best, solver)
        extra = _MORE_USD * best.usd
        if richer is not None:
            found.append(_between(f"up to {format_usd(extra)} more, spent on speed", richer, best))
    run = best.layout.run
    network = run.node_network
    if run.degrees.num_devices > run.node_devices:
        rate = network.bytes_per_s_per_node / 1e9
        words = f"{_MORE_RATE * rate:.3g} GB/s more per node between nodes ({rate:.3g} now)"

        def faster(base: TrainingRun) -> TrainingRun:
            return replace(base, network=base.node_network.faster(1.0 + _MORE_RATE))

        found += step(words, solver.best(asked, altered=faster))
    usable = get_device(best.choice.device).usable_bytes
    found += step(
        f"{_MORE_GIB} GiB more memory per device",
        solver.best(asked, capacity=1.0 + _MORE_GIB * _GIB / usable),
    )
    step_s = best.layout.step_time_s
    mfu = mfu_of_run(best.layout.run, Interval(value=step_s, low=step_s, high=step_s)).value
    point = mfu / (mfu + 0.01) - 1.0
    return (*found, times_as_long(f"one point more of MFU ({mfu:.1%} now)", point))


def _more_nodes(question: SizeQuestion, best: SizedRun, solver: LayoutSolver) -> list[Gain]:
    """The effect of one more node. If that node would be idle: of the fewest additional nodes,
    among an eighth, a quarter and a half of the current number, that would not be."""
    for extra in sorted({1, *(max(1, best.nodes // part) for part in _MORE_NODES)}):
        found = at_nodes(question, best, best.nodes + extra, solver)
        if found is None:
            return []
        if found.layout.step_time_s < best.layout.step_time_s:
            more = found.nodes - best.nodes
            words = "one more node" if more == 1 else f"{more} more nodes (one would stay idle)"
            return [_between(words, found, best)]
    return []


def _between(change: str, run: SizedRun, best: SizedRun) -> Gain:
    usd = run.usd - best.usd if run.usd is not None and best.usd is not None else None
    return Gain(change=change, days=(run.hours - best.hours) / 24.0, usd=usd)


def _with_more_dollars(
    question: SizeQuestion, best: SizedRun, solver: LayoutSolver
) -> SizedRun | None:
    """The fastest run for slightly more dollars than the best."""
    if not solver.has_time or best.usd is None:
        return None
    free = replace(
        question,
        tokens=best.tokens,
        minimise="time",
        deadline_s=None,
        budget_usd=(1.0 + _MORE_USD) * best.usd,
    )
    stack = stack_named(question, best.stack)
    most = min(best.choice.most, 2 * best.nodes)
    choice = replace(best.choice, most=most)
    goal = goal_of(free, choice, stack, best.batch)
    now = goal.hours(np.asarray([best.nodes]), np.asarray([best.layout.step_time_s]))
    try:
        asked = layout_question_of(free, choice, stack, best.batch, best.width, most)
        outcome = solver.search(asked, goal=goal, below=float(now[0]))
    except InputError:
        return None
    if not outcome.layouts:
        return None
    layout, value = outcome.layouts[0], outcome.values[0]
    return sized_run(free, choice, goal, best.stack, layout, value, best.width)


# Numbers of nodes to compare, as multiples of the best number.
_TIMES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 4.0)


def at_nodes(
    question: SizeQuestion, run: SizedRun, nodes: int, solver: LayoutSolver
) -> SizedRun | None:
    """The fastest run with the same device, framework and batch on at most this many nodes, without
    limits; None if none fits, no time is left, or a cluster file has fewer nodes."""
    cluster = run.choice.cluster
    if cluster is not None and nodes > cluster.num_nodes:
        return None
    asked = question_of_run(question, run, nodes=nodes)
    layout = solver.best(asked)
    if layout is None:
        return None
    free = replace(question, tokens=run.tokens, deadline_s=None, budget_usd=None, minimise="time")
    choice = replace(run.choice, fewest=1, most=max(nodes, run.choice.most))
    goal = goal_of(free, choice, stack_named(question, run.stack), run.batch)
    return sized_run(free, choice, goal, run.stack, layout, 0.0, run.width)


def runs_to_compare(
    question: SizeQuestion, done: Sequence[SizedRun], solver: LayoutSolver
) -> tuple[SizedRun, ...]:
    """The best run of every device type (`done`, lowest value first), and the fastest on fewer and
    more nodes of the best type, without limits."""
    runs, best = list(done), done[0]
    for times in _TIMES:
        nodes = round(best.nodes * times)
        if times != 1.0 and best.choice.fewest <= nodes <= best.choice.most:
            found = at_nodes(question, best, nodes, solver)
            runs += [found] if found is not None else []
    return tuple(runs)


def front_of(runs: Sequence[SizedRun]) -> tuple[FrontPoint, ...]:
    """The Pareto front of the runs, fewest days first."""
    every = [_figures(run) for run in runs]
    kept = {
        mine: run
        for mine, run in zip(every, runs, strict=True)
        if not any(_beats(other, mine) for other in every)
    }
    return tuple(_point(run) for _, run in sorted(kept.items(), key=lambda pair: pair[0]))


def _figures(run: SizedRun) -> tuple[float, float, float, int]:
    return (run.hours, run.usd if run.usd is not None else 0.0, run.kwh, run.devices)


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(x <= y for x, y in zip(one, other, strict=True))


def _point(run: SizedRun) -> FrontPoint:
    return FrontPoint(
        device=run.choice.asked,
        stack=run.stack,
        nodes=run.nodes,
        devices=run.devices,
        layout=layout_title(run.layout.run),
        step_time_s=run.layout.step_time_s,
        days=run.hours / 24.0,
        usd=run.usd,
        kwh=run.kwh,
    )
