"""If no layout fits: changes of the question under which one may exist, the nearest to the original
first, and the three cheapest that work, each solved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from planner.axes import AXES, flag_of
from planner.layout.layout_answer import LayoutInfeasibility, LayoutRelaxation, layout_title
from planner.layout.layout_question import LayoutQuestion, LayoutSolver
from planner.layout.layout_search import NearMiss
from planner.search.other_clusters import larger_clusters, with_more_memory
from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.host import has_host
from profiles.units import format_bytes
from simulator.training_run.framework.framework import load_framework


@dataclass(frozen=True, slots=True)
class LayoutCandidate:
    """A change to try; candidates of one kind are tried in order until one has a layout."""

    kind: str
    question: LayoutQuestion
    change: str
    flag: str


def with_offload(question: LayoutQuestion) -> LayoutQuestion:
    """The question with optimizer states allowed in host memory."""
    return replace(question, options=replace(question.options, optimizer_offload=True))


def offload_candidates(question: LayoutQuestion) -> Iterator[LayoutCandidate]:
    """Host memory, where the framework can use it and the host is known: states, then half and all
    of the saved activations too."""
    offers = load_framework(question.stack).rules.offers
    if not all(has_host(group.device.name) for group in question.cluster.groups):
        return
    states, flag, both = "", "--activation-offload any", question
    with_states = with_offload(question)
    if "optimizer-offload" in offers and with_states != question and with_states.options.offloads:
        states, flag, both = "optimizer states and ", f"--optimizer-offload {flag}", with_states
        change = "optimizer states in host memory"
        yield LayoutCandidate("host", with_states, change, "--optimizer-offload")
    if "activation-offload" not in offers or question.options.activation_offloads:
        return
    if both.options.offloads:
        states = "optimizer states and "
    both = replace(both, options=replace(both.options, activation_offloads=(0.0, 0.5, 1.0)))
    yield LayoutCandidate("host", both, f"{states}activations in host memory", flag)


def layout_candidates(
    question: LayoutQuestion,
    rebuild: Callable[[str], Cluster],
    device_names: tuple[str, ...],
) -> Iterator[LayoutCandidate]:
    """Pins taken back, host memory, then more devices, then devices of more memory."""
    for axis in AXES:
        if getattr(question.space, axis) is not None:
            freed, flag = replace(question.space, **{axis: None}), flag_of(axis)
            free = replace(question, space=freed)
            yield LayoutCandidate(axis, free, f"without {flag}", f"no {flag}")
    yield from offload_candidates(question)
    for larger in larger_clusters(question.cluster, rebuild):
        change, flag = f"{larger.num_devices} devices", f"--on {larger.name}"
        yield LayoutCandidate("devices", replace(question, cluster=larger), change, flag)
    others = tuple(get_device(name) for name in device_names)
    for device, swapped in with_more_memory(question.cluster, others, rebuild):
        change = f"{device.name} ({format_bytes(device.usable_bytes)} usable)"
        swap = replace(question, cluster=swapped)
        yield LayoutCandidate("memory", swap, change, f"--on {swapped.name}")


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
