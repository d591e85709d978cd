"""`StoragePrice`: the price of storage and egress; a user's, or usual list prices.

In a price file (price_file.py, TOML) next to the offers:

    [storage]
    provider = "our contract"
    usd_per_gib_month = 0.02
    egress_usd_per_gib = 0.05
    date = "2026-11-01"
    dataset_gib = 60000        # these three may be left out
    checkpoints_kept = 10
    egress_gib = 200
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path

from profiles.document import read_document
from profiles.errors import InputError
from profiles.sourced import SourcedRange, given

DEFAULT_FILE = Path(__file__).parents[2] / "data" / "prices" / "storage.toml"
DEFAULT_SCHEMA = "shardwright/storage-defaults@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoragePrice:
    """US dollars per GiB: of storage per month, and of egress.

    words   provider and date of the prices

    Raises InputError for a negative price.
    """

    usd_per_gib_month: SourcedRange
    egress_usd_per_gib: SourcedRange
    words: str

    def __post_init__(self) -> None:
        if min(self.usd_per_gib_month.low, self.egress_usd_per_gib.low) < 0:
            raise InputError(
                "prices of storage and egress must not be negative, got "
                f"${self.usd_per_gib_month.low:g} per GiB and month and "
                f"${self.egress_usd_per_gib.low:g} per GiB of egress"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStorage:
    """The table [storage] of a user's price file: prices, and sizes that replace the defaults of
    `size` (None: the default).

    dataset_gib       size of the tokenized dataset
    checkpoints_kept  checkpoints that are stored at the same time
    egress_gib        data that leaves the provider when the run ends
    """

    provider: str
    usd_per_gib_month: float
    egress_usd_per_gib: float
    date: str
    address: str = ""
    dataset_gib: float | None = None
    checkpoints_kept: float | None = None
    egress_gib: float | None = None

    def __post_init__(self) -> None:
        if not self.provider.strip() or not self.date.strip():
            raise InputError(
                "storage: give the provider of the prices (provider) and their day (date)"
            )
        for name in ("dataset_gib", "checkpoints_kept", "egress_gib"):
            if (getattr(self, name) or 0.0) < 0:
                raise InputError(f"storage.{name} must not be negative")

    def price(self, path: Path) -> StoragePrice:
        """The prices with their source; raises InputError."""
        kept, sent = (
            replace(given(value, self.address or str(path)), date=self.date)
            for value in (self.usd_per_gib_month, self.egress_usd_per_gib)
        )
        words = f"{self.provider}, {self.date}"
        return StoragePrice(usd_per_gib_month=kept, egress_usd_per_gib=sent, words=words)


@functools.cache
def usual_storage() -> StoragePrice:
    """List prices of object storage (profiles/data/prices/storage.toml)."""
    found: StoragePrice = read_document(DEFAULT_FILE, StoragePrice, schema=DEFAULT_SCHEMA)
    return found
