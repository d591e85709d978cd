"""The one enumeration of both searches: meshes, pipelines and ZeRO stages that a framework accepts.

tp divides the attention heads, pp x vpp stages hold a layer each, experts divide evenly, each
replica has whole micro-batches, and interleaved schedules whole rounds of the pipeline
(Megatron-Core, schedules.py). Layers need not divide by pp (the rule of `stage_layers`). A search
over blocks is the case of our own executor's rules, a pipeline of unlike blocks in the place of
alike layers, and a mesh that uses every device.

No rule depends on how many devices there are, so that the layouts of a cluster are among those of a
larger one where meshes may leave devices idle: more devices are never slower.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from planner.axes import NO_PIPELINE, Axes, flag_of
from planner.run_option import RunOption
from simulator.schedules.schedule import schedule_kind
from simulator.training_run.framework.framework import FrameworkRules

Counts = NDArray[np.int64]

EXECUTOR = "torch"
"""The name of our own executor among the frameworks."""
MAX_FREE_VPP = 8
"""A free vpp of blocks is tried up to this; more stages per rank must be pinned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """What the axes of a question are enumerated over.

    node_devices   devices of the innermost level: a free tp stays within one or fills several, of
                   blocks within one
    num_layers     layers, or blocks, that a pipeline is cut into
    tp_degrees, cp_degrees, ep_degrees   that suit the model, rising
    blocks         whether it is cut into blocks that differ, not into alike layers
    predicted_ahead  tokens: layers of their own on the last stage
    may_idle       whether it may leave devices idle
    options        its choices in addition to the axes
    precision      of the workload
    why_not_cuttable, why_not_tensor_parallel   the model's own reasons, or ""
    why_one_replica  why dp is 1, or ""
    assumptions    about the model, in words
    """

    rules: FrameworkRules
    num_devices: int
    node_devices: int
    global_batch: int
    num_layers: int
    tp_degrees: tuple[int, ...]
    cp_degrees: tuple[int, ...] = (1,)
    ep_degrees: tuple[int, ...] = (1,)
    blocks: bool = False
    predicted_ahead: int = 0
    may_idle: bool = True
    options: tuple[RunOption, ...] = (RunOption(),)
    precision: str = "bf16"
    why_not_cuttable: str = ""
    why_not_tensor_parallel: str = ""
    why_one_replica: str = ""
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Meshes:
    """[meshes] each: the degrees and the micro-batch."""

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


