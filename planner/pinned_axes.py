"""Axes that a user pins or restricts by flags: what both search spaces ask of them.

A space is a dataclass whose fields are axes: the allowed values of each, None where it is free.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, ClassVar, Protocol

from profiles.errors import InputError, UnknownNameError


class AxisSpace(Protocol):
    """Any dataclass of axes."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


def flag_of(axis: str) -> str:
    """The flag that restricts an axis.

    >>> flag_of("micro_batch")
    '--micro-batch'
    """
    return f"--{axis.replace('_', '-')}"


def check_axes(space: AxisSpace, names: Mapping[str, Collection[str]]) -> None:
    """Raises InputError for empty axes, counts below 1 and unknown ZeRO stages, and
    UnknownNameError for names that are not among `names`, by axis."""
    for axis in (field.name for field in fields(space)):
        allowed, flag = getattr(space, axis), flag_of(axis)
        if allowed == ():
            raise InputError(f"{flag} allows no value; leave it out to leave it free")
        for value in allowed or ():
            if axis in names:
                if value not in names[axis]:
                    raise UnknownNameError(axis, value, names[axis], where=flag)
            elif axis == "zero":
                if value not in (0, 1, 2, 3):
                    raise InputError(f"{flag} must be 0, 1, 2 or 3, got {value}")
            elif value < 1:
                raise InputError(f"{flag} must be 1 or more, got {value}")


def pins_of(space: AxisSpace) -> tuple[str, ...]:
    """What is not free, as flags: (`--tp 4`, `--zero 0,1`)."""
    return tuple(
        f"{flag_of(axis)} {','.join(str(value) for value in getattr(space, axis))}"
        for axis in (field.name for field in fields(space))
        if getattr(space, axis) is not None
    )
