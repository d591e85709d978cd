"""`Owning`: the costs of an owned device, from a user's file and shipped defaults.

    schema = "shardwright/owning@1"
    purchase_usd_per_device = 31000     # with its share of the server
    network_share = 0.12                # of the purchase, on top: switches, cables
    staff_usd_per_device_year = 600
    power_usd_per_kwh = 0.07            # these have usual values:
    hosting_usd_per_kw_month = 170      #   profiles/data/prices/owning.toml
    depreciation_years = 4
    residual_share = 0.15               # of the purchase, at which it is sold; 0 if absent

Purchase, network and staff are required: there is no credible public source for defaults.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document
from profiles.errors import DocumentError, InputError
from profiles.sourced import SourcedRange, given

DEFAULT_FILE = Path(__file__).parents[2] / "data" / "prices" / "owning.toml"
DEFAULT_SCHEMA = "shardwright/owning-defaults@1"
OWNING_SCHEMA = "shardwright/owning@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwningDefaults:
    """The values that have a public source."""

    depreciation_years: SourcedRange
    hosting_usd_per_kw_month: SourcedRange
    power_usd_per_kwh: SourcedRange


@dataclass(frozen=True, slots=True, kw_only=True)
class OwningFile:
    """The user's file; None takes the default."""

    purchase_usd_per_device: float
    network_share: float
    staff_usd_per_device_year: float
    depreciation_years: float | None = None
    hosting_usd_per_kw_month: float | None = None
    power_usd_per_kwh: float | None = None
    residual_share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Owning:
    """Costs of one owned device.

    purchase_usd   including its share of the server
    network_share  of the purchase, in addition to it
    depreciation_years   of linear depreciation
    residual_share  of the purchase: value after these years
    hosting_usd_per_kw_month   per kilowatt of the device's maximum power, in use or not
    power_usd_per_kwh   of the site's power
    staff_usd_per_year  per device

    Raises InputError for negative values, and for zero years of depreciation.
    """

    purchase_usd: SourcedRange
    network_share: SourcedRange
    depreciation_years: SourcedRange
    hosting_usd_per_kw_month: SourcedRange
    power_usd_per_kwh: SourcedRange
    staff_usd_per_year: SourcedRange
    residual_share: SourcedRange

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name).low < 0:
                raise InputError(f"{name} must not be negative, is {getattr(self, name).low:g}")
        if not self.depreciation_years.low > 0:
            raise InputError("depreciation_years must be above 0")
        if self.residual_share.high > 1:
            raise InputError(f"residual_share must be at most 1, is {self.residual_share.high:g}")

    @property
    def published(self) -> dict[str, SourcedRange]:
        """The inputs with default (published) values, by name."""
        every = {name: getattr(self, name) for name in self.__slots__}
        return {name: value for name, value in every.items() if value.method == "published"}


@functools.cache
def owning_defaults() -> OwningDefaults:
    """The shipped defaults."""
    return read_document(DEFAULT_FILE, OwningDefaults, schema=DEFAULT_SCHEMA)


def owning_of(file: OwningFile, source: str) -> Owning:
    """A user's values, with defaults for missing ones."""
    usual = owning_defaults()
    own = {
        name: getattr(usual, name) if value is None else given(value, source)
        for name in ("depreciation_years", "hosting_usd_per_kw_month", "power_usd_per_kwh")
        for value in (getattr(file, name),)
    }
    return Owning(
        purchase_usd=given(file.purchase_usd_per_device, source),
        network_share=given(file.network_share, source),
        staff_usd_per_year=given(file.staff_usd_per_device_year, source),
        residual_share=given(file.residual_share, source),
        **own,
    )


def read_owning(path: Path) -> Owning:
    """The values of a file; raises DocumentError, with the missing or wrong key."""
    file = read_document(path, OwningFile, schema=OWNING_SCHEMA)
    try:
        return owning_of(file, str(path))
    except InputError as error:
        raise DocumentError(f"{path}: {error}") from error
