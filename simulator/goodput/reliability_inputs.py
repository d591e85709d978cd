"""`ReliabilityInputs`: inputs of the goodput of a long run.

The defaults and their sources are in profiles/data/reliability.toml (`SOURCES`). A user may replace
them with a TOML file that has the same keys (`schema = "shardwright/reliability@1"`). A value that
varies between clusters has a `*_spread`: 90 % of clusters are within that factor (log-normal).
`GoodputFile` has data from published long runs: how often and why devices fail, and the duration of
whole runs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from profiles.document import read_document
from profiles.errors import InputError

GOODPUT_FILE = Path(__file__).parents[2] / "profiles" / "data" / "calibration" / "goodput.toml"
GOODPUT_SCHEMA = "shardwright/goodput@1"
_USUAL_FILE = GOODPUT_FILE.parents[1] / "reliability.toml"
_USUAL_SCHEMA = "shardwright/reliability-defaults@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class ByDevice:
    """A number for long runs, estimated from published ones.

    middle   median of all runs or clusters
    devices  middle by device type (prefix of its name)
    spread   90 % of runs or clusters are within this factor of the middle
    count    number of runs or clusters
    error    mean absolute error of predicting a run's number from the other runs; 0 if not computed
    """

    middle: float
    spread: float
    count: int
    method: str
    source: str
    error: float = 0.0
    devices: Mapping[str, float] = field(default_factory=dict)

    def of(self, device_name: str) -> float:
        """The middle for a device; the overall middle for an unknown type."""
        known = (value for name, value in self.devices.items() if device_name.startswith(name))
        return next(known, self.middle)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureShares:
    """Share of the interruptions by class of cause; they add up to 1."""

    shares: Mapping[str, float]
    source: str
    date: str

    def __post_init__(self) -> None:
        if abs(sum(self.shares.values()) - 1.0) > 1e-6:
            raise InputError(f"shares of failures add up to {sum(self.shares.values())}, not to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class GoodputFile:
    """profiles/data/calibration/goodput.toml.

    failure_rate  device-hours of a running job between unexpected interruptions, by cluster
    contingency   published duration of whole runs, divided by the duration that failures,
                  checkpoints and steady steps explain
    """

    date: str
    failure_rate: ByDevice
    failure_shares: FailureShares
    contingency: ByDevice


@functools.cache
def learned() -> GoodputFile:
    """The shipped goodput file."""
    return read_document(GOODPUT_FILE, GoodputFile, schema=GOODPUT_SCHEMA)


RELIABILITY_SCHEMA = "shardwright/reliability@1"
_HOUR_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualValue:
    """The default of an input, None for none, and its source."""

    source: str
    value: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualFile:
    """The file profiles/data/reliability.toml, with its inputs by name."""

    inputs: Mapping[str, UsualValue]


@functools.cache
def _usual_values() -> Mapping[str, UsualValue]:
    return read_document(_USUAL_FILE, UsualFile, schema=_USUAL_SCHEMA).inputs


def _usual(name: str) -> float:
    value = _usual_values()[name].value
    assert value is not None
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityInputs:
    """Properties of a cluster and of the operation of a run; seconds, bytes, shares (0 to 1).

    device_hours_per_failure   of a running job, between unexpected interruptions; None: the value
                               of the device's type in `GoodputFile`
    failure_shares      share of the interruptions by class (`device`, `network`, `software`,
                        `host`); only broken hardware needs a spare
    detection_s, restart_s   from a failure to its detection, and from there to the start of loading
                             the last checkpoint
    recovery_spread     of the sum of both
    manual_share, manual_restart_s   share of failures that wait for a person, and the additional
                                     seconds
    checkpoint_bytes_per_parameter   weights, master weights and optimizer states
    write_bytes_per_s_per_device, read_bytes_per_s_per_device   storage bandwidth while all devices
                                                                write or read
    storage_write_bytes_per_s, storage_read_bytes_per_s   of the whole store; take precedence
    checkpoint_blocking_share   share of a save that pauses training (1 for a synchronous save, less
                                for an asynchronous one)
    checkpoint_every_s  between saves; None: the optimal interval
    node_devices        devices that fail and are replaced together
    spare_nodes         ready to replace broken ones; None: always enough
    repair_s            until a broken node is a spare again
    spot_interruptions_per_device_hour   0 for capacity that cannot be reclaimed
    spot_warning_s      notice before it is reclaimed
    spot_wait_s         until replacement is available
    slow_devices        share of all devices that slow their host, detected or not
    slow_by             share of its speed that a slow host loses
    maintenance_device_hours, maintenance_s   between planned interruptions; until the restart
    evaluation_share    share of training time spent on evaluation
    contingency, contingency_spread   factor on the whole time for other losses; None: the value of
                                      the device's type in `GoodputFile`
    """

    device_hours_per_failure: float | None = None
    failure_spread: float = learned().failure_rate.spread
    failure_shares: Mapping[str, float] | None = None
    detection_s: float = _usual("detection_s")
    restart_s: float = _usual("restart_s")
    recovery_spread: float = _usual("recovery_spread")
    manual_share: float = _usual("manual_share")
    manual_restart_s: float = _usual("manual_restart_s")
    checkpoint_bytes_per_parameter: float = _usual("checkpoint_bytes_per_parameter")
    write_bytes_per_s_per_device: float = _usual("write_bytes_per_s_per_device")
    read_bytes_per_s_per_device: float = _usual("read_bytes_per_s_per_device")
    storage_spread: float = _usual("storage_spread")
    storage_write_bytes_per_s: float | None = None
    storage_read_bytes_per_s: float | None = None
    checkpoint_blocking_share: float = _usual("checkpoint_blocking_share")
    checkpoint_every_s: float | None = None
    node_devices: int = int(_usual("node_devices"))
    spare_nodes: int | None = None
    repair_s: float = _usual("repair_s")
    spot_interruptions_per_device_hour: float = _usual("spot_interruptions_per_device_hour")
    spot_warning_s: float = _usual("spot_warning_s")
    spot_wait_s: float = _usual("spot_wait_s")
    slow_devices: float = _usual("slow_devices")
    slow_by: float = _usual("slow_by")
    slow_spread: float = _usual("slow_spread")
    maintenance_device_hours: float = _usual("maintenance_device_hours")
    maintenance_s: float = _usual("maintenance_s")
    evaluation_share: float = _usual("evaluation_share")
    contingency: float | None = None
    contingency_spread: float = learned().contingency.spread

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None or isinstance(value, Mapping):
                continue
            name, number = each.name, float(value)
            if not math.isfinite(number) or number < 0:
                raise InputError(f"{name} = {value!r}: must be a number of 0 or more")
            if name in _POSITIVE and number == 0:
                raise InputError(f"{name} = 0: must be a number above 0")
            if name in _SHARES and number > 1:
                raise InputError(f"{name} = {value!r}: must be a share from 0 to 1 (0.05 is 5 %)")
            if name.endswith("_spread") and number < 1:
                raise InputError(
                    f"{name} = {value!r}: the factor between clusters must be 1 (no difference) or "
                    "more"
                )
        if self.contingency is not None and self.contingency < 1:
            raise InputError(
                f"contingency = {self.contingency:g}: must be 1 or more (the factor on a run's "
                "productive time and known losses)"
            )
        for name, share in (self.failure_shares or {}).items():
            if name not in FAILURE_CLASSES or not 0 <= share <= 1:
                raise InputError(
                    f"failure_shares.{name} = {share!r}: use shares from 0 to 1 of "
                    f"{', '.join(FAILURE_CLASSES)}"
                )
        if self.failure_shares and abs(sum(self.failure_shares.values()) - 1) > 1e-3:
            total = sum(self.failure_shares.values())
            raise InputError(f"failure_shares add up to {total:g}; they must add up to 1")

    def __hash__(self) -> int:
        # A mapping has no hash.
        return hash(tuple(str(getattr(self, field.name)) for field in fields(self)))

    def failure_device_hours(self, device_name: str) -> float:
        """Device-hours between unexpected interruptions of a job on these devices."""
        return self.device_hours_per_failure or learned().failure_rate.of(device_name)

    def contingency_of(self, device_name: str) -> float:
        """Factor on the whole time of a run on these devices for unexplained losses."""
        return self.contingency or learned().contingency.of(device_name)

    @property
    def shares(self) -> Mapping[str, float]:
        """Share of the failures by class of cause."""
        return self.failure_shares or learned().failure_shares.shares

    @property
    def hardware_share(self) -> float:
        """Share of the failures that require a replacement node."""
        return sum(share for name, share in self.shares.items() if name != "software")

    def broken_nodes(self, devices: int, device_name: str) -> float:
        """Mean number of broken nodes at a time, the load of the spares."""
        rate = devices / (self.failure_device_hours(device_name) * _HOUR_S)
        return rate * self.hardware_share * self.repair_s

    def sure(self) -> ReliabilityInputs:
        """A copy without differences between clusters and without contingency."""
        spreads = (each.name for each in fields(self) if each.name.endswith("_spread"))
        alike: dict[str, Any] = dict.fromkeys(spreads, 1.0)
        return replace(self, contingency=1.0, **alike)


FAILURE_CLASSES = ("device", "network", "software", "host")
_SHARES = (
    *("manual_share", "checkpoint_blocking_share", "slow_devices", "slow_by"),
    "evaluation_share",
)
_POSITIVE = (
    *("device_hours_per_failure", "checkpoint_bytes_per_parameter", "write_bytes_per_s_per_device"),
    *("read_bytes_per_s_per_device", "storage_write_bytes_per_s", "storage_read_bytes_per_s"),
    *("checkpoint_every_s", "node_devices", "repair_s", "maintenance_device_hours"),
)
_RATE = learned().failure_rate
_CONTINGENCY = learned().contingency

SOURCES: Mapping[str, str] = {
    **{name: usual.source for name, usual in _usual_values().items()},
    "device_hours_per_failure": f"{_RATE.source}; {_RATE.method}",
    "failure_spread": f"between the {_RATE.count} clusters of device_hours_per_failure",
    "failure_shares": learned().failure_shares.source,
    "contingency": f"{_CONTINGENCY.source}; {_CONTINGENCY.method}",
    "contingency_spread": f"between the {_CONTINGENCY.count} runs of contingency",
}
"""Source of each default."""

DEFAULT = ReliabilityInputs()
# Spot capacity: a node of eight devices is reclaimed in 10 to 15 % of months, the middle band of
# AWS's Spot Instance Advisor (below 5 % to above 20 %). Current devices are often reclaimed more.
SPOT = replace(DEFAULT, spot_interruptions_per_device_hour=0.125 / 730 / 8)


def inputs_at(price: str) -> ReliabilityInputs:
    """The defaults for a kind of price: `spot` capacity can be reclaimed."""
    return SPOT if price == "spot" else DEFAULT


def read_reliability(path: str | Path) -> ReliabilityInputs:
    """Inputs from a user's file; missing keys keep their defaults. Raises DocumentError."""
    return read_document(path, ReliabilityInputs, schema=RELIABILITY_SCHEMA)
