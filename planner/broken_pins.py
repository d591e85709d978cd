"""Why the fixed axes (pins) allow nothing, and the nearest legal values.

Only the enumeration decides which values are legal (planner/space.py). A conflict is a minimal set
of pins that allows nothing, so every one of them is part of the broken rule. `broken_rule` names
that rule: the axes of the conflict determine the possible rules, and the checks are those of the
enumeration. A proposed value is one that the enumeration finds when some pins of the conflict are
free.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from planner.axes import AXES, NO_PIPELINE, Axes, flag_of
from planner.run_option import RunOption
from planner.space import (
    Choice,
    LayoutContext,
    Meshes,
    axis_values,
    choices_of,
    equal_chunks,
    mesh_groups,
    meshes_of,
    suits_devices,
)
from simulator.schedules.schedule import WHOLE_EXPERTS, ScheduleKind, schedule_kind
from simulator.training_run.framework.framework import (
    FrameworkRules,
    load_framework,
    offered_frameworks,
)

_DEGREES = ("tp", "cp", "pp", "dp")
# Number of frameworks that a message names.
_NAMED = 4


def broken_rule(conflict: Axes, space: LayoutContext) -> str:
    """The broken rule as text; `conflict` has only the pins of a minimal conflict."""
    pairing = [name for name in conflict.schedule or () if schedule_kind(name).for_experts]
    if pairing and (conflict.recompute or conflict.ep or space.ep_degrees[-1] == 1):
        return (
            f"{pairing[0]} hides all-to-alls of experts: it needs ep of 2 or more, and no "
            f"recomputation of kind {', '.join(WHOLE_EXPERTS)}"
        )
    for pins, words in _OF_ONE_AXIS:
        for axis in pins:
            if getattr(conflict, axis) is not None and (broken := words(axis, conflict, space)):
                return broken
    if conflict.dp_replicate:
        return (
            "hybrid sharding needs ZeRO 1, 2 or 3, and a dp that dp-replicate divides into groups "
            "of two replicas or more, of which ep divides the ranks"
        )
    if conflict.zero:
        return _broken_zero(conflict, space.rules)
    if conflict.ep:
        return f"ep must divide the tp x cp x dp ranks of a stage, and {_device_rule(space)}"
    if conflict.vpp or conflict.schedule:
        return _broken_pipeline(conflict, space)
    if space.layout_ranks and not conflict.pins():
        stages, least = space.layout_ranks[-1], space.layout_ranks[0]
        return f"the {stages} stages of --pipeline-layout need {least} devices or more"
    batch = space.global_batch
    shares = itertools.product(conflict.dp or (1,), conflict.micro_batch or (1,))
    if not any(batch % (dp * size) == 0 for dp, size in shares):
        return f"dp x micro-batch must divide --global-batch {batch}"
    product = _degrees_product(conflict, 1)
    if not _suits(product, space):
        return _device_rule(space, min(product))
    return f"dp must divide --global-batch {batch}, and {_device_rule(space)}"


def _device_rule(space: LayoutContext, product: int = 0) -> str:
    count = f"the {space.num_devices} devices of --on"
    if not space.may_idle:
        return f"tp x cp x pp x dp must use {count}, all of them"
    return f"tp x cp x pp x dp{f', here {product},' if product else ''} may use {count} at most"


def _degrees_product(conflict: Axes, least_pp: int) -> list[int]:
    """Products of the pinned degrees; a free pp counts as `least_pp`."""
    pins = [getattr(conflict, axis) or ((least_pp,) if axis == "pp" else (1,)) for axis in _DEGREES]
    return [math.prod(each) for each in itertools.product(*pins)]


def _suits(products: Sequence[int], space: LayoutContext) -> bool:
    """Whether free degrees can complete one of the products of the pinned degrees."""
    used = np.asarray(products)
    if not space.may_idle:
        used = np.where(space.num_devices % used == 0, space.num_devices, used)
    return bool(suits_devices(space, used).any())


def _missing_axis(axis: str, conflict: Axes, space: LayoutContext) -> str:
    """The message that the framework has no such degree."""
    rules = space.rules
    if axis in rules.axes or min(getattr(conflict, axis)) == 1:
        return ""
    others = _frameworks(lambda other: axis in other.axes)
    return (
        f"{rules.name} has no such axis ({rules.source.partition(':')[0]}), only "
        f"{', '.join(rules.axes)}{others}"
    )


def _frameworks(able: Callable[[FrameworkRules], bool]) -> str:
    """`; these have it: torch, torchtitan (--stack)`: the frameworks for which `able` is true."""
    names = [name for name in offered_frameworks() if able(load_framework(name).rules)]
    return f"; these have it: {', '.join(names[:_NAMED])} (--stack)" if names else ""


def _wrong_kind(axis: str, conflict: Axes, space: LayoutContext) -> str:
    pins = getattr(conflict, axis)
    others = _frameworks(lambda other: not set(pins).isdisjoint(other.recompute))
    return f"{space.rules.name} has no such kind{others}"


def _wrong_stage(axis: str, conflict: Axes, space: LayoutContext) -> str:
    pins, offered = set(getattr(conflict, axis)), space.rules.zero_stages_at(1)
    others = _frameworks(lambda other: not pins.isdisjoint(other.zero_stages_at(1)))
    stages = ", ".join(map(str, offered))
    return "" if pins & set(offered) else f"{space.rules.name} has ZeRO {stages}{others}"


def _wrong_degree(axis: str, conflict: Axes, space: LayoutContext) -> str:
    """The broken rule of a single degree, or of the micro-batch, regardless of the others."""
    if set(getattr(conflict, axis)) & set(axis_values(space, axis)):
        return ""
    match axis:
        case "tp":
            degrees = ", ".join(map(str, space.tp_degrees))
            return space.why_not_tensor_parallel or f"tp is one of {degrees}"
        case "cp":
            return space.why_not_context_parallel or "cp is 1"
        case "ep":
            experts = space.ep_degrees[-1]
            rule = f"ep must divide the model's {experts} experts"
            return rule if experts > 1 else "the model has no experts"
        case "pp" if space.layout_ranks:
            return (
                f"pp must divide the {space.layout_ranks[-1]} stages of --pipeline-layout, and a "
                "stage with m must be the last one of its rank"
            )
        case "pp" if space.why_not_cuttable:
            return f"the model cannot be cut into stages: {space.why_not_cuttable}"
        case "pp":
            return f"every stage has one of the model's {_layers(space)} or more"
        case _:
            return f"{axis.replace('_', '-')} must divide --global-batch {space.global_batch}"


_OF_ONE_AXIS = (
    (("tp", "cp", "ep", "pp", "dp", "vpp"), _missing_axis),
    (("recompute",), _wrong_kind),
    (("zero",), _wrong_stage),
    (("tp", "cp", "ep", "pp", "dp", "micro_batch"), _wrong_degree),
)


def _layers(space: LayoutContext) -> str:
    return f"{space.num_layers} {'blocks' if space.blocks else 'layers'}"


def _broken_zero(conflict: Axes, rules: FrameworkRules) -> str:
    """The broken rule of a ZeRO stage that the framework has, but not in its pipelines, or not with
    a single replica."""
    stages = rules.zero_stages_at(2)
    pipeline = conflict.pp or conflict.vpp or conflict.schedule
    if pipeline and set(conflict.zero or ()).isdisjoint(stages):
        return f"with pp of 2 or more {rules.name} has ZeRO {', '.join(map(str, stages))}"
    return "without replicas (dp x cp of 2 or more) there is nothing to shard"


def _broken_pipeline(conflict: Axes, space: LayoutContext) -> str:
    """The broken rule of schedules and stages per rank."""
    named = [name for name in conflict.schedule or space.rules.schedules if name != NO_PIPELINE]
    if not named:
        return f"schedule {NO_PIPELINE} is for one stage, pp 1 and vpp 1"
    kinds = [
        kind
        for kind in map(schedule_kind, named)
        if conflict.vpp is None or any(map(kind.takes_stages, conflict.vpp))
    ]
    if not kinds:
        return "; ".join(f"{name} has vpp {_chunks_of(schedule_kind(name))}" for name in named)
    if conflict.pp == (1,):
        vpp = f"vpp {_chunks_of(kinds[0])}"
        return f"{'a schedule' if conflict.schedule else vpp} needs a pipeline, pp of 2 or more"
    cuts = [(kind, pp, vpp) for kind in kinds for pp, vpp in _cuts(kind, conflict, space)]
    legal = [pp for kind, pp, vpp in cuts if _is_cut(kind, pp * vpp, space)]
    if not legal:
        return _chunk_rule(kinds, {pp * vpp for _, pp, vpp in cuts}, space)
    product = _degrees_product(conflict, min(legal))
    if not _suits(product, space):
        return f"pp is {min(legal)} or more with it, and {_device_rule(space, min(product))}"
    needs = "; ".join(f"{kind.name} needs {kind.needs}" for kind in kinds if kind.needs)
    shares = [dp * size for dp in conflict.dp or () for size in conflict.micro_batch or ()]
    counts = sorted({space.global_batch // share for share in shares})
    return f"{needs}; there are {' or '.join(map(str, counts))} per replica" if counts else needs


def _chunks_of(kind: ScheduleKind) -> str:
    return str(kind.stages_per_rank or "of 2 or more")


def _cuts(kind: ScheduleKind, conflict: Axes, space: LayoutContext) -> list[tuple[int, int]]:
    """(pp, vpp) of the pins, legal or not."""
    ranks = [pp for pp in conflict.pp or axis_values(space, "pp") if pp > 1]
    if kind.stages_per_rank:
        return [(pp, kind.stages_per_rank) for pp in ranks]
    free = range(2, space.num_layers + 1)
    return [(pp, vpp) for pp in ranks for vpp in conflict.vpp or free]


def _is_equal(kind: ScheduleKind, space: LayoutContext) -> bool:
    """Whether the schedule needs equal virtual stages."""
    return kind.stages_per_rank == 0 and not space.blocks


def _is_cut(kind: ScheduleKind, chunks: int, space: LayoutContext) -> bool:
    if _is_equal(kind, space) or space.layout_ranks:
        return equal_chunks(space, chunks)
    return chunks <= space.num_layers


def _chunk_rule(kinds: Sequence[ScheduleKind], chunks: set[int], space: LayoutContext) -> str:
    count = f", here {min(chunks)}," if len(chunks) == 1 else ""
    if space.layout_ranks:
        return f"pp x vpp{count} must be the {space.layout_ranks[-1]} stages of --pipeline-layout"
    if all(_is_equal(kind, space) for kind in kinds):
        units = space.num_layers + (space.predictor_units or 2)
        counted = "the embedding and the head as one each"
        if space.predictor_units:
            counted = "the layers and logits that predict further tokens and the loss"
        rule = f"pp x vpp{count} must cut {_layers(space)} into equal chunks"
        return f"{rule}, or {units} with {counted}"
    return f"every chunk of pp x vpp{count} has one of the model's {_layers(space)} or more"


Values = tuple[int | str, ...]

_CHOICES = ("schedule", "vpp", "zero", "recompute", "dp_replicate")
# Pins are freed in this order to find a minimal conflict, so that the last ones remain.
_FREED_FIRST: tuple[str, ...] = ("dp_replicate", "recompute", "zero", "micro_batch", "schedule")
_FREED_FIRST += ("dp", "ep", "cp", "tp", "vpp", "pp")
_PLAIN = (RunOption(),)


def why_none(axes: Axes, space: LayoutContext) -> str:
    """Each conflict of the pins: the pins, the broken rule and legal values."""
    conflicts, left = list[Axes](), axes
    while not _is_possible(left, space):
        conflict = _smallest_conflict(left, space)
        conflicts.append(conflict)
        if not conflict.pins():
            break
        left = _without(left, _pinned(conflict))
    return " ".join(_sentence(conflict, left, space) for conflict in conflicts)


def _sentence(conflict: Axes, others: Axes, space: LayoutContext) -> str:
    pins = " with ".join(conflict.pins()) or f"--global-batch {space.global_batch}"
    if space.options != _PLAIN and _is_possible(conflict, replace(space, options=_PLAIN)):
        rule = (
            "none of the requested options of the exchange, of local steps and of offloading runs "
            f"with it on {space.rules.name}"
        )
    else:
        rule = broken_rule(conflict, space)
    together = replace(others, **{axis: getattr(conflict, axis) for axis in _pinned(conflict)})
    proposed = [*_nearest_pins(conflict, together, space), *_other_sizes(conflict, together, space)]
    *most, last = proposed or ["fewer of these options"]
    return f"{pins}: {rule}. Use {', '.join(most)}{', or ' if most else ''}{last}."


def _is_possible(axes: Axes, space: LayoutContext) -> bool:
    return next(_legal(axes, space), None) is not None


def _legal(axes: Axes, space: LayoutContext) -> Iterator[tuple[Meshes, list[Choice]]]:
    """The legal meshes in groups with equal choices, and these choices."""
    meshes = meshes_of(axes, space)
    first, group = mesh_groups(space, meshes)
    for number, i in enumerate(first.tolist()):
        choices = [
            (name, vpp, zero, kind, space.options[option].dp_replicate)
            for name, vpp, zero, kind, option in choices_of(axes, space, meshes, i)
        ]
        if choices:
            yield meshes.rows(group == number), choices


def _smallest_conflict(axes: Axes, space: LayoutContext) -> Axes:
    """A minimal set of pins that allows nothing. If only vpp is pinned, pp keeps its given
    value."""
    least = axes
    for axis in _FREED_FIRST:
        freed = _without(least, (axis,))
        if freed != least and not _is_possible(freed, space):
            least = freed
    return replace(least, pp=axes.pp) if _pinned(least) == ("vpp",) else least


def _pinned(axes: Axes) -> tuple[str, ...]:
    return tuple(axis for axis in AXES if getattr(axes, axis) is not None)


def _without(axes: Axes, freed: Sequence[str]) -> Axes:
    return replace(axes, **dict.fromkeys(freed))


def _nearest_pins(conflict: Axes, axes: Axes, space: LayoutContext) -> list[str]:
    """Legal values of one pin each; of several pins together, if these are nearer."""
    pinned = _pinned(conflict)
    proposed, least = list[str](), math.inf
    for axis in pinned:
        near = _nearest_values(conflict, axis, axes, space)
        if near:
            *most, last = [str(value) for _, value in near]
            words = f"{', '.join(most)} or {last}" if most else last
            proposed.append(f"{flag_of(axis)} {words}")
            least = min(least, *(distance for distance, _ in near))
    several = [
        (distance, freed, values)
        for count in range(2, len(pinned) + 1)
        for freed in itertools.combinations(pinned, count)
        for distance, values in _values(conflict, freed, axes, space)[:1]
    ]
    if several:
        distance, freed, values = min(several, key=lambda each: (each[0], len(each[1])))
        if distance < least:
            pairs = zip(freed, values, strict=True)
            proposed.append(" ".join(f"{flag_of(axis)} {value}" for axis, value in pairs))
    return proposed


def _nearest_values(
    conflict: Axes, axis: str, axes: Axes, space: LayoutContext
) -> list[tuple[float, int | str]]:
    """(distance, value) of the nearest legal number on each side of a pin; of all legal names."""
    near = [(distance, value) for distance, (value,) in _values(conflict, (axis,), axes, space)]
    pins = getattr(conflict, axis)
    if axis in ("schedule", "recompute"):
        offered = (NO_PIPELINE, *space.rules.schedules, *space.rules.recompute)
        return sorted(near, key=lambda each: offered.index(str(each[1])))
    below = [each for each in near if each[1] < min(pins)]
    above = [each for each in near if each[1] > max(pins)]
    between = [each for each in near if each not in (*below, *above)]
    return below[:1] + between[:1] + above[:1]


def _values(
    conflict: Axes, freed: tuple[str, ...], axes: Axes, space: LayoutContext
) -> list[tuple[float, Values]]:
    """(distance, values) of freed axes that are legal with the other pins, the nearest first."""
    chosen = [axis for axis in freed if axis in _CHOICES]
    degrees = [axis for axis in freed if axis not in _CHOICES]
    found = set[Values]()
    for meshes, choices in _legal(_without(axes, freed), space):
        columns = [getattr(meshes, axis).tolist() for axis in degrees]
        of_meshes = set(zip(*columns, strict=True)) if degrees else {()}
        of_choices = {tuple(each[_CHOICES.index(axis)] for axis in chosen) for each in choices}
        for pair in itertools.product(of_meshes, of_choices):
            value = dict(zip((*degrees, *chosen), itertools.chain(*pair), strict=True))
            found.add(tuple(value[axis] for axis in freed))
    return sorted((_distance(conflict, freed, values), values) for values in found)


def _distance(conflict: Axes, freed: tuple[str, ...], values: Values) -> float:
    """Sum over axes: for counts the logarithm of their ratio, for ZeRO stages the difference, for
    other names 1."""
    total = 0.0
    for axis, value in zip(freed, values, strict=True):
        pins = getattr(conflict, axis)
        if isinstance(value, str):
            total += value not in pins
        elif axis == "zero":
            total += min(abs(value - pin) for pin in pins)
        else:
            total += min(abs(math.log(value / pin)) for pin in pins)
    return total


def _other_sizes(conflict: Axes, axes: Axes, space: LayoutContext) -> list[str]:
    """A global batch nearby, and a number of devices, with which the pins are legal."""
    return [
        *(f"--global-batch {size}" for size in _nearest_batch(axes, space)),
        *(f"{count} devices (--on)" for count in _more_devices(conflict, axes, space)),
    ]


def _nearest_batch(axes: Axes, space: LayoutContext) -> list[int]:
    """The nearest batch that the pinned replicas and micro-batches divide, if it is legal."""
    replicas = min(axes.dp or (1,))
    if axes.dp is None and not space.may_idle:
        model = math.prod(min(getattr(axes, axis) or (1,)) for axis in ("tp", "pp"))
        replicas = max(1, space.num_devices // model)
    share = replicas * min(axes.micro_batch or (1,))
    batch, units = space.global_batch, {share, share * min(axes.pp or (1,))}
    near = {unit * max(1, batch // unit + more) for unit in units for more in (0, 1)} - {batch}
    legal = [size for size in near if _is_possible(axes, replace(space, global_batch=size))]
    return sorted(legal, key=lambda size: (abs(size - batch), size))[:1]


def _more_devices(conflict: Axes, axes: Axes, space: LayoutContext) -> list[int]:
    """The devices of the smallest legal mesh, if it needs more than there are."""
    if not space.may_idle:
        return []
    pins = ("tp", "cp", "pp", "dp", "ep")
    # A schedule, or vpp, needs two stages.
    enough = 2 * math.prod(min(getattr(conflict, axis) or (1,)) for axis in pins)
    if enough <= space.num_devices:
        return []
    legal = _legal(axes, replace(space, num_devices=enough))
    return sorted(int(meshes.devices.min()) for meshes, _ in legal)[:1]
