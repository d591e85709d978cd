"""The space of layouts: the values that each axis may take, and every legal combination.

An axis that is None is free, one value pins it, several restrict it. What is legal is what the
framework accepts: tp divides the attention heads, pp x vpp stages hold a layer each, experts divide
evenly, each replica has whole micro-batches, and interleaved schedules whole rounds of the pipeline
(Megatron-Core, schedules.py). Layers need not divide by pp (the rule of `stage_layers`).

A mesh may leave devices idle. No rule depends on how many devices there are, so that the layouts of
a cluster are among those of a larger one: more devices are never slower.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from planner.divisors import divisors
from planner.layout.layouts import RECOMPUTE, SCHEDULES, Counts, Layouts
from planner.layout.run_option import RunOption
from planner.pinned_axes import check_axes, flag_of, pins_of
from profiles.errors import InputError
from profiles.model.figures.transformer import Transformer
from simulator.schedules.schedule import schedule_kind
from simulator.training_run.framework.framework import FrameworkRules

_NONE = "none"  # the schedule of one pipeline stage, whose layouts are counted as 1f1b's


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSpace:
    """Allowed values per axis; None where free. The schedule `none` allows one pipeline stage.

    Raises InputError for empty axes and counts below 1, UnknownNameError for unknown names.
    """

    tp: tuple[int, ...] | None = None
    cp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    pp: tuple[int, ...] | None = None
    dp: tuple[int, ...] | None = None
    vpp: tuple[int, ...] | None = None
    zero: tuple[int, ...] | None = None
    micro_batch: tuple[int, ...] | None = None
    schedule: tuple[str, ...] | None = None
    recompute: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        check_axes(self, {"schedule": (_NONE, *SCHEDULES), "recompute": RECOMPUTE})

    def allows(self, axis: str, value: int | str) -> bool:
        """True where `value` is allowed on `axis`."""
        allowed = getattr(self, axis)
        return allowed is None or value in allowed

    def pins(self) -> tuple[str, ...]:
        """What is not free, as flags."""
        return pins_of(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutGround:
    """What the space is laid over.

    node_devices   devices of the innermost domain: a free tp stays within one or fills several
    may_narrow     whether a layout may use fewer devices of every node
    may_idle       whether a layout may leave devices idle
    options        what a layout may choose beside its axes
    """

    model: Transformer
    rules: FrameworkRules
    num_devices: int
    node_devices: int
    global_batch: int
    seq_len: int
    may_narrow: bool = True
    may_idle: bool = True
    options: tuple[RunOption, ...] = (RunOption(),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Meshes:
    """[meshes] each: the degrees, the devices used of a node, and the micro-batch."""

    tp: Counts
    cp: Counts
    ep: Counts
    pp: Counts
    dp: Counts
    node: Counts
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


def meshes_of(
    space: LayoutSpace,
    ground: LayoutGround,
    worth: Callable[[Meshes], NDArray[np.bool_]] | None = None,
) -> Meshes:
    """Every legal mesh with each of its micro-batches, in a fixed order; of those only the ones
    that `worth` keeps."""
    batch = ground.global_batch
    shares = np.asarray(
        [
            (dp, size)
            for dp in divisors(batch)
            if dp <= ground.num_devices and _permitted(space, ground, "dp", dp)
            for size in divisors(batch // dp)
            if space.allows("micro_batch", size)
        ],
        dtype=np.int64,
    ).reshape(-1, 2)
    stages = np.asarray(list(stage_counts(space, ground)), dtype=np.int64)
    found = []
    for tp, node, most in _tensor_degrees(space, ground):
        for cp in _context_degrees(space, ground):
            devices = tp * cp * shares[:, 0, None] * stages[None, :]
            share, stage = np.nonzero(devices <= most if ground.may_idle else devices == most)
            for ep in _expert_degrees(space, ground):
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
                    node=of * node,
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


def stage_counts(space: LayoutSpace, ground: LayoutGround) -> Iterator[int]:
    """Numbers of pipeline ranks. Of those between which layers do not divide, and whose fullest and
    last rank hold the same, only the least: the others take more devices and idle longer."""
    layers, ahead = ground.model.num_layers, ground.model.predicted_ahead
    seen = set()
    for pp in range(1, min(layers, ground.num_devices) + 1):
        shape = (-(-layers // pp), layers // pp)
        even = layers % pp == 0 or (layers + 2) % pp == 0
        wanted = space.pp is not None or ahead or even or shape not in seen
        seen.add(shape)
        if wanted and _permitted(space, ground, "pp", pp):
            yield pp


def _tensor_degrees(space: LayoutSpace, ground: LayoutGround) -> Iterator[tuple[int, int, int]]:
    """(tp, devices used of a node, devices in all). A group of tp lies within a node, whose other
    devices stay idle where it does not divide it, or fills whole nodes; a pinned one may straddle
    nodes."""
    node, devices = ground.node_devices, ground.num_devices
    for tp in divisors(ground.model.num_heads):
        if tp > devices or not _permitted(space, ground, "tp", tp):
            continue
        left = node % tp if tp < node else 0
        if left and ground.may_narrow and ground.may_idle:
            yield tp, node - left, devices // node * (node - left)
        elif space.tp is not None or not (left or (tp > node and tp % node)):
            yield tp, node, devices


def _context_degrees(space: LayoutSpace, ground: LayoutGround) -> Iterator[int]:
    """Context parallelism halves each rank's sequence into two chunks so that causal work is even
    (Megatron-Core, context parallelism)."""
    halves = divisors(ground.seq_len // 2) if ground.seq_len % 2 == 0 else ()
    for cp in sorted({1, *halves}):
        if cp <= ground.num_devices and _permitted(space, ground, "cp", cp):
            yield cp


def _expert_degrees(space: LayoutSpace, ground: LayoutGround) -> Iterator[int]:
    for ep in divisors(max(1, ground.model.num_experts)):
        if ep <= ground.num_devices and _permitted(space, ground, "ep", ep):
            yield ep


def _permitted(space: LayoutSpace, ground: LayoutGround, axis: str, value: int) -> bool:
    return space.allows(axis, value) and (value == 1 or axis in ground.rules.axes)


def legal_layouts(space: LayoutSpace, ground: LayoutGround) -> Layouts:
    """Every legal layout, in a fixed order; raises InputError naming the pins where none is."""
    found = layouts_of(space, ground, meshes_of(space, ground))
    if not len(found):
        raise InputError(why_none(space, ground))
    return found


def layouts_of(space: LayoutSpace, ground: LayoutGround, meshes: Meshes) -> Layouts:
    """The legal layouts of some meshes, mesh by mesh."""
    plain = ground.options == (RunOption(),)
    counts = ground.global_batch // (meshes.dp * meshes.micro_batch)
    # Meshes that are alike in these have the same schedules, ZeRO stages, recompute kinds, options.
    keys = np.stack(
        [
            meshes.pp,
            counts,
            meshes.dp * meshes.cp > 1,
            *(() if plain else (meshes.dp, meshes.cp)),
        ],
        axis=1,
    )
    _, first, where = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    tables = [
        _choices(
            space,
            ground,
            pp=int(meshes.pp[i]),
            dp=int(meshes.dp[i]),
            cp=int(meshes.cp[i]),
            microbatches=int(counts[i]),
        )
        for i in first.tolist()
    ]
    where = where.ravel()
    sizes = np.asarray([len(table) for table in tables], dtype=np.int64)
    of = np.repeat(np.arange(len(meshes)), sizes[where] if len(meshes) else 0)
    rows = (
        np.concatenate([tables[kind] for kind in where.tolist()])
        if len(meshes)
        else np.zeros((0, 5), dtype=np.int64)
    )
    mesh = meshes.rows(of)
    return Layouts(
        tp=mesh.tp,
        cp=mesh.cp,
        ep=mesh.ep,
        pp=mesh.pp,
        dp=mesh.dp,
        node=mesh.node,
        micro_batch=mesh.micro_batch,
        schedule=rows[:, 0],
        vpp=rows[:, 1],
        zero_stage=rows[:, 2],
        recompute=rows[:, 3],
        recompute_layers=np.zeros(len(rows), dtype=np.int64),
        option=rows[:, 4],
        options=ground.options,
    )


def _choices(
    space: LayoutSpace, ground: LayoutGround, *, pp: int, dp: int, cp: int, microbatches: int
) -> NDArray[np.int64]:
    """[choices, 5] schedule, stages per rank, ZeRO stage, recompute kind and option of a mesh."""
    zeros = [z for z in _zero_stages(ground.rules, pp, dp * cp) if space.allows("zero", z)]
    kinds = [RECOMPUTE.index(k) for k in ground.rules.recompute if space.allows("recompute", k)]
    rows = [
        (schedule, vpp, zero, kind, number)
        for schedule, vpp in pipelines(space, ground, pp, microbatches)
        for zero in zeros
        for kind in kinds
        for number, option in enumerate(ground.options)
        if option.sensible(pp=pp, dp=dp, cp=cp)
        and option.allowed(pp=pp, zero_stage=zero, recompute=RECOMPUTE[kind], rules=ground.rules)
    ]
    return np.asarray(rows, dtype=np.int64).reshape(-1, 5)


def _zero_stages(rules: FrameworkRules, pp: int, replicas: int) -> tuple[int, ...]:
    """With one replica there is nothing to shard, unless the framework always does."""
    offered = rules.zero_stages_at(pp)
    return offered if replicas > 1 else offered[:1]


def pipelines(
    space: LayoutSpace, ground: LayoutGround, pp: int, microbatches: int
) -> list[tuple[int, int]]:
    """(schedule's index, stages per rank)."""
    plain = SCHEDULES.index("1f1b")
    if pp == 1:
        plainly = space.allows("schedule", _NONE) or space.allows("schedule", "1f1b")
        return [(plain, 1)] if space.allows("vpp", 1) and plainly else []
    asked = [name for name in space.schedule or ground.rules.schedules if name != _NONE]
    layers = ground.model.num_layers
    found = []
    for name in asked:
        number, kind = SCHEDULES.index(name), schedule_kind(name)
        if kind.why_not(pp, microbatches) or layers < pp * kind.stages_per_rank:
            continue
        if kind.stages_per_rank:
            if space.allows("vpp", kind.stages_per_rank):
                found.append((number, kind.stages_per_rank))
        elif "vpp" in ground.rules.axes:
            found += [
                (number, vpp)
                for vpp in range(2, layers // pp + 2)
                if space.allows("vpp", vpp)
                and (layers % (pp * vpp) == 0 or (layers + 2) % (pp * vpp) == 0)
            ]
    return found


def why_none(space: LayoutSpace, ground: LayoutGround) -> str:
    """The contradiction in one sentence."""
    pins = " with ".join(space.pins()) or "without pins"
    rules, model = ground.rules, ground.model
    for axis in ("tp", "pp", "dp", "cp", "ep", "vpp"):
        asked = getattr(space, axis)
        if asked and max(asked) > 1 and axis not in rules.axes and 1 not in asked:
            return (
                f"{flag_of(axis)} {','.join(map(str, asked))}: {rules.name} has no such axis "
                f"({rules.source.partition(':')[0]}); its axes are {', '.join(rules.axes)}"
            )
    heads = [tp for tp in space.tp or () if model.num_heads % tp]
    if heads and len(heads) == len(space.tp or ()):
        return f"--tp {heads[0]} does not divide the model's {model.num_heads} attention heads"
    if space.schedule == (_NONE,) and space.pp and min(space.pp) > 1:
        return (
            f"--schedule none is for one pipeline stage, and --pp asks for {min(space.pp)}; name a "
            f"schedule of pipelines ({', '.join(rules.schedules)}) or leave one of them out"
        )
    if space.pp and min(space.pp) > model.num_layers:
        return f"--pp {min(space.pp)} is more than the model's {model.num_layers} layers"
    meshes = len(meshes_of(replace(space, micro_batch=None), ground))
    if not meshes:
        return (
            f"{pins}: no mesh of {ground.num_devices} devices is left for {rules.name}: "
            f"tp x cp x pp x dp may be {ground.num_devices} at most (--on), dp must divide "
            f"--global-batch {ground.global_batch}, tp the {model.num_heads} heads, pp be at most "
            f"{model.num_layers}, and ep divide {model.num_experts or 'no'} experts. Free one of "
            f"these flags, or change --on or --global-batch."
        )
    kinds = map(schedule_kind, space.schedule or rules.schedules)
    schedules = ", ".join(kind.name + (f" ({kind.needs})" if kind.needs else "") for kind in kinds)
    return (
        f"{pins}: {meshes} meshes are left, but none with these micro-batches, schedules, "
        f"ZeRO stages and recompute kinds. {rules.name} runs {schedules}, ZeRO {rules.zero_stages} "
        f"and recompute {', '.join(rules.recompute)}; a micro-batch must divide the share of a "
        f"replica."
    )
