"""Dollars and energy per million tokens (or samples), from dated prices and power figures, and the
dollars of stored and sent bytes.

During a run of t hours its data set of D bytes and k checkpoints of C bytes are stored, and at the
end E bytes leave the provider:

    dollars = (D + k C) p t / (730 h) + E q        p per byte and month, q per byte sent
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.prices.storage_price import StoragePrice
from profiles.sourced import Sourced, SourcedRange
from simulator.energy import cluster_watts
from simulator.values.prediction import Interval


def usd_per_million_tokens(
    tokens_per_s: Interval, num_devices: int, price_usd_per_hour: Sourced | None
) -> Interval | None:
    """US dollars of device-hours per million tokens; None without a price.

    The price's own uncertainty widens the interval.
    """
    if price_usd_per_hour is None or tokens_per_s.value <= 0:
        return None
    return usd_per_million(tokens_per_s, [(num_devices, price_usd_per_hour)])


def usd_per_million(per_s: Interval, devices: Sequence[tuple[int, Sourced]]) -> Interval:
    """US dollars per million tokens (or samples) at a rate `per_s`.

    devices  pairs (number, US dollars per hour)
    """
    low = sum(count * usd.value * max(0.0, 1 - usd.uncertainty) for count, usd in devices)
    value = sum(count * usd.value for count, usd in devices)
    high = sum(count * usd.value * (1 + usd.uncertainty) for count, usd in devices)
    return Interval(
        value=value / 3600.0 / per_s.value * 1e6,
        low=low / 3600.0 / per_s.high * 1e6,
        high=high / 3600.0 / per_s.low * 1e6,
    )


def kwh_per_million_tokens(
    tokens_per_s: Interval, cluster: Cluster, mfu: float | None = None
) -> Interval:
    """kWh of the site per million tokens (simulator/energy.py), including idle devices.

    mfu  of the 16-bit peak; None for full load
    """
    if tokens_per_s.value <= 0:
        return Interval(value=0.0, low=0.0, high=0.0)
    watts = cluster_watts(cluster, mfu)
    factor = 1e6 / 3.6e6
    return Interval(
        value=watts.value * factor / tokens_per_s.value,
        low=watts.low * factor / tokens_per_s.high,
        high=watts.high * factor / tokens_per_s.low,
    )


_GIB = 2.0**30
_HOURS_PER_MONTH = 365.0 / 12.0 * 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStorage:
    """The data that a run stores and sends.

    dataset_bytes      stored tokens
    checkpoint_bytes   of one checkpoint
    checkpoints        number kept at a time
    sent_bytes         leaving the provider at the end

    Raises InputError for a negative number.
    """

    price: StoragePrice
    dataset_bytes: float
    checkpoint_bytes: float
    checkpoints: float
    sent_bytes: float

    def __post_init__(self) -> None:
        for name in ("dataset_bytes", "checkpoint_bytes", "checkpoints", "sent_bytes"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} of a run must not be negative")

    @property
    def kept_bytes(self) -> float:
        """Stored bytes at any time of the run."""
        return self.dataset_bytes + self.checkpoints * self.checkpoint_bytes

    @property
    def usd_per_hour(self) -> Interval:
        """US dollars per hour of the run."""
        return _dollars(self.price.usd_per_gib_month, self.kept_bytes / _GIB / _HOURS_PER_MONTH)

    @property
    def egress_usd(self) -> Interval:
        """US dollars of the sent bytes."""
        return _dollars(self.price.egress_usd_per_gib, self.sent_bytes / _GIB)

    def storage_usd(self, hours: Interval) -> Interval:
        """US dollars of storage for the hours of a run."""
        return self.usd_per_hour.times(hours)


def _dollars(price: SourcedRange, amount: float) -> Interval:
    return Interval(value=price.value, low=price.low, high=price.high).scaled(amount)
