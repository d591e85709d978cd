"""What the next GiB, GB/s or device would bring: the best layout under one change each."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import replace

from planner.layout.layout_answer import Sensitivity, layout_title
from planner.layout.layout_question import LayoutQuestion
from planner.layout.layout_relax import with_offload
from planner.layout.layout_solver import LayoutSolver
from planner.search.other_clusters import larger_clusters
from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.host import has_host
from simulator.training_run.run.training_run import TrainingRun


def sensitivities(
    question: LayoutQuestion,
    base: TrainingRun,
    solver: LayoutSolver,
    rebuild: Callable[[str], Cluster],
) -> tuple[Sensitivity, ...]:
    """The best step under one change each, as long as there is time."""
    found: list[Sensitivity] = []

    def tried(
        change: str,
        asked: LayoutQuestion,
        *,
        capacity: float = 1.0,
        altered: Callable[[TrainingRun], TrainingRun] = lambda run: run,
    ) -> None:
        best = solver.best(asked, capacity=capacity, altered=altered)
        if best is not None:
            found.append(
                Sensitivity(
                    change=change, step_time_s=best.step_time_s, layout=layout_title(best.run)
                )
            )

    usable = get_device(base.device).usable_bytes
    tried("10 GiB more memory per device", question, capacity=1 + 10 * 2**30 / usable)
    tried("10 GiB less memory per device", question, capacity=1 - 10 * 2**30 / usable)
    if base.degrees.num_devices > base.node_devices:
        tried(
            "a network of twice the rate between nodes",
            question,
            altered=lambda run: _faster_network(run, 2.0),
        )
    for level in base.far_levels:
        faster = replace(level, bytes_per_s_per_device=2 * level.bytes_per_s_per_device)
        levels = tuple(faster if one == level else one for one in base.far_levels)
        tried(
            f"twice the rate of {level.name}",
            question,
            altered=functools.partial(replace, far_levels=levels),
        )
    offloaded = with_offload(question)
    if has_host(base.device) and offloaded != question and offloaded.options.offloads:
        tried("states may be in host memory (--optimizer-offload)", offloaded)
    for doubled in itertools.islice(larger_clusters(question.cluster, rebuild), 1):
        tried(f"twice the devices ({doubled.name})", replace(question, cluster=doubled))
    tried("twice the batch", replace(question, global_batch=2 * question.global_batch))
    return tuple(found)


def _faster_network(run: TrainingRun, times: float) -> TrainingRun:
    return replace(run, network=run.node_network.faster(times))
