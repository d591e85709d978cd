"""`Sourced`: a number with its source."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InputError

METHODS = ("datasheet", "measured", "fitted", "published", "derived", "assumed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sourced:
    """A value, its source and its uncertainty.

    value        in the SI unit of the containing field's name
    source       a link, a citation or a measurement file
    date         ISO date of the source
    method       one of `METHODS`
    uncertainty  relative half-width of a 90 % interval (0.05 = +-5 %); 0 where exact

    Raises InputError for an unknown method, an empty source or a negative uncertainty.
    """

    value: float
    source: str
    date: str
    method: str = "datasheet"
    uncertainty: float = 0.0

    def __post_init__(self) -> None:
        _need_source(self)
        if not self.uncertainty >= 0.0:
            raise InputError(f"uncertainty must be 0 or more, got {self.uncertainty!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcedRange:
    """A usual value with its range and source.

    low, high  smallest and largest value of the source or sources

    Raises InputError if the value is outside its range or has no source.
    """

    value: float
    low: float
    high: float
    source: str
    date: str
    method: str = "published"

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise InputError(f"the range [{self.low}, {self.high}] does not contain {self.value}")
        _need_source(self)


def _need_source(number: Sourced | SourcedRange) -> None:
    if number.method not in METHODS:
        raise InputError(f"method {number.method!r} is not one of {', '.join(METHODS)}")
    if not number.source.strip():
        raise InputError(f"the number {number.value!r} has no source; name its source")


def given(value: float, source: str) -> SourcedRange:
    """A number from the user, without a range."""
    return SourcedRange(
        value=value, low=value, high=value, source=source, date="", method="assumed"
    )
