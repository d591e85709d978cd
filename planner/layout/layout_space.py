"""The space of layouts: the values that each axis may take, and every legal combination.

An axis that is None is free, one value pins it, several restrict it. What is legal is what the
framework accepts: tp divides the attention heads, pp x vpp stages hold a layer each, experts divide
evenly, each replica has whole micro-batches, and interleaved schedules whole rounds of the pipeline
(Megatron-Core, schedules.py). Layers need not divide by pp (the rule of `stage_layers`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.divisors import divisors
from planner.layout.layouts import RECOMPUTE, SCHEDULES, Layouts, joined
from planner.layout.run_option import RunOption
from planner.pinned_axes import check_axes, flag_of, pins_of
from profiles.errors import InputError
from profiles.model.transformer import Transformer
from simulator.schedule import schedule_kind
from simulator.training_run.framework import FrameworkRules

# Context parallelism halves each rank's sequence into two chunks so that causal work is even
# (Megatron-Core, context parallelism); fewer tokens than this per chunk are not offered freely.
_FEWEST_CHUNK_TOKENS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutSpace:
    """Allowed values per axis; None where free.

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
        check_axes(self, {"schedule": SCHEDULES, "recompute": RECOMPUTE})

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

    node_devices   devices of the innermost domain: a free tp stays within it
    options        what a layout may choose beside its axes
    """

    model: Transformer
    rules: FrameworkRules
    num_devices: int
    node_devices: int
    global_batch: int
    seq_len: int
    options: tuple[RunOption, ...] = (RunOption(),)


def legal_layouts(space: LayoutSpace, ground: LayoutGround) -> Layouts:
    """Every legal layout, in a fixed order; raises InputError naming the pins where none is."""
    parts = [
        part
        for mesh in _meshes(space, ground)
        for part in (_of_mesh(space, ground, mesh),)
        if part is not None
    ]
    if not parts:
        raise InputError(_why_none(space, ground))
    return joined(parts)


Mesh = tuple[int, int, int, int, int]


def _meshes(space: LayoutSpace, ground: LayoutGround) -> Iterator[Mesh]:
    """(tp, cp, pp, dp, ep)"""
    model, devices = ground.model, ground.num_devices
    for tp in _degrees(space, ground, "tp"):
        if model.num_heads % tp or devices % tp:
            continue
        if space.tp is None and ground.node_devices % tp:
            continue
        for cp in _degrees(space, ground, "cp"):
            if devices % (tp * cp) or ground.seq_len % (2 * cp if cp > 1 else 1):
                continue
            if space.cp is None and cp > 1 and ground.seq_len < 2 * cp * _FEWEST_CHUNK_TOKENS:
                continue
            for pp in _degrees(space, ground, "pp"):
                if devices % (tp * cp * pp) or pp > model.num_layers:
                    continue
                dp = devices // (tp * cp * pp)
                if ground.global_batch % dp or not _permitted(space, ground, "dp", dp):
                    continue
                for ep in _degrees(space, ground, "ep"):
                    if ep == 1 or (model.num_experts % ep == 0 and tp * cp * dp % ep == 0):
                        yield tp, cp, pp, dp, ep


def _degrees(space: LayoutSpace, ground: LayoutGround, axis: str) -> tuple[int, ...]:
    most = {
        "tp": ground.model.num_heads,
        "cp": ground.num_devices,
        "pp": ground.num_devices,
        "ep": max(1, ground.model.num_experts),
    }[axis]
    of = ground.model.num_experts if axis == "ep" and ground.model.num_experts else 0
    free = divisors(of or (ground.num_devices if axis != "ep" else 1))
    return tuple(d for d in free if d <= most and _permitted(space, ground, axis, d))


def _permitted(space: LayoutSpace, ground: LayoutGround, axis: str, value: int) -> bool:
    return space.allows(axis, value) and (value == 1 or axis in ground.rules.axes)


def _of_mesh(space: LayoutSpace, ground: LayoutGround, mesh: Mesh) -> Layouts | None:
    tp, cp, pp, dp, ep = mesh
    per_replica = ground.global_batch // dp
    sizes = [b for b in divisors(per_replica) if space.allows("micro_batch", b)]
    zeros = [z for z in _zero_stages(ground.rules, pp, dp * cp) if space.allows("zero", z)]
    kinds = [RECOMPUTE.index(k) for k in ground.rules.recompute if space.allows("recompute", k)]
    chosen = [
        number
        for number, option in enumerate(ground.options)
        if option.sensible(pp=pp, dp=dp, cp=cp)
    ]
    rows = [
        (b, schedule, vpp, zero, kind, option)
        for b in sizes
        for schedule, vpp in _pipelines(space, ground, pp, per_replica // b)
        for zero, kind in itertools.product(zeros, kinds)
        for option in chosen
        if ground.options[option].allowed(
            pp=pp, zero_stage=zero, recompute=RECOMPUTE[kind], rules=ground.rules
        )
    ]
    if not rows:
        return None
    table = np.asarray(rows, dtype=np.int64).T
    count = table.shape[1]
    return Layouts(
        tp=np.full(count, tp),
        cp=np.full(count, cp),
        ep=np.full(count, ep),
        pp=np.full(count, pp),
        dp=np.full(count, dp),
        vpp=table[2],
        zero_stage=table[3],
        micro_batch=table[0],
        schedule=table[1],
        recompute=table[4],
        recompute_layers=np.zeros(count, dtype=np.int64),
        option=table[5],
        options=ground.options,
    )


def _zero_stages(rules: FrameworkRules, pp: int, replicas: int) -> tuple[int, ...]:
    """With one replica there is nothing to shard, unless the framework always does."""
    offered = rules.zero_stages_at(pp)
    return offered if replicas > 1 else offered[:1]


def _pipelines(
    space: LayoutSpace, ground: LayoutGround, pp: int, microbatches: int
) -> list[tuple[int, int]]:
    """(schedule's index, stages per rank)."""
    plain = SCHEDULES.index("1f1b")
    if pp == 1:
        return [(plain, 1)] if space.allows("vpp", 1) and space.allows("schedule", "1f1b") else []
    asked = space.schedule or ground.rules.schedules
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


def _why_none(space: LayoutSpace, ground: LayoutGround) -> str:
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
    if space.pp and min(space.pp) > model.num_layers:
        return f"--pp {min(space.pp)} is more than the model's {model.num_layers} layers"
    meshes = list(_meshes(space, ground))
    if not meshes:
        products = (
            f"tp x cp x pp x dp must be {ground.num_devices} (--on), dp must divide "
            f"--global-batch {ground.global_batch}"
        )
        return (
            f"{pins}: no mesh of {ground.num_devices} devices is left for {rules.name}: "
            f"{products}, tp the {model.num_heads} heads, pp be at most {model.num_layers}, "
            f"and ep divide {model.num_experts or 'no'} experts. Free one of these flags, "
            f"or change --on or --global-batch."
        )
    kinds = map(schedule_kind, space.schedule or rules.schedules)
    schedules = ", ".join(kind.name + (f" ({kind.needs})" if kind.needs else "") for kind in kinds)
    return (
        f"{pins}: {len(meshes)} meshes are left, but none with these micro-batches, schedules, "
        f"ZeRO stages and recompute kinds. {rules.name} runs {schedules}, ZeRO {rules.zero_stages} "
        f"and recompute {', '.join(rules.recompute)}; a micro-batch must divide the share of a "
        f"replica."
    )
