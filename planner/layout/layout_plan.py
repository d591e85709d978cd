"""`plan_layout`: the best layout of a model on a cluster for a framework, with its proof."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from planner.best_first import Progress
from planner.layout.layout_answer import LayoutChoice, LayoutFile
from planner.layout.layout_choice import choice_of
from planner.layout.layout_question import (
    LayoutQuestion,
    LayoutSolver,
    context_of,
)
from planner.layout.layout_relax import (
    infeasibility,
    nearby_batches,
    sensitivities,
)
from planner.layout.refined_layout import PricedLayout
from planner.tolerances import status_of
from profiles.errors import InputError
from simulator.training_run.fit.evidence import evidence_words

_RUNNERS_UP = 3


def plan_layout(
    question: LayoutQuestion,
    *,
    device_names: tuple[str, ...] = (),
    clock: Callable[[], float],
    time_limit_s: float | None = None,
    progress: Progress | None = None,
    explain: bool = False,
    alone: bool = False,
) -> LayoutFile:
    """The best layout of the space with its proof and runners-up, or why none fits.

    device_names  other devices to propose if nothing fits
    explain       add the gains of more memory, network or devices, each from a separate search
    alone         leave out additional searches: runners-up, changes that fit, nearby batches

    Equal inputs give equal answers, except for `search_time_s`. Raises InputError if the space
    contains no legal layout, or if a limit ended the search before any was found.
    """
    start = clock()
    end = math.inf if time_limit_s is None else start + time_limit_s
    base, context = context_of(question)
    solver = LayoutSolver(clock=clock, end_s=end)
    outcome = solver.search(question, progress=progress, runners_up=0 if alone else _RUNNERS_UP)
    if not outcome.layouts and not outcome.complete:
        raise InputError(
            f"the time limit ended the search before any layout of {question.name} was found; "
            "raise --time-limit or fix some axes"
        )
    chosen = outcome.layouts[0] if outcome.layouts else None
    best = chosen.step_time_s if chosen else None
    gap = max(0.0, (best - outcome.bound_s) / best) if best else None

    def shown(layout: PricedLayout, first: PricedLayout | None) -> LayoutChoice:
        return choice_of(layout, first, question.cluster, question.calibration)

    solver = replace(solver, end_s=-math.inf) if alone else solver
    status = "infeasible" if gap is None else status_of(gap)
    answer = LayoutFile(
        status=status,
        model=question.name,
        cluster=question.cluster.name,
        stack=question.stack,
        objective="step time",
        bound=outcome.bound_s if chosen else None,
        gap=gap,
        search_time_s=0.0,
        considered=outcome.considered,
        too_big=outcome.too_big,
        pruned=outcome.pruned,
        refined=outcome.refined,
        chosen=shown(chosen, None) if chosen else None,
        alternatives=tuple(shown(other, chosen) for other in outcome.layouts[1:]),
        infeasibility=None
        if outcome.near_miss is None
        else infeasibility(question, outcome.near_miss, solver, device_names),
        sensitivities=sensitivities(question, base, solver) if explain and chosen else (),
        nearby_batches=nearby_batches(question, chosen, solver) if chosen else (),
        calibration="" if question.calibration is None else question.calibration.source,
        assumptions=(
            *((*_devices(question, chosen), evidence_words(chosen.run)) if chosen else ()),
            f"a layout may run out of memory with a probability of {question.fit_risk:.0%} "
            "(--fit-risk)",
            *context.assumptions,
        ),
    )
    return replace(answer, search_time_s=clock() - start)


def _devices(question: LayoutQuestion, chosen: PricedLayout) -> tuple[str, ...]:
    """Used and idle devices, as text."""
    have, used = question.cluster.num_devices, chosen.run.degrees.num_devices
    if used == have:
        return (f"all {have} devices are used (--on)",)
    return (
        f"{used} of {have} devices are used, {have - used} stay idle: no layout of more is faster; "
        "the price counts all (--on, --dp and --pp ask for other numbers)",
    )
