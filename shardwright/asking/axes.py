"""`Axes`: the degrees and kinds that a user fixes or restricts, read once from their flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from planner.pinned_axes import check_axes, flag_of, pins_of
from profiles.errors import InputError, UnknownNameError
from simulator.values.plan import Recompute

if TYPE_CHECKING:
    from planner.layout.layout_space import LayoutSpace
    from planner.search.space import Space

_NAMES = ("recompute", "schedule")
_FRAMEWORKS_ONLY = ("cp", "ep")


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Allowed values per axis; None where free. One value fixes the axis, several restrict it.

    Raises InputError for empty axes, counts below 1 and unknown ZeRO stages.
    """

    micro_batch: tuple[int, ...] | None = None
    tp: tuple[int, ...] | None = None
    pp: tuple[int, ...] | None = None
    dp: tuple[int, ...] | None = None
    cp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    zero: tuple[int, ...] | None = None
    vpp: tuple[int, ...] | None = None
    recompute: tuple[str, ...] | None = None
    schedule: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for axis in _NAMES:
            if getattr(self, axis) == ():
                raise InputError(f"{flag_of(axis)} allows no value; leave it out to leave it free")
        check_axes(self, {axis: getattr(self, axis) or () for axis in _NAMES})

    def pins(self) -> tuple[str, ...]:
        """What is not free, as flags: (`--tp 4`, `--zero 0,1`)."""
        return pins_of(self)

    def space(self) -> Space:
        """The search space of a traced model; raises InputError for cp and ep above 1."""
        from planner.search.space import Space

        for axis in _FRAMEWORKS_ONLY:
            if getattr(self, axis) not in (None, (1,)):
                values = ",".join(map(str, getattr(self, axis)))
                raise InputError(
                    f"--{axis} {values}: our own executor has no such axis; name the framework "
                    "that will run the plan, for example --stack megatron-core"
                )
        # `selective` is what frameworks call it.
        kinds = tuple(name.replace("selective", "attention") for name in self.recompute or ())
        for name in kinds:
            if name not in list(Recompute):
                raise UnknownNameError("recompute kind", name, list(Recompute), where="--recompute")
        given = {
            name: value for name, value in self._given().items() if name not in _FRAMEWORKS_ONLY
        }
        if self.recompute is not None:
            given["recompute"] = tuple(Recompute(name) for name in kinds)
        return Space(**given)

    def layout_space(self) -> LayoutSpace:
        """The space of a framework's layouts."""
        from planner.layout.layout_space import LayoutSpace

        return LayoutSpace(**self._given())

    def _given(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}


AXES = tuple(field.name for field in fields(Axes))


def axes_of(texts: Mapping[str, str | int | None]) -> Axes:
    """The axes of flags, or of the pins of a file; None leaves one free.

    Raises InputError naming the flag.

    >>> axes_of({"tp": "1,2", "schedule": "1f1b"}).pins()
    ('--tp 1,2', '--schedule 1f1b')
    """
    given: dict[str, Any] = {}
    for axis, text in texts.items():
        if axis not in AXES:
            raise UnknownNameError("axis", axis, AXES)
        if text is not None:
            given[axis] = _names(str(text)) if axis in _NAMES else _counts(axis, str(text))
    return Axes(**given)


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(","))


def _counts(axis: str, text: str) -> tuple[int, ...]:
    from planner.search.space import parse_axis

    return parse_axis(text, flag_of(axis))


def axes_from(**given: int | str | tuple[int, ...] | tuple[str, ...] | None) -> Axes:
    """The axes of Python values: one, or a tuple of several; None leaves one free.

    Raises InputError for other values, UnknownNameError for other axes.

    >>> axes_from(tp=4, pp=(1, 2)).pins()
    ('--tp 4', '--pp 1,2')
    """
    made: dict[str, Any] = {}
    for axis, value in given.items():
        if axis not in AXES:
            raise UnknownNameError("axis", axis, AXES)
        if value is None:
            continue
        values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
        kind: type = str if axis in _NAMES else int
        for one in values:
            if not isinstance(one, kind) or isinstance(one, bool):
                wanted = "a name" if kind is str else "a whole number"
                raise InputError(f"{axis}={value!r}: {wanted}, or a tuple of several, is wanted")
        made[axis] = tuple(str(one) for one in values) if kind is str else values
    return Axes(**made)
