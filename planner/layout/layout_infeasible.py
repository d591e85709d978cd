"""Why no layout fits, and the cheapest changes under which one does, each solved."""

from __future__ import annotations

from collections.abc import Callable

from planner.layout.layout_answer import LayoutInfeasibility, LayoutRelaxation, layout_title
from planner.layout.layout_question import LayoutQuestion, solve_layouts
from planner.layout.layout_relax import layout_candidates
from planner.layout.layout_search import NearMiss
from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster
from simulator.training_run.step.coefficients import CoefficientFile

_RELAXATIONS = 3


def infeasibility(
    question: LayoutQuestion,
    miss: NearMiss,
    coefficients: CoefficientFile,
    rebuild: Callable[[str], Cluster],
    device_names: tuple[str, ...],
    clock: Callable[[], float],
    end_s: float,
) -> LayoutInfeasibility:
    """The three cheapest changes that make it fit, each solved; `end_s` of the clock ends it."""
    found: list[LayoutRelaxation] = []
    kinds: set[str] = set()
    for candidate in layout_candidates(question, rebuild, device_names):
        if len(found) == _RELAXATIONS or clock() >= end_s:
            break
        if candidate.kind in kinds:
            continue
        try:
            outcome, _ = solve_layouts(
                candidate.question,
                coefficients,
                [],
                clock=clock,
                runners_up=0,
                time_limit_s=end_s - clock(),
            )
        except InputError:
            continue
        if outcome.layouts:
            kinds.add(candidate.kind)
            best = outcome.layouts[0]
            found.append(
                LayoutRelaxation(
                    change=candidate.change,
                    flag=candidate.flag,
                    layout=layout_title(best.run),
                    step_time_s=best.step_time_s,
                )
            )
    fullest = miss.memory.fullest
    terms = {
        "parameters": fullest.static.parameters,
        "gradients": fullest.static.gradients,
        "optimizer states": fullest.static.optimizer,
        "activations": fullest.activations,
        fullest.moment: fullest.moment_bytes,
    }
    return LayoutInfeasibility(
        nearest=layout_title(miss.run),
        rank=fullest.rank,
        term=max(terms, key=lambda term: terms[term]),
        needed_bytes=miss.memory.needed_bytes,
        capacity_bytes=miss.capacity_bytes,
        relaxations=tuple(found),
        host=miss.host,
    )
