"""What stored and sent bytes of a training run cost.

While a run of t hours is on its way its data set of D bytes and k checkpoints of C bytes are kept,
and at the end E bytes leave the provider:

    dollars = (D + k C) p t / (730 h) + E q        p per byte and month, q per byte sent
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InputError
from profiles.hardware.prices.storage_price import StoragePrice
from simulator.values.prediction import Interval

_GIB = 2.0**30
_HOURS_PER_MONTH = 365.0 / 12.0 * 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStorage:
    """What a run keeps and sends.

    dataset_bytes   tokens as they are read;  checkpoint_bytes  of one;  checkpoints  kept at a time
    sent_bytes      that leave the provider at the end

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
        """At any time of the run."""
        return self.dataset_bytes + self.checkpoints * self.checkpoint_bytes

    @property
    def usd_per_hour(self) -> Interval:
        """US dollars per hour of the run."""
        each = self.kept_bytes / _GIB / _HOURS_PER_MONTH
        price = self.price.usd_per_gib_month
        return Interval(value=price.value, low=price.low, high=price.high).scaled(each)

    @property
    def egress_usd(self) -> Interval:
        """US dollars of what is sent."""
        price = self.price.egress_usd_per_gib
        sent = self.sent_bytes / _GIB
        return Interval(value=price.value, low=price.low, high=price.high).scaled(sent)

    def storage_usd(self, hours: Interval) -> Interval:
        """US dollars of what is kept for the hours of a run."""
        rate = self.usd_per_hour
        return Interval(
            value=rate.value * hours.value, low=rate.low * hours.low, high=rate.high * hours.high
        )
