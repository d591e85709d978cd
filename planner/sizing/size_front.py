"""`runs_beside`: fewer and more nodes than the best, each with its fastest layout. `front_of`: the
Pareto front in days, dollars, energy and devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from planner.layout.layout_answer import layout_title
from planner.layout.layout_question import LayoutSolver
from planner.sizing.size_answer import FrontPoint
from planner.sizing.size_question import SizeQuestion
from planner.sizing.sizing_search import (
    SizedRun,
    goal_of,
    question_of_run,
    sized_run,
    stack_named,
)

# Numbers of nodes that are looked at, as multiples of the best's.
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
    free = replace(
        question,
        tokens=run.tokens,
        deadline_s=None,
        budget_usd=None,
        minimise="time",
    )
    choice = replace(run.choice, fewest=1, most=max(nodes, run.choice.most))
    goal = goal_of(free, choice, stack_named(question, run.stack), run.batch)
    return sized_run(free, choice, goal, run.stack, layout, 0.0, run.width)


def runs_beside(
    question: SizeQuestion, done: Sequence[SizedRun], solver: LayoutSolver
) -> tuple[SizedRun, ...]:
    """The best of every device type (`done`, least value first), and the fastest on fewer and more
    nodes of the best one, without limits."""
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
