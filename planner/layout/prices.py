"""Step times of many layouts at once: features of a few representatives, combined as arrays.

A feature of a run depends on a few axes only: a layer's work and messages on tp, cp, ep and the
micro-batch; messages once per step on the mesh and the ZeRO stage. So `features` is called for one
representative of each combination of these, and its values are copied to all layouts with that
combination. The numbers equal those of `features` (tests/planner/layout/test_prices.py), and are
computed 1,000 times faster.

The idle time of interleaved and zero-bubble schedules needs a timeline. Here it is replaced by a
lower bound, so the times of such layouts are lower bounds too; `exact` marks the exact ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from planner.axes import Axes
from planner.broken_pins import why_none
from planner.run_option import RunOption
from planner.space import (
    Counts,
    LayoutContext,
    Meshes,
    choices_of,
    mesh_groups,
    meshes_of,
    row_numbers,
)
from profiles.errors import InputError
from simulator.schedules.schedule import Placement, ScheduleKind, pipeline_names, schedule_kind
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficients import CoefficientFile, assign
from simulator.training_run.step.features import Features, layer_features, mesh_features, of_rows
from simulator.training_run.step.idle_share import least_idle_share, paired_share
from simulator.training_run.step.known_features import KnownFeatures, known_features
from simulator.training_run.step.step_time import StepParts, price_runs, step_parts
from simulator.values.degrees import Degrees
from simulator.values.prediction import Part
from simulator.values.recompute_kind import RECOMPUTE_KINDS

# The schedules and recompute kinds that a layout's indices refer to, in the order of registration.
SCHEDULES = pipeline_names()
RECOMPUTE = tuple(RECOMPUTE_KINDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layouts(Meshes):
    """Layouts as arrays [layouts]: `schedule` and `recompute` index SCHEDULES and RECOMPUTE,
    `option` indexes `options`, and `recompute_layers` is as in TrainingRun."""

    vpp: Counts
    zero_stage: Counts
    schedule: Counts
    recompute: Counts
    recompute_layers: Counts
    option: Counts
    options: tuple[RunOption, ...] = (RunOption(),)

    def rows(self, index: NDArray[np.intp] | NDArray[np.bool_] | slice) -> Layouts:
        """A subset of the layouts."""
        arrays = {name: getattr(self, name)[index] for name in _ARRAYS}
        return Layouts(options=self.options, **arrays)

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
    """All legal layouts, in a fixed order. Raises InputError naming the fixed axes if there are
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


Array = NDArray[np.float64]

# Axes on which the features of layers and of meshes depend.
_LAYER_AXES = ("tp", "cp", "ep", "micro_batch", "recompute", "option")
_MESH_AXES = ("tp", "cp", "ep", "pp", "dp", "zero_stage", "option")
_OWN = ("microbatches", "pp", "vpp", "idle_share", "overlaps_experts")
_RECOMPUTED = tuple(f.name for f in fields(Features) if f.name.startswith("recomputed_"))
_CHUNK = 1 << 17