def meshes_of(
    axes: Axes, ground: Ground, worth: Callable[[Meshes], NDArray[np.bool_]] | None = None
) -> Meshes:
    """Every legal mesh with each of its micro-batches, in a fixed order; of those only the ones
    that `worth` keeps."""
    batch = ground.global_batch
    shares = np.asarray(
        [
            (dp, size)
            for dp in _degrees(axes, ground, "dp", divisors(batch))
            for size in divisors(batch // dp)
            if axes.allows("micro_batch", size)
        ],
        dtype=np.int64,
    ).reshape(-1, 2)
    stages = np.asarray(list(_stage_counts(axes, ground)), dtype=np.int64)
    found, most = [], ground.num_devices
    for tp in _tensor_degrees(axes, ground):
        for cp in _degrees(axes, ground, "cp", ground.cp_degrees):
            devices = tp * cp * shares[:, 0, None] * stages[None, :]
            share, stage = np.nonzero(devices <= most if ground.may_idle else devices == most)
            for ep in _degrees(axes, ground, "ep", ground.ep_degrees):
                dp = shares[share, 0]
                spread = (tp * cp * dp) % ep == 0
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
                found.append(meshes if worth is None else meshes.rows(worth(meshes)))
    return Meshes(
        **{
            f.name: np.concatenate(
                [np.zeros(0, dtype=np.int64), *(getattr(part, f.name) for part in found)]
            )
            for f in fields(Meshes)
        }
    )


def _degrees(axes: Axes, ground: Ground, axis: str, values: tuple[int, ...]) -> list[int]:
    """Those of an axis's values that the user allows, the framework has and devices suffice for."""
    offered = axis in ground.rules.axes
    return [
        value
        for value in values
        if value <= ground.num_devices and axes.allows(axis, value) and (value == 1 or offered)
    ]


def _stage_counts(axes: Axes, ground: Ground) -> Iterator[int]:
    """Numbers of pipeline ranks. Of those between which alike layers do not divide, and whose
    fullest and last rank hold the same, only the least: the others take more devices and idle
    longer."""
    layers, seen = ground.num_layers, set()
    every = axes.pp is not None or ground.blocks or ground.predicted_ahead > 0
    most = 1 if ground.why_not_cuttable else layers
    for pp in _degrees(axes, ground, "pp", tuple(range(1, most + 1))):
        shape = (-(-layers // pp), layers // pp)
        if every or layers % pp == 0 or shape not in seen:
            yield pp
        seen.add(shape)


def _tensor_degrees(axes: Axes, ground: Ground) -> list[int]:
    """A free group of tp lies within a node that it divides, or fills whole nodes; a pinned one may
    straddle nodes."""
    degrees, node = _degrees(axes, ground, "tp", ground.tp_degrees), ground.node_devices
    if axes.tp is not None:
        return degrees
    return [tp for tp in degrees if node % tp == 0 or (tp % node == 0 and not ground.blocks)]


def zero_stages(axes: Axes, rules: FrameworkRules, pp: int, replicas: int) -> tuple[int, ...]:
    """With one replica there is nothing to shard, unless the framework always does."""
    offered = rules.zero_stages_at(pp)
    return tuple(
        zero for zero in (offered if replicas > 1 else offered[:1]) if axes.allows("zero", zero)
    )


def pipelines(axes: Axes, ground: Ground, pp: int, microbatches: int) -> list[tuple[str, int]]:
    """(schedule, stages per rank); layouts of one pipeline rank go by the name 1f1b as well."""
    if pp == 1:
        named = (NO_PIPELINE,) if ground.blocks else (NO_PIPELINE, "1f1b")
        allowed = any(axes.allows("schedule", name) for name in named)
        return [(NO_PIPELINE, 1)] if allowed and axes.allows("vpp", 1) else []
    found = []
    for name in axes.schedule or ground.rules.schedules:
        kind = schedule_kind(name)
        if name == NO_PIPELINE or kind.why_not(pp, microbatches):
            continue
        if ground.num_layers < pp * kind.stages_per_rank:
            continue
        fixed = [kind.stages_per_rank] if kind.stages_per_rank else []
        counts = fixed or _chunk_counts(axes, ground, pp)
        found += [(name, vpp) for vpp in counts if axes.allows("vpp", vpp)]
    return found


def _chunk_counts(axes: Axes, ground: Ground, pp: int) -> list[int]:
    """Stages per rank of an interleaved schedule: alike layers divide evenly, where the first and
    the last stage may hold one less; blocks need not."""
    layers = ground.num_layers
    if "vpp" not in ground.rules.axes:
        return []
    if ground.blocks:
        most = layers // pp if axes.vpp is not None else min(layers // pp, MAX_FREE_VPP)
        return list(range(2, most + 1))
    return [
        vpp
        for vpp in range(2, layers // pp + 2)
        if layers % (pp * vpp) == 0 or (layers + 2) % (pp * vpp) == 0
    ]


def why_none(axes: Axes, ground: Ground) -> str:
    """The contradiction in one sentence: the first rule that, with the pins, leaves nothing."""
    return next(_broken_rules(axes, ground))


def _broken_rules(axes: Axes, ground: Ground) -> Iterator[str]:
    pins = " with ".join(axes.pins()) or "without pins"
    rules, batch, devices = ground.rules, ground.global_batch, ground.num_devices
    layers = f"{ground.num_layers} {'blocks' if ground.blocks else 'layers'}"
    degrees = ", ".join(map(str, ground.tp_degrees))
    for axis in ("tp", "pp", "dp", "cp", "ep", "vpp"):
        values = getattr(axes, axis)
        if values and min(values) > 1 and axis not in rules.axes:
            yield (
                f"{flag_of(axis)} {','.join(map(str, values))}: {rules.name} has no such axis "
                f"({rules.source.partition(':')[0]}); its axes are {', '.join(rules.axes)}"
            )
    if axes.tp and not set(axes.tp) & set(ground.tp_degrees):
        yield (
            f"--tp {','.join(map(str, axes.tp))} does not suit the model: "
            + (ground.why_not_tensor_parallel or f"its degrees are {degrees}")
        )
    if axes.schedule == (NO_PIPELINE,) and axes.pp and min(axes.pp) > 1:
        yield (
            f"--schedule none is for one pipeline stage, and --pp asks for {min(axes.pp)}; name a "
            f"schedule of pipelines ({', '.join(rules.schedules)}) or leave one of them out"
        )
    cut = ground.why_not_cuttable and f"it cannot be cut into stages: {ground.why_not_cuttable}"
    if axes.pp and min(axes.pp) > (1 if cut else ground.num_layers):
        yield f"--pp {min(axes.pp)} does not suit the model: {cut or f'it has {layers}'}"
    meshes = meshes_of(replace(axes, micro_batch=None), ground)
    if not len(meshes) and not ground.may_idle:
        # Where all devices are used, dp divides their number: a batch that any dp divides.
        every = meshes_of(replace(axes, micro_batch=None), replace(ground, global_batch=devices))
        replicas = np.unique(every.dp).tolist()
        if not replicas:
            yield (
                f"{pins} cannot use all {devices} devices: tp x cp x pp x dp must be {devices}, tp "
                f"one of {degrees} and pp at most {1 if cut else ground.num_layers}. Free one of "
                "these flags or change --on."
            )
        else:
            more = (batch // replicas[0] + 1) * replicas[0]
            yield (
                f"--global-batch {batch} cannot be shared by dp replicas ({pins}): dp can be "
                f"{', '.join(map(str, replicas))} and must divide it. Use a multiple of "
                f"{replicas[0]}, for example --global-batch {more}."
            )
    if not len(meshes):
        yield (
            f"{pins}: no mesh of {devices} devices is left for {rules.name}: tp x cp x pp x dp may "
            f"be {devices} at most (--on), dp must divide --global-batch {batch}, tp be one of "
            f"{degrees}, pp be at most {layers}, and ep one of "
            f"{', '.join(map(str, ground.ep_degrees))}. Free one of these flags, or change --on or "
            "--global-batch."
        )
    if axes.micro_batch and not len(meshes_of(axes, ground)):
        shares = ", ".join(map(str, np.unique(batch // meshes.dp).tolist()))
        yield (
            f"--micro-batch {','.join(map(str, axes.micro_batch))} does not divide the share of a "
            f"replica: --global-batch {batch} leaves {shares} sequences per replica ({pins})."
        )
    kinds = map(schedule_kind, axes.schedule or rules.schedules)
    schedules = ", ".join(kind.name + (f" ({kind.needs})" if kind.needs else "") for kind in kinds)
    stages = ", ".join(map(str, rules.zero_stages_at(1)))
    yield (
        f"no plan obeys {pins}: {rules.name} runs {schedules} with pp of 2 or more and pp x vpp up "
        f"to the model's {layers}, ZeRO {stages} (1 to 3 with dp of 2 or more) "
        f"and recompute {', '.join(rules.recompute)}."
    )
