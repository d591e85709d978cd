"""`legal_cells`: all candidates of the search block by block, by the rules of our own executor."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.axes import NO_PIPELINE, Axes
from planner.broken_pins import why_none
from planner.cell import Cell
from planner.run_option import RunOption
from planner.space import EXECUTOR, LayoutContext, choices_of, meshes_of
from profiles.errors import InputError
from simulator.training_run.framework.framework import FrameworkRules, load_framework
from simulator.values.degrees import Degrees
from simulator.values.runnable import free_schedules, why_not_runnable


def block_rules() -> FrameworkRules:
    """The rules of our own executor, with `free_schedules` as the schedules of a free axis."""
    schedules = tuple(name for name in free_schedules() if name != NO_PIPELINE)
    return replace(load_framework(EXECUTOR).rules, schedules=schedules)


def hybrid_options(axes: Axes) -> tuple[RunOption, ...]:
    """The options of the search: groups of hybrid sharding."""
    return tuple(RunOption(dp_replicate=groups) for groups in axes.replicate_groups)


def legal_cells(axes: Axes, context: LayoutContext) -> tuple[Cell, ...]:
    """Every legal cell in a fixed order; raises InputError if the fixed axes allow none."""
    context = replace(context, options=hybrid_options(axes))
    meshes = meshes_of(axes, context)
    # Recomputation is chosen block by block.
    choices = replace(axes, recompute=("none",))
    cells = sorted(
        Cell(
            degrees=Degrees(
                pp=pp, dp=dp, tp=tp, vpp=vpp, dp_replicate=context.options[option].dp_replicate
            ),
            zero_stage=zero,
            micro_batch=size,
            schedule=schedule,
            global_batch=context.global_batch,
        )
        for index, (pp, dp, tp, size) in enumerate(
            np.stack([meshes.pp, meshes.dp, meshes.tp, meshes.micro_batch], axis=1).tolist()
        )
        for schedule, vpp, zero, _, option in choices_of(choices, context, meshes, index)
    )
    refused = why_not_runnable(
        Degrees(), zero_stage=0, schedule="none", precision=context.precision
    )
    if cells and refused:
        raise InputError(f"--precision {context.precision} cannot be run: {refused}")
    if not cells:
        raise InputError(why_none(axes, context))
    return tuple(cells)
