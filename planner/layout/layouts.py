"""`Layouts`: many layouts of one model, device type and batch, as arrays over the layouts."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from planner.axes import Axes
from planner.broken_pins import why_none
from planner.run_option import RunOption
from planner.space import Counts, LayoutContext, Meshes, choices_of, mesh_groups, meshes_of
from profiles.errors import InputError
from simulator.schedules.schedule import pipeline_names
from simulator.training_run.run.training_run import TrainingRun
from simulator.values.degrees import Degrees
from simulator.values.recompute_kind import RECOMPUTE_KINDS

# The schedules and recompute kinds that a layout's index may mean, in the order of registration.
SCHEDULES = pipeline_names()
RECOMPUTE = tuple(RECOMPUTE_KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts:
    """[layouts] each; `schedule` and `recompute` index SCHEDULES and RECOMPUTE, `option` indexes
    `options`, and `recompute_layers` is that of TrainingRun."""

    tp: Counts
    cp: Counts
    ep: Counts
    pp: Counts
    dp: Counts
    vpp: Counts
    zero_stage: Counts
    micro_batch: Counts
    schedule: Counts
    recompute: Counts
    recompute_layers: Counts
    option: Counts
    options: tuple[RunOption, ...] = (RunOption(),)

    def __len__(self) -> int:
        return int(self.tp.size)

    def rows(self, index: NDArray[np.intp] | slice) -> Layouts:
        """A subset of the layouts."""
        arrays = {name: getattr(self, name)[index] for name in _ARRAYS}
        return Layouts(options=self.options, **arrays)

    @property
    def plain(self) -> bool:
        """Whether all options are at their defaults."""
        return self.options == (RunOption(),)

    def key(self, *names: str) -> NDArray[np.int64]:
        """[layouts, names] the values of some axes."""
        return np.stack([getattr(self, name) for name in names], axis=1)

    def run(self, base: TrainingRun, index: int) -> TrainingRun:
        """One layout as a complete run; other fields are taken from `base`."""
        degrees = Degrees(
            tp=int(self.tp[index]),
            cp=int(self.cp[index]),
            ep=int(self.ep[index]),
            pp=int(self.pp[index]),
            dp=int(self.dp[index]),
            vpp=int(self.vpp[index]),
            axis_order=base.degrees.axis_order,
        )
        run = replace(
            base,
            degrees=degrees,
            zero_stage=int(self.zero_stage[index]),
            micro_batch=int(self.micro_batch[index]),
            schedule=SCHEDULES[int(self.schedule[index])],
            recompute=RECOMPUTE[int(self.recompute[index])],
            recompute_layers=int(self.recompute_layers[index]),
            sequence_parallel=base.sequence_parallel and degrees.tp > 1,
        )
        return self.options[int(self.option[index])].applied(run)


_ARRAYS = tuple(f.name for f in fields(Layouts) if f.name != "options")


def legal_layouts(axes: Axes, context: LayoutContext) -> Layouts:
    """Every legal layout, in a fixed order; raises InputError naming the fixed axes if there is
    none."""
    found = layouts_of(axes, context, meshes_of(axes, context))
    if not len(found):
        raise InputError(why_none(axes, context))
    return found


def layouts_of(axes: Axes, context: LayoutContext, meshes: Meshes) -> Layouts:
    """The legal layouts of some meshes, mesh by mesh."""
    first, where = mesh_groups(context, meshes)
    tables = [_choices(axes, context, meshes, i) for i in first.tolist()]
    sizes = np.asarray([len(table) for table in tables], dtype=np.int64)
    of = np.repeat(np.arange(len(meshes)), sizes[where] if len(meshes) else 0)
    rows = (
        np.concatenate([tables[kind] for kind in where.tolist()])
        if len(meshes)
        else np.zeros((0, 5), dtype=np.int64)
    )
    mesh = meshes.rows(of)
    return Layouts(
        **{f.name: getattr(mesh, f.name) for f in fields(Meshes)},
        schedule=rows[:, 0],
        vpp=rows[:, 1],
        zero_stage=rows[:, 2],
        recompute=rows[:, 3],
        recompute_layers=np.zeros(len(rows), dtype=np.int64),
        option=rows[:, 4],
        options=context.options,
    )


def _choices(axes: Axes, context: LayoutContext, meshes: Meshes, index: int) -> NDArray[np.int64]:
    """[choices, 5] schedule, stages per rank, ZeRO stage, recompute kind and option of a mesh."""
    one_rank = meshes.pp[index] == 1
    rows = [
        (
            SCHEDULES.index("1f1b" if one_rank else schedule),
            vpp,
            zero,
            RECOMPUTE.index(kind),
            option,
        )
        for schedule, vpp, zero, kind, option in choices_of(axes, context, meshes, index)
    ]
    return np.asarray(rows, dtype=np.int64).reshape(-1, 5)
