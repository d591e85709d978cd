"""What was learned of long runs: how often devices fail, why, and what whole runs took."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from profiles.document import read_document
from profiles.errors import InputError

GOODPUT_FILE = Path(__file__).parents[2] / "profiles" / "data" / "calibration" / "goodput.toml"
GOODPUT_SCHEMA = "shardwright/goodput@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """Device-hours of a running job between unexpected interruptions.

    device_hours  the middle of all clusters;  devices  that of some types, by what their names
                  begin with
    spread        90 % of clusters lie within this factor of it
    """

    device_hours: float
    spread: float
    clusters: int
    method: str
    source: str
    devices: Mapping[str, float] = field(default_factory=dict)

    def of(self, device_name: str) -> float:
        """Device-hours per interruption of a device; those of all where its type is not known."""
        known = (hours for name, hours in self.devices.items() if device_name.startswith(name))
        return next(known, self.device_hours)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureShares:
    """Share of the interruptions by class of source; they add up to 1."""

    shares: Mapping[str, float]
    source: str
    date: str

    def __post_init__(self) -> None:
        if abs(sum(self.shares.values()) - 1.0) > 1e-6:
            raise InputError(f"shares of failures add up to {sum(self.shares.values())}, not to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contingency:
    """Time of whole published runs over what their failures, checkpoints and steady step explain.

    middle  of runs whose published time counts all that happened;  devices  that of some types, by
            what their names begin with
    spread  90 % of runs lie within this factor of what the others say of them
    error   mean absolute error of a run's time that is predicted from the other runs
    """

    middle: float
    spread: float
    runs: int
    error: float
    method: str
    source: str
    devices: Mapping[str, float] = field(default_factory=dict)

    def of(self, device_name: str) -> float:
        """The middle of a device; that of all where its type is not known."""
        known = (middle for name, middle in self.devices.items() if device_name.startswith(name))
        return next(known, self.middle)


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputFile:
    """profiles/data/calibration/goodput.toml."""

    date: str
    failure_rate: FailureRate
    failure_shares: FailureShares
    contingency: Contingency


@functools.cache
def learned() -> GoodputFile:
    """What the project ships."""
    return read_document(GOODPUT_FILE, GoodputFile, schema=GOODPUT_SCHEMA)
