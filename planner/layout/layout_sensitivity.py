"""What the next GiB, GB/s or device would bring: the best layout under one change each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planner.layout.layout_answer import Sensitivity, layout_title
from planner.layout.layout_question import LayoutQuestion, solve_layouts
from planner.layout.layout_relax import layout_candidates, with_offload
from planner.layout.layout_space import LayoutSpace
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_device
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.host import has_host
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import CoefficientFile


def sensitivities(
    question: LayoutQuestion,
    base: TrainingRun,
    coefficients: CoefficientFile,
    rebuild: Callable[[str], Cluster],
    clock: Callable[[], float],
    end_s: float,
) -> tuple[Sensitivity, ...]:
    """The best step under one change each; `end_s` of the clock ends it."""
    found: list[Sensitivity] = []

    def tried(change: str, asked: LayoutQuestion, **more: object) -> None:
        if clock() >= end_s:
            return
        try:
            outcome, _ = solve_layouts(
                asked,
                coefficients,
                [],
                clock=clock,
                runners_up=0,
                time_limit_s=end_s - clock(),
                **more,  # type: ignore[arg-type] # options of solve_layouts
            )
        except InputError:
            return
        if outcome.layouts:
            best = outcome.layouts[0]
            found.append(
                Sensitivity(
                    change=change, step_time_s=best.step_time_s, layout=layout_title(best.run)
                )
            )

    usable = get_device(base.device).usable_bytes
    tried("10 GiB more memory per device", question, capacity=1 + 10 * 2**30 / usable)
    tried("10 GiB less memory per device", question, capacity=1 - 10 * 2**30 / usable)
    if base.num_devices > base.node_devices:
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
            altered=lambda run, levels=levels: replace(run, far_levels=levels),
        )
    if has_host(base.device) and not question.options.optimizer_offload:
        tried("states may be in host memory (--optimizer-offload)", with_offload(question))
    for doubled in _doubled(question, rebuild):
        tried(f"twice the devices ({doubled.name})", replace(question, cluster=doubled))
    tried("twice the batch", replace(question, global_batch=2 * question.global_batch))
    return tuple(found)


def _faster_network(run: TrainingRun, times: float) -> TrainingRun:
    return replace(run, network=run.node_network.faster(times))


def _doubled(question: LayoutQuestion, rebuild: Callable[[str], Cluster]) -> tuple[Cluster, ...]:
    candidates = layout_candidates(replace(question, space=LayoutSpace()), rebuild, ())
    return tuple(c.question.cluster for c in candidates if c.kind == "devices")[:1]
