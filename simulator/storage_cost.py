"""What stored and sent bytes cost, at prices that the user gives: we ship none.

No dated table of storage and egress prices was at hand; a provider's own list is the input.
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InputError

_GIB = 2.0**30
_DAYS_PER_MONTH = 365.0 / 12.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePrice:
    """A provider's prices of kept and of outgoing bytes.

    usd_per_gib_month   of what is kept;  egress_usd_per_gib  of what leaves the provider
    source, date        where they were read, and when

    Raises InputError for a negative price and for one without source or date.
    """

    usd_per_gib_month: float
    egress_usd_per_gib: float
    source: str
    date: str

    def __post_init__(self) -> None:
        if min(self.usd_per_gib_month, self.egress_usd_per_gib) < 0:
            raise InputError("prices of storage and egress must not be negative")
        if not self.source.strip() or not self.date.strip():
            raise InputError("prices of storage need a source and a date: we ship none of our own")


def storage_usd(price: StoragePrice, stored_bytes: float, time_s: float) -> float:
    """US dollars of keeping bytes for a time; a month is a twelfth of 365 days."""
    return stored_bytes / _GIB * price.usd_per_gib_month * time_s / 86400.0 / _DAYS_PER_MONTH


def egress_usd(price: StoragePrice, sent_bytes: float) -> float:
    """US dollars of sending bytes out."""
    return sent_bytes / _GIB * price.egress_usd_per_gib