class LayoutPrices:
    """Step times of layouts of one model on one type of device.

    base  a run with the fields that are not axes of `Layouts`
    """

    def __init__(self, base: TrainingRun, coefficients: CoefficientFile) -> None:
        self.base = base
        self._coefficients = coefficients

    def at(self, base: TrainingRun) -> LayoutPrices:
        """The same for layouts of another run."""
        return LayoutPrices(base, self._coefficients)

    def exact(self, layouts: Layouts) -> NDArray[np.bool_]:
        """[layouts] True if `step_times` is the step time, False if it is a lower bound."""
        closed = _of_schedules(lambda kind: kind.closed_form)
        return np.asarray((layouts.pp == 1) | closed[layouts.schedule])

    def step_times(self, layouts: Layouts) -> Array:
        """[layouts] lower bounds on the step times, in seconds."""
        return self._of_parts(layouts, lambda parts: parts.total_s)

    def busy_times(self, layouts: Layouts) -> Array:
        """[layouts] seconds of a step in which the busiest stage computes or communicates over
        tensor and context parallelism."""
        busy = (Part.COMPUTE, Part.TENSOR, Part.CONTEXT)
        return self._of_parts(layouts, lambda parts: np.asarray(sum(parts[part] for part in busy)))

    def _of_parts(self, layouts: Layouts, of: Callable[[StepParts], Array]) -> Array:
        if not len(layouts):
            return np.zeros(0)
        plain = np.zeros((len(layouts), 2), dtype=np.int64)
        plain[:, 0] = 1
        known = known_features(self.base, layouts.options, layer_features)
        layer = _Gathered(self.base, layouts, self._layer_keys(layouts), plain, known)
        chunks = self._chunks(layouts)
        known = known_features(self.base, layouts.options, mesh_features)
        mesh = _Gathered(self.base, layouts, self._mesh_keys(layouts), chunks, known)
        coefficients = self._coefficients_of(layouts)
        found = [
            of(self._parts(layouts, layer, mesh, coefficients, slice(i, i + _CHUNK)))
            for i in range(0, len(layouts), _CHUNK)
        ]
        return np.concatenate(found)

    def exact_parts(self, run: TrainingRun) -> StepParts:
        """The parts of one layout's step, with its schedule's own timeline."""
        return price_runs([run], self._coefficients, all_fit=True).parts

    def _layer_keys(self, layouts: Layouts) -> NDArray[np.int64]:
        """The axes, and two properties of the mesh, that determine a layer's messages: whether
        messages between stages leave the node, and over how many ranks of a tp group experts are
        spread."""
        keys = layouts.key(*_LAYER_AXES)
        sharing = [RunOption(sequence_parallel=shared) for shared in (False, True)]
        if any(option not in sharing for option in layouts.options) or self.base.far_levels:
            # The order of axes and the levels beyond the node make messages depend on the whole
            # mesh.
            return np.column_stack([keys, layouts.key("pp", "dp")])
        ranks = layouts.devices
        node = self.base.node_devices
        crosses = (ranks // layouts.pp >= node) | (ranks > node)
        cut = np.where(layouts.pp == 1, 0, 1 + crosses)
        taken = layouts.ep // np.gcd(layouts.ep, layouts.dp * layouts.cp)
        return np.column_stack([keys, cut, taken])

    def _mesh_keys(self, layouts: Layouts) -> NDArray[np.int64]:
        return np.column_stack([layouts.key(*_MESH_AXES), self._chunks(layouts)])

    def _chunks(self, layouts: Layouts) -> NDArray[np.int64]:
        """[layouts, 2] virtual stages per rank, and whether they are placed in a V; (1, 0) if the
        split of the layers is even anyway (stage_share.py)."""
        model = self.base.model
        even = (model.num_layers % (layouts.pp * layouts.vpp) == 0) & (model.predicted_ahead == 0)
        even &= not self.base.pipeline_layout
        even |= layouts.pp == 1
        in_v = _of_schedules(lambda kind: kind.placement is Placement.V)[layouts.schedule]
        return np.column_stack([np.where(even, 1, layouts.vpp), np.where(even, 0, in_v)])

    def _coefficients_of(self, layouts: Layouts) -> dict[str, Array]:
        """Per kind of coefficient, its value for every layout; layouts differ only in sharding and
        in the precision of their option."""
        every = [
            replace(self.base, precision=option.precision or self.base.precision, zero_stage=zero)
            for option in layouts.options
            for zero in (0, 1)
        ]
        assigned = assign(every)
        by_kind = assigned.of(assigned.from_file(self._coefficients))
        whose = 2 * layouts.option + (layouts.zero_stage > 0)
        return {
            kind: value[whose] if np.any(value != value[0]) else value[:1]
            for kind, value in by_kind.items()
        }

    def _parts(
        self,
        layouts: Layouts,
        layer: _Gathered,
        mesh: _Gathered,
        coefficients: dict[str, Array],
        rows: slice,
    ) -> StepParts:
        part = layouts.rows(rows)
        known = {
            f.name: (mesh if f.name in mesh.names else layer).column(f.name, rows)
            for f in fields(Features)
            if f.name not in _OWN
        }
        # `recomputed_share` of every layout
        share = np.minimum(1.0, part.recompute_layers * part.vpp / known["layers"])
        again = np.where(part.recompute_layers > 0, share, 1.0)
        for name in _RECOMPUTED:
            known[name] = known[name] * again
        known["microbatches"] = np.ceil(
            self.base.global_batch / (part.dp * part.micro_batch).astype(float)
        )
        known["pp"], known["vpp"] = part.pp.astype(float), part.vpp.astype(float)
        interleaved = _of_schedules(lambda kind: kind.is_interleaved)[part.schedule]
        known["idle_share"] = least_idle_share(
            known,
            closed=self.exact(part),
            interleaved=interleaved & (part.vpp > 1),
            in_v=_of_schedules(lambda kind: kind.is_v)[part.schedule],
        )
        pairs = _of_schedules(lambda kind: kind.pairs)[part.schedule]
        known["overlaps_experts"] = pairs * paired_share(known["pp"], known["microbatches"])
        return step_parts(
            Features(**known), {kind: of_rows(value, rows) for kind, value in coefficients.items()}
        )


class _Gathered:
    """Features of one representative per distinct key, and each layout's index into these."""

    def __init__(
        self,
        base: TrainingRun,
        layouts: Layouts,
        keys: NDArray[np.int64],
        chunks: NDArray[np.int64],
        known: KnownFeatures,
    ) -> None:
        _, first, self._where = np.unique(row_numbers(keys), return_index=True, return_inverse=True)

        one_way, in_v = SCHEDULES.index("1f1b"), SCHEDULES.index("zbv")
        plain = replace(
            layouts,
            schedule=np.where(chunks[:, 1] > 0, in_v, one_way),
            vpp=chunks[:, 0],
            recompute_layers=np.zeros_like(layouts.tp),
        )
        self._values = known.rows(keys[first], lambda number: plain.run(base, int(first[number])))

    @property
    def names(self) -> Collection[str]:
        """Names of the features."""
        return self._values.keys()

    def column(self, name: str, rows: slice) -> Array:
        """A feature of a subset of the layouts."""
        values = self._values[name]
        return values[:1] if np.all(values == values[0]) else values[self._where[rows]]


def _of_schedules(holds: Callable[[ScheduleKind], bool]) -> NDArray[np.bool_]:
    """[SCHEDULES] whether a condition is true for each."""
    return np.asarray([holds(schedule_kind(name)) for name in SCHEDULES])
