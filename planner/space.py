"""Enumerates the meshes, pipelines and ZeRO stages that a framework accepts, for both searches.

tp divides the attention heads, pp x vpp stages hold a layer each, experts divide evenly, each
replica has whole micro-batches, and interleaved schedules whole rounds of the pipeline
(Megatron-Core, schedules.py). Layers need not divide by pp (the rule of `stage_layers`). A search
over blocks uses our own executor's rules, a pipeline of unequal blocks instead of equal layers, and
meshes that use every device.

No rule depends on the number of devices. If meshes may leave devices idle, a larger cluster
therefore has all layouts of a smaller one, so more devices are never slower.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from planner.axes import NO_PIPELINE, Axes
from planner.run_option import RunOption
from simulator.schedules.schedule import ScheduleKind, schedule_kind
from simulator.training_run.framework.framework import FrameworkRules

Counts = NDArray[np.int64]
Choice = tuple[str, int, int, str, int]
"""Schedule, stages per rank, ZeRO stage, recompute kind, index of the option."""

EXECUTOR = "torch"
"""The name of our own executor among the frameworks."""
MAX_FREE_VPP = 8
"""A free vpp of blocks is tried up to this; more stages per rank must be pinned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutContext:
    """The limits of the axes of a request.

    node_devices   devices of the innermost level. A free tp stays within it or fills several; block
                   by block, it stays within one
    num_layers     layers, or blocks, that a pipeline is cut into
    tp_degrees, cp_degrees, ep_degrees   degrees that the model permits, ascending
    layout_ranks   pp degrees for a given layout of stages, ascending; () without one
    blocks         whether the model is cut into unequal blocks instead of equal layers
    predictor_units  multi-token predictors that count as layers when stages are cut
                     (stage_share.py)
    may_idle       whether a mesh may leave devices idle
    options        choices in addition to the axes
    tokens         of a sequence, which ranks may have to share equally; 0: any number of ranks can
    precision      of the workload
    why_not_cuttable, why_not_tensor_parallel, why_not_context_parallel   reasons in the model
    why_one_replica  why dp is 1, or ""
    assumptions    about the model, as text
    """

    rules: FrameworkRules
    num_devices: int
    node_devices: int
    global_batch: int
    num_layers: int
    tp_degrees: tuple[int, ...]
    cp_degrees: tuple[int, ...] = (1,)
    ep_degrees: tuple[int, ...] = (1,)
    layout_ranks: tuple[int, ...] = ()
    blocks: bool = False
    predictor_units: int = 0
    may_idle: bool
    options: tuple[RunOption, ...] = (RunOption(),)
    tokens: int = 0
    precision: str = "bf16"
    why_not_cuttable: str = ""
    why_not_tensor_parallel: str = ""
    why_not_context_parallel: str = ""
    why_one_replica: str = ""
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Meshes:
    """Arrays [meshes] of the degrees and the micro-batch."""

    tp: Counts
    cp: Counts
    ep: Counts
    pp: Counts
    dp: Counts
    micro_batch: Counts

    def __len__(self) -> int:
        return int(self.tp.size)

    def rows(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> Meshes:
        """Some of the meshes."""
        return Meshes(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    @property
    def devices(self) -> Counts:
        """[meshes] devices in use."""
        return np.asarray(self.tp * self.cp * self.pp * self.dp)


def divisors(number: int) -> tuple[int, ...]:
    """All divisors of a positive number, rising.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    small = [value for value in range(1, math.isqrt(number) + 1) if number % value == 0]
    return tuple(sorted({*small, *(number // value for value in small)}))


def axis_values(space: LayoutContext, axis: str) -> tuple[int, ...]:
    """Possible values of one axis of a mesh, ascending, for any values of the other axes."""
    match axis:
        case "tp":
            return space.tp_degrees
        case "cp":
            return space.cp_degrees
        case "ep":
            return space.ep_degrees
        case "pp" if space.layout_ranks:
            return space.layout_ranks
        case "pp":
            return tuple(range(1, (1 if space.why_not_cuttable else space.num_layers) + 1))
        case _:  # dp and the micro-batch divide the batch
            return divisors(space.global_batch)


def suits_devices(space: LayoutContext, devices: Counts) -> NDArray[np.bool_]:
    """[meshes] whether meshes with these numbers of devices are allowed."""
    most = space.num_devices
    return np.asarray(devices <= most if space.may_idle else devices == most)


def spreads_experts(ranks: Counts, ep: int) -> NDArray[np.bool_]:
    """Whether groups of `ep` divide the tp x cp x dp ranks of a stage."""
    return np.asarray(ranks % ep == 0)


def meshes_of(axes: Axes, space: LayoutContext) -> Meshes:
    """All legal meshes with each of their micro-batches, in a fixed order."""
    batch = space.global_batch
    shares = np.asarray(
        [
            (dp, size)
            for dp in _degrees(axes, space, "dp")
            for size in divisors(batch // dp)
            if axes.allows("micro_batch", size)
        ],
        dtype=np.int64,
    ).reshape(-1, 2)
    stages = np.asarray(list(_stage_counts(axes, space)), dtype=np.int64)
    found = []
    for tp in _tensor_degrees(axes, space):
        for cp in _degrees(axes, space, "cp"):
            devices = tp * cp * shares[:, 0, None] * stages[None, :]
            share, stage = np.nonzero(suits_devices(space, devices))
            for ep in _degrees(axes, space, "ep"):
                dp = shares[share, 0]
                spread = spreads_experts(tp * cp * dp, ep)
                if not spread.any():
                    continue
                of = np.full(np.count_nonzero(spread), 1)
                meshes = Meshes(
                    tp=of * tp,
                    cp=of * cp,
                    ep=of * ep,
                    pp=stages[stage[spread]],
                    dp=dp[spread],
                    micro_batch=shares[share[spread], 1],
                )
                found.append(meshes)
    return Meshes(
        **{
            f.name: np.concatenate(
                [np.zeros(0, dtype=np.int64), *(getattr(part, f.name) for part in found)]
            )
            for f in fields(Meshes)
        }
    )


def _degrees(axes: Axes, space: LayoutContext, axis: str) -> list[int]:
    """Degrees of an axis that the user, the framework and the number of devices allow."""
    offered = axis in space.rules.axes
    return [
        value
        for value in axis_values(space, axis)
        if value <= space.num_devices and axes.allows(axis, value) and (value == 1 or offered)
    ]


def _stage_counts(axes: Axes, space: LayoutContext) -> Iterator[int]:
    """Numbers of pipeline ranks. Among those that divide the layers unequally and have equal
    fullest and last ranks, only the smallest: the others need more devices and idle longer."""
    seen = set()
    every = axes.pp is not None or space.blocks or space.layout_ranks
    for pp in _degrees(axes, space, "pp"):
        shape = _stage_shape(space, pp)
        if every or equal_chunks(space, pp) or shape not in seen:
            yield pp
        seen.add(shape)


def _stage_shape(space: LayoutContext, pp: int) -> tuple[int, int]:
    """Layers of the fullest and of the last rank. With multi-token prediction its units count too,
    except the loss, which is always on the last rank."""
    if not space.predictor_units:
        return -(-space.num_layers // pp), space.num_layers // pp
    units = space.num_layers + space.predictor_units
    each = -(-units // pp)
    return each, max(0, units - 1 - (pp - 1) * each)


def _tensor_degrees(axes: Axes, space: LayoutContext) -> list[int]:
    """Degrees of tp. A free one divides a node or fills whole nodes; a pinned one may straddle
    nodes."""
    degrees, node = _degrees(axes, space, "tp"), space.node_devices
    if axes.tp is not None:
        return degrees
    return [tp for tp in degrees if node % tp == 0 or (tp % node == 0 and not space.blocks)]


def zero_stages(axes: Axes, rules: FrameworkRules, pp: int, replicas: int) -> tuple[int, ...]:
    """ZeRO stages for a number of replicas: with one only 0, unless the framework always shards."""
    offered = rules.zero_stages_at(pp)
    return tuple(
        zero for zero in (offered if replicas > 1 else offered[:1]) if axes.allows("zero", zero)
    )


def pipelines(
    axes: Axes, space: LayoutContext, pp: int, microbatches: int
) -> list[tuple[str, int]]:
    """Pairs (schedule, stages per rank); without a pipeline, the schedule is called 1f1b too."""
    if pp == 1:
        named = (NO_PIPELINE,) if space.blocks else (NO_PIPELINE, "1f1b")
        allowed = any(axes.allows("schedule", name) for name in named)
        return [(NO_PIPELINE, 1)] if allowed and axes.allows("vpp", 1) else []
    found = []
    for name in axes.schedule or space.rules.schedules:
        kind = schedule_kind(name)
        if name == NO_PIPELINE or kind.why_not(pp, microbatches):
            continue
        if space.layout_ranks and not _takes_layout(kind, space.layout_ranks[-1] // pp):
            continue
        if space.num_layers < pp * kind.stages_per_rank:
            continue
        fixed = [kind.stages_per_rank] if kind.stages_per_rank else []
        counts = fixed or _chunk_counts(axes, space, pp)
        found += [(name, vpp) for vpp in counts if axes.allows("vpp", vpp)]
    return found


def _takes_layout(kind: ScheduleKind, vpp: int) -> bool:
    """Whether a schedule accepts a layout with `vpp` stages per rank, placed round-robin."""
    return kind.takes_stages(vpp) and kind.stages_per_rank < 2


def _chunk_counts(axes: Axes, space: LayoutContext, pp: int) -> list[int]:
    """Stages per rank of an interleaved schedule. Equal layers must divide evenly, with at most one
    fewer in the first and last stage; blocks need not."""
    layers = space.num_layers
    if "vpp" not in space.rules.axes:
        return []
    if space.layout_ranks:
        return [space.layout_ranks[-1] // pp]
    if space.blocks:
        most = layers // pp if axes.vpp is not None else min(layers // pp, MAX_FREE_VPP)
        return list(range(2, most + 1))
    return [vpp for vpp in range(2, layers // pp + 2) if equal_chunks(space, pp * vpp)]


def equal_chunks(space: LayoutContext, chunks: int) -> bool:
    """Whether equal layers divide evenly into this number of virtual stages; embedding and head, or
    multi-token predictors and the loss, may count as layers. With a given layout of stages: whether
    it has this number of stages."""
    if space.layout_ranks:
        return chunks == space.layout_ranks[-1]
    layers = space.num_layers
    return layers % chunks == 0 or (layers + (space.predictor_units or 2)) % chunks == 0


def row_numbers(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """[rows] one number per row of `keys` (0 or above), equal for equal rows and in the same order:
    np.unique sorts numbers 10 times as fast as rows."""
    code, codes = np.zeros(len(keys), dtype=np.int64), 1
    for column in keys.T:
        span = int(column.max(initial=0)) + 1
        if codes * span > 1 << 62:
            kept, code = np.unique(code, return_inverse=True)
            codes = len(kept)
        code, codes = code * span + column, codes * span
    return code


def mesh_groups(space: LayoutContext, meshes: Meshes) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Groups of meshes with equal choices: [groups] the first mesh of each, and [meshes] the group
    of each mesh."""
    keys = [
        meshes.pp,
        space.global_batch // (meshes.dp * meshes.micro_batch),
        meshes.dp * meshes.cp > 1,
        meshes.ep > 1,
        *(() if space.options == (RunOption(),) else (meshes.dp, meshes.tp, meshes.cp, meshes.ep)),
    ]
    numbers = row_numbers(np.stack(keys, axis=1).astype(np.int64))
    _, first, group = np.unique(numbers, return_index=True, return_inverse=True)
    return first, group


def choices_of(axes: Axes, space: LayoutContext, meshes: Meshes, index: int) -> list[Choice]:
    """The legal choices of one of the meshes."""
    pp, dp, tp, cp, ep = (int(getattr(meshes, n)[index]) for n in ("pp", "dp", "tp", "cp", "ep"))
    microbatches = space.global_batch // (dp * int(meshes.micro_batch[index]))
    zeros = zero_stages(axes, space.rules, pp, dp * cp)
    kinds = [kind for kind in space.rules.recompute if axes.allows("recompute", kind)]
    options = [
        (number, option)
        for number, option in enumerate(space.options)
        if option.dp_replicate in (axes.dp_replicate or (1,))
        and option.sensible(pp=pp, dp=dp, tp=tp, cp=cp, ep=ep, tokens=space.tokens)
    ]
    return [
        (schedule, vpp, zero, kind, number)
        for schedule, vpp in pipelines(axes, space, pp, microbatches)
        for zero in zeros
        for kind in kinds
        if schedule_kind(schedule).suits(ep=ep, recompute=kind)
        for number, option in options
        if option.allowed(pp=pp, zero_stage=zero, recompute=kind, rules=space.rules)
    ]
