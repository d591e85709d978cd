"""Why no layout fits, and the cheapest changes under which one does, each solved."""

from __future__ import annotations

from collections.abc import Callable

from planner.layout.layout_answer import LayoutInfeasibility, LayoutRelaxation, layout_title
from planner.layout.layout_question import LayoutQuestion
from planner.layout.layout_relax import layout_candidates
from planner.layout.layout_search import NearMiss
from planner.layout.layout_solver import LayoutSolver
from profiles.hardware.catalogue.cluster import Cluster

_RELAXATIONS = 3


def infeasibility(
    question: LayoutQuestion,
    miss: NearMiss,
    solver: LayoutSolver,
    rebuild: Callable[[str], Cluster],
    device_names: tuple[str, ...],
) -> LayoutInfeasibility:
    """The three cheapest changes that make it fit, each solved as long as there is time."""
    found: dict[str, LayoutRelaxation] = {}
    for candidate in layout_candidates(question, rebuild, device_names):
        if len(found) == _RELAXATIONS or not solver.has_time:
            break
        best = solver.best(candidate.question) if candidate.kind not in found else None
        if best is not None:
            found[candidate.kind] = LayoutRelaxation(
                change=candidate.change,
                flag=candidate.flag,
                layout=layout_title(best.run),
                step_time_s=best.step_time_s,
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
        relaxations=tuple(found.values()),
        host=miss.host,
    )
