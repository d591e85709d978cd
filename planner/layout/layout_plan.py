"""`plan_layout`: from a described model, a cluster and a framework to the best layout, proven."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.layout.layout_answer import LayoutFile
from planner.layout.layout_choice import choice_of
from planner.layout.layout_infeasible import infeasibility
from planner.layout.layout_question import LayoutQuestion, solve_layouts
from planner.layout.layout_search import Progress
from planner.layout.layout_sensitivity import sensitivities
from planner.tolerances import status_of
from profiles.errors import InputError
from profiles.hardware.cluster import Cluster
from profiles.sourced import Sourced
from simulator.training_run.coefficients import CoefficientFile, shipped_coefficients


def plan_layout(
    question: LayoutQuestion,
    *,
    price: Callable[[Cluster], Sourced | None],
    rebuild: Callable[[str], Cluster],
    device_names: tuple[str, ...] = (),
    coefficients: CoefficientFile | None = None,
    clock: Callable[[], float],
    time_limit_s: float | None = None,
    progress: Progress | None = None,
    explain: bool = False,
) -> LayoutFile:
    """The best layout of the space with its proof and runners-up, or why there is none.

    price      US dollars per device-hour of a cluster, or None
    rebuild    the cluster of a name such as `8x4xh100-sxm`; device_names  other devices that may
               be offered where nothing fits
    explain    adds what more memory, network or devices would bring, each solved anew

    Equal inputs give equal answers, but for `search_time_s`. Raises InputError where the space
    holds no legal layout or a limit ended the search before any was found.
    """
    start = clock()
    known = coefficients or shipped_coefficients()
    said: list[str] = []
    outcome, base = solve_layouts(
        question, known, said, clock=clock, time_limit_s=time_limit_s, progress=progress
    )
    if not outcome.layouts and not outcome.complete:
        raise InputError(
            f"--time-limit ended the search before any layout of {question.name} was found; "
            "give it more time or pin some axes"
        )
    chosen = outcome.layouts[0] if outcome.layouts else None
    best = chosen.step_time_s if chosen else None
    gap = max(0.0, (best - outcome.bound_s) / best) if best else None
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
        chosen=choice_of(chosen, None, question.cluster, price, known) if chosen else None,
        alternatives=tuple(
            choice_of(other, chosen, question.cluster, price, known)
            for other in outcome.layouts[1:]
        ),
        infeasibility=None
        if outcome.near_miss is None
        else infeasibility(question, outcome.near_miss, known, rebuild, device_names, clock),
        sensitivities=sensitivities(question, base, known, rebuild, clock)
        if explain and chosen
        else (),
        assumptions=(f"all {question.cluster.num_devices} devices are used (--on)", *said),
    )
    return replace(answer, search_time_s=clock() - start)
