"""`Axes`: the degrees and kinds that a user fixes or restricts, from flags to both searches."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from profiles.errors import InputError, UnknownNameError
from simulator.schedules.schedule import pipeline_names
from simulator.values.plan import Recompute
from simulator.values.recompute_kind import RECOMPUTE_KINDS
from simulator.values.runnable import runnable_schedules

NO_PIPELINE = "none"
"""The schedule of one pipeline rank."""
_NAMES = ("schedule", "recompute")
FRAMEWORKS_ONLY = ("cp", "ep")
"""Axes that our own executor does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """Allowed values per axis; None for a free axis. One value fixes the axis, several restrict it.
    A free dp_replicate is 1.

    Raises InputError for empty axes, counts below 1 and unknown ZeRO stages, UnknownNameError for
    unknown schedules and recompute kinds.
    """

    tp: tuple[int, ...] | None = None
    cp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    pp: tuple[int, ...] | None = None
    dp: tuple[int, ...] | None = None
    dp_replicate: tuple[int, ...] | None = None
    vpp: tuple[int, ...] | None = None
    zero: tuple[int, ...] | None = None
    micro_batch: tuple[int, ...] | None = None
    schedule: tuple[str, ...] | None = None
    recompute: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for axis in AXES:
            allowed, flag = getattr(self, axis), flag_of(axis)
            if allowed == ():
                raise InputError(f"{flag} allows no value; leave it out to leave it free")
            for value in allowed or ():
                if axis in _NAMES:
                    known = (
                        (NO_PIPELINE, *pipeline_names()) if axis == "schedule" else RECOMPUTE_KINDS
                    )
                    if value not in known:
                        kind = "recompute kind" if axis == "recompute" else axis
                        raise UnknownNameError(kind, value, known, where=flag)
                elif axis == "zero":
                    if value not in (0, 1, 2, 3):
                        raise InputError(f"{flag} must be 0, 1, 2 or 3, got {value}")
                elif value < 1:
                    raise InputError(f"{flag} must be 1 or more, got {value}")

    def allows(self, axis: str, value: int | str) -> bool:
        """Whether `value` is allowed on `axis`."""
        allowed = getattr(self, axis)
        return allowed is None or value in allowed

    def pins(self) -> tuple[str, ...]:
        """The fixed or restricted axes, as flags.

        >>> Axes(tp=(4,), zero=(0, 1)).pins()
        ('--tp 4', '--zero 0,1')
        """
        return tuple(
            f"{flag_of(axis)} {','.join(map(str, getattr(self, axis)))}"
            for axis in AXES
            if getattr(self, axis) is not None
        )

    @property
    def replicate_groups(self) -> tuple[int, ...]:
        """The values of dp_replicate, including 1 (the value of a free axis)."""
        return tuple(dict.fromkeys((1, *(self.dp_replicate or ()))))

    @property
    def strategies(self) -> tuple[Recompute, ...]:
        """The recompute kinds that a block may use, fastest first."""
        return tuple(kind for kind in Recompute if self.allows("recompute", kind))

    def for_blocks(self) -> Axes:
        """The axes of a search block by block, for our own executor. `selective`, the frameworks'
        name, becomes `attention`.

        Raises InputError for cp and ep above 1, UnknownNameError for kinds and schedules that the
        executor does not have.
        """
        for axis in FRAMEWORKS_ONLY:
            if getattr(self, axis) not in (None, (1,)):
                values = ",".join(map(str, getattr(self, axis)))
                raise InputError(
                    f"--{axis} {values}: our own executor has no such axis; name the framework "
                    "that will run the plan, for example --stack megatron-core"
                )
        for name in self.schedule or ():
            if name not in runnable_schedules():
                raise UnknownNameError("schedule", name, runnable_schedules(), where="--schedule")
        if self.recompute is None:
            return replace(self, cp=None, ep=None)
        kinds = tuple(name.replace("selective", "attention") for name in self.recompute)
        for name in kinds:
            if name not in list(Recompute):
                raise UnknownNameError("recompute kind", name, list(Recompute), where="--recompute")
        return replace(self, cp=None, ep=None, recompute=kinds)


AXES = tuple(field.name for field in fields(Axes))


def flag_of(axis: str) -> str:
    """The flag that restricts an axis.

    >>> flag_of("micro_batch")
    '--micro-batch'
    """
    return f"--{axis.replace('_', '-')}"


def parse_axis(text: str, flag: str) -> tuple[int, ...]:
    """The values of `4` or `1,2,4`; raises InputError naming the flag.

    >>> parse_axis("1,2", "--tp")
    (1, 2)
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise InputError(
            f"{flag} {text!r} is not a list of whole numbers; write {flag} 4 to pin it or "
            f"{flag} 1,2,4 to restrict it"
        ) from None


def axes_from(**given: int | str | tuple[int, ...] | tuple[str, ...] | None) -> Axes:
    """Axes from Python values: one value, or a tuple of several; None leaves an axis free.

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
                raise InputError(f"{axis}={value!r} must be {wanted} or a tuple of several")
        made[axis] = tuple(str(one) for one in values) if kind is str else values
    return Axes(**made)
