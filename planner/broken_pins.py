"""Why the fixed axes (pins) allow nothing, and the nearest legal values.

The enumeration alone decides which values are legal (planner/space.py). A conflict is a smallest
set of pins that allows nothing, so every one of them takes part in the broken rule
(planner/broken_rule.py). A proposed value is one that the enumeration finds when some pins of the
conflict are free.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from planner.axes import AXES, NO_PIPELINE, Axes, flag_of
from planner.broken_rule import broken_rule
from planner.run_option import RunOption
from planner.space import Choice, LayoutContext, Meshes, choices_of, mesh_groups, meshes_of

Values = tuple[int | str, ...]

_CHOICES = ("schedule", "vpp", "zero", "recompute", "dp_replicate")
# Pins are freed in this order to find a smallest conflict, so that the ones at its end remain.
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
    """Pins that leave nothing, of which freeing any makes a layout legal; a number of chunks alone
    keeps the number of ranks that it was given with."""
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
    """Legal values of one pin each; of several pins together, if they are nearer."""
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
    """Sum over axes: of counts the logarithm of their ratio, of ZeRO stages the difference, of
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
    # A schedule or chunks need two stages.
    enough = 2 * math.prod(min(getattr(conflict, axis) or (1,)) for axis in pins)
    if enough <= space.num_devices:
        return []
    legal = _legal(axes, replace(space, num_devices=enough))
    return sorted(int(meshes.devices.min()) for meshes, _ in legal)[:1]
