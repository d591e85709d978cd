"""`ReliabilityInputs`: inputs of the goodput of a long run.

`SOURCES` gives the source of each default. A user may replace them with a TOML file that has the
same keys (`schema = "shardwright/reliability@1"`). A value that varies between clusters has a
`*_spread`: 90 % of clusters are within that factor (log-normal). `GoodputFile` has data from
published long runs: how often and why devices fail, and the duration of whole runs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from profiles.document import read_document
from profiles.errors import InputError

GOODPUT_FILE = Path(__file__).parents[2] / "profiles" / "data" / "calibration" / "goodput.toml"
GOODPUT_SCHEMA = "shardwright/goodput@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureRate:
    """Device-hours of a running job between unexpected interruptions.

    device_hours  median of all clusters;  devices  median by device type (prefix of its name)
    spread        90 % of clusters are within this factor of the median
    """

    device_hours: float
    spread: float
    clusters: int
    method: str
    source: str
    devices: Mapping[str, float] = field(default_factory=dict)

    def of(self, device_name: str) -> float:
        """Device-hours per interruption for a device; the overall median for an unknown type."""
        known = (hours for name, hours in self.devices.items() if device_name.startswith(name))
        return next(known, self.device_hours)


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
class Contingency:
    """Published duration of whole runs, divided by the duration that failures, checkpoints and
    steady steps explain.

    middle  median of runs with a complete published duration;  devices  median by device type
            (prefix of its name)
    spread  90 % of runs are within this factor of the prediction from the other runs
    error   mean absolute error of a run's duration predicted from the other runs
    """

    middle: float
    spread: float
    runs: int
    error: float
    method: str
    source: str
    devices: Mapping[str, float] = field(default_factory=dict)

    def of(self, device_name: str) -> float:
        """The median for a device; the overall median for an unknown type."""
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
    """The shipped goodput file."""
    return read_document(GOODPUT_FILE, GoodputFile, schema=GOODPUT_SCHEMA)


RELIABILITY_SCHEMA = "shardwright/reliability@1"
_HOUR_S = 3600.0
_DAY_S = 24 * _HOUR_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityInputs:
    """Properties of a cluster and of the operation of a run; seconds, bytes, shares (0 to 1).

    device_hours_per_failure   of a running job, between unexpected interruptions; None: the value
                        of the device's type in `GoodputFile`
    failure_shares      share of the interruptions by class (`device`, `network`, `software`,
                        `host`); only broken hardware needs a spare
    detection_s, restart_s   from a failure to its detection, and from there to the start of
                        loading the last checkpoint;  recovery_spread  of both together
    manual_share, manual_restart_s   share of failures that wait for a person; added seconds
    checkpoint_bytes_per_parameter   weights, master weights and optimizer states
    write_bytes_per_s_per_device, read_bytes_per_s_per_device   storage bandwidth while all devices
                        write or read; storage_write_bytes_per_s and storage_read_bytes_per_s,
                        of the whole store, take precedence
    checkpoint_blocking_share   share of a save that pauses training (1 for a synchronous save,
                        less for an asynchronous one)
    checkpoint_every_s  between saves; None: the optimal interval
    node_devices        devices that fail and are replaced together
    spare_nodes         ready to replace broken ones; None: always enough
    repair_s            until a broken node is a spare again
    spot_interruptions_per_device_hour   0 for capacity that cannot be reclaimed
    spot_warning_s      notice before it is reclaimed;  spot_wait_s  until replacement is available
    slow_devices        share of all devices that slow their host, detected or not
    slow_by             share of its speed that a slow host loses
    maintenance_device_hours   between planned interruptions; maintenance_s  until the restart
    evaluation_share    share of training time spent on evaluation
    contingency, contingency_spread   factor on the whole time for other losses; None: the value
                        of the device's type in `GoodputFile`
    """

    device_hours_per_failure: float | None = None
    failure_spread: float = learned().failure_rate.spread
    failure_shares: Mapping[str, float] | None = None
    detection_s: float = 300.0
    restart_s: float = 300.0
    recovery_spread: float = 2.0
    manual_share: float = 0.03
    manual_restart_s: float = _HOUR_S / 2
    checkpoint_bytes_per_parameter: float = 14.0
    write_bytes_per_s_per_device: float = 2e12 / 16384
    read_bytes_per_s_per_device: float = 1e12 / 3072
    storage_spread: float = 2.0
    storage_write_bytes_per_s: float | None = None
    storage_read_bytes_per_s: float | None = None
    checkpoint_blocking_share: float = 1.0
    checkpoint_every_s: float | None = None
    node_devices: int = 8
    spare_nodes: int | None = None
    repair_s: float = 3 * _DAY_S
    spot_interruptions_per_device_hour: float = 0.0
    spot_warning_s: float = 120.0
    spot_wait_s: float = 900.0
    slow_devices: float = 5.5e-6
    slow_by: float = 0.1
    slow_spread: float = 3.0
    maintenance_device_hours: float = 54 * 24 * 16384 / 47
    maintenance_s: float = 600.0
    evaluation_share: float = 0.003
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

# Source of each default.
SOURCES: Mapping[str, str] = MappingProxyType(
    {
        "device_hours_per_failure": f"{_RATE.source}; {_RATE.method}",
        "failure_spread": f"between the {_RATE.clusters} clusters of device_hours_per_failure",
        "failure_shares": learned().failure_shares.source,
        "detection_s": "half of less than 10 minutes to detect and diagnose (MegaScale, arXiv "
        "2402.15627)",
        "restart_s": "assumed: with detection 10 minutes, as the median retry interval of 11 "
        "minutes of 504 B200 (SK Telecom, 2026), below the 18.6 minutes that more than 90 % "
        "effective time leaves to each failure (arXiv 2407.21783, section 3.3.4)",
        "recovery_spread": "assumed: 5 to 20 minutes; MegaScale is back within 15",
        "manual_share": "between 3 of 419 (arXiv 2407.21783, section 3.3.4) and less than 10 % "
        "(MegaScale, arXiv 2402.15627)",
        "manual_restart_s": "assumed: half an hour",
        "checkpoint_bytes_per_parameter": "bf16 weights, fp32 master weights and two moments; "
        "13.7 measured (arXiv 2104.04473, section 5.10), 13.1 of BLOOM",
        "write_bytes_per_s_per_device": "2 TB/s sustained for 16,384 devices (arXiv 2407.21783, "
        "section 3.3.1); 273 GB/s for 3,072 (arXiv 2104.04473, section 5.10)",
        "read_bytes_per_s_per_device": "1 TB/s for 3,072 devices (arXiv 2104.04473, section 5.10)",
        "storage_spread": "between the two papers, and 2 and 7 TB/s of the first",
        "storage_write_bytes_per_s": "none: by the device",
        "storage_read_bytes_per_s": "none: by the device",
        "checkpoint_blocking_share": "a plain save, as of torch.distributed.checkpoint.save",
        "checkpoint_every_s": "the interval that loses least (Daly, FGCS 22(3), 2006)",
        "node_devices": "the usual node",
        "spare_nodes": "none: broken nodes are replaced from a pool that is large enough",
        "repair_s": "assumed: half of the six days that OPT's 12 buffer nodes last at two broken "
        "ones a day (arXiv 2205.01068)",
        "spot_interruptions_per_device_hour": "on-demand and reserved capacity is not taken back",
        "spot_warning_s": "two minutes (AWS EC2 User Guide, Spot Instance interruption notices); "
        "Google and Azure give 30 s",
        "spot_wait_s": "assumed: a quarter of an hour",
        "slow_devices": "taking out hosts that ran 10 % slower gained 0.7 of 55 points of MFU on "
        "12,288 devices (MegaScale, arXiv 2402.15627), so that there was one in 13 % of the time: "
        "half of that, as teams look for them now",
        "slow_by": "about 10 % (MegaScale, arXiv 2402.15627)",
        "slow_spread": "assumed",
        "maintenance_device_hours": "47 planned interruptions of 16,384 devices in 54 days (arXiv "
        "2407.21783, section 3.3.4)",
        "maintenance_s": "assumed: ten minutes",
        "evaluation_share": "the geometric mean of Megatron-LM's default (100 batches forward per "
        "1000 steps, 3.3 %) and of BLOOM's run (1 batch per 1000 steps, 0.03 %)",
        "contingency": f"{_CONTINGENCY.source}; {_CONTINGENCY.method}",
        "contingency_spread": f"between the {_CONTINGENCY.runs} runs of contingency",
    }
)

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
