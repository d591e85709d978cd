"""Pareto fronts of layouts: step time against memory, and against dollars or energy per token.

A layout is on a front if no other is better in one of the two and at least as good in the other.
The front of time and memory is over the layouts of one cluster. The front of time and cost is over
parts of the cluster, since on equal devices dollars and joules per token are proportional to
device-seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from planner.axes import Axes
from planner.layout.layout_question import LayoutQuestion, LayoutSolver, context_of
from planner.layout.memory_floor import MemoryFloors, MemoryLimit
from planner.layout.prices import LayoutPrices, Layouts, legal_layouts
from planner.layout.refined_layout import PricedLayout, candidates_of
from planner.neighbors import cluster_name
from planner.space import LayoutContext
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_cluster, get_device
from profiles.hardware.catalogue.cluster import Cluster
from simulator.training_run.fit.recalibration import calibrated

T = TypeVar("T")


def front(items: Iterable[T], figures: Callable[[T], tuple[Any, ...]]) -> list[T]:
    """The undominated items: no other item is at least as good in both of the first two figures.
    Sorted by the first; further figures break ties.

    >>> front([(3, 1), (1, 2), (2, 2), (1, 4)], lambda pair: pair)
    [(1, 2), (3, 1)]
    """
    kept: list[T] = []
    for item in sorted(items, key=figures):
        if not kept or figures(item)[1] < figures(kept[-1])[1]:
            kept.append(item)
    return kept


def memory_front(question: LayoutQuestion) -> tuple[PricedLayout, ...]:
    """Undominated layouts in (step time, memory), fastest first; empty if none fits. All use all
    devices, if any layout does: with fewer devices, each needs more memory.

    Peaks are of the fullest device, including the allocator's overhead.
    """
    base, context = context_of(question)
    limit = MemoryLimit(capacity_bytes=get_device(base.device).usable_bytes, risk=question.fit_risk)
    prices = LayoutPrices(base, calibrated(question.calibration))
    found = candidates_of(
        prices,
        _using_all(question.space, context),
        limit,
        MemoryFloors(base),
        partial_recompute=False,
    )
    priced: list[PricedLayout] = []
    least = np.inf
    # In the order of bounds, a layout that needs as much memory as a faster one is skipped. If a
    # bound is not the exact time, a slower one may be accepted; the last pass removes it.
    for index in np.argsort(found.bounds, kind="stable").tolist():
        if found.floors[index] >= least:
            continue
        layout = found.refine(index)
        if layout is None or layout.memory.needed_bytes >= least:
            continue
        if found.exact[index]:
            least = layout.memory.needed_bytes
        priced.append(layout)
    return tuple(front(priced, lambda one: (one.step_time_s, one.memory.needed_bytes)))


def _using_all(space: Axes, context: LayoutContext) -> Layouts:
    try:
        return legal_layouts(space, replace(context, may_idle=False))
    except InputError:
        return legal_layouts(space, context)


def device_front(
    question: LayoutQuestion, *, clock: Callable[[], float]
) -> tuple[tuple[Cluster, PricedLayout], ...]:
    """The best layout on 1, 2, 4, ... nodes and on the whole cluster, fastest first; without parts
    that are slower and also more expensive (device-seconds) than another.

    Raises InputError for a cluster without a name such as `16x8xh100-sxm`.
    """
    name = cluster_name(question.cluster)
    if name is None:
        raise InputError(
            f"--pareto usd needs a cluster such as 16x8xh100-sxm, whose nodes can be counted; "
            f"{question.cluster.name} is not"
        )
    counts = sorted({name.nodes, *(2**k for k in range(name.nodes.bit_length()))})
    solver = LayoutSolver(clock=clock)
    best: list[tuple[Cluster, PricedLayout]] = []
    for count in counts:
        part = get_cluster(str(replace(name, nodes=count)))
        found = solver.best(replace(question, cluster=part))
        if found is not None:
            best.append((part, found))
    return tuple(
        front(best, lambda pair: (pair[1].step_time_s, pair[0].num_devices * pair[1].step_time_s))
    )
