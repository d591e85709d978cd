"""Owning compared with renting: the cost of an owned device-hour, and the break-even use.

Per calendar hour an owned device has the fixed cost

    F = purchase (1 + network share - residual share) / (years x 8760)
        + hosting x kW x 12 / 8760 + staff / 8760

and a cost of power, at the price c per kWh, of c x kW x PUE while used, and r times that while idle
(simulator/energy.py). If a share u of its hours is used, a used hour costs

    (F + c kW PUE (u + r (1 - u))) / u

which equals a rent p at u = (F + c kW PUE r) / (p - c kW PUE (1 - r)).
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InputError
from profiles.hardware.prices.owning import Owning
from profiles.sourced import SourcedRange
from simulator.energy import run_energy
from simulator.log_interval import total
from simulator.values.prediction import Interval

HOURS_PER_YEAR = 8760.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedCost:
    """US dollars per calendar hour of one device.

    capital_usd, hosting_usd, staff_usd   used or idle
    power_usd        while it is used
    idle_power_usd   while it is idle
    """

    capital_usd: Interval
    hosting_usd: Interval
    staff_usd: Interval
    power_usd: Interval
    idle_power_usd: Interval

    @property
    def fixed_usd(self) -> Interval:
        """Cost per calendar hour without power, used or not."""
        return total(self.capital_usd, self.hosting_usd, self.staff_usd)

    def usd_per_used_hour(self, use: float) -> Interval:
        """Dollars per used hour, if the device is used a share `use` of the time.

        Raises InputError for a use that is not above 0 and at most 1.
        """
        if not 0 < use <= 1:
            raise InputError(f"the use of an owned device must be above 0 and at most 1, got {use}")
        power = total(self.power_usd.scaled(use), self.idle_power_usd.scaled(1 - use))
        return total(self.fixed_usd, power).scaled(1 / use)


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """The use above which an owned device is cheaper than a rented one.

    use           share of the time; above 1: never
    device_hours  used hours over the years of depreciation; its interval corresponds to that of
                  `use`
    """

    use: Interval
    device_hours: Interval

    @property
    def ever(self) -> bool:
        """Whether owning is cheaper at full use."""
        return self.use.value <= 1


def owned_cost(
    owning: Owning, device: str, mfu: float | None = None, pue: SourcedRange | None = None
) -> OwnedCost:
    """Costs of an owned device of the catalog that trains at an MFU (None: full load).

    Hosting is paid for a node's power at full load, without the site's overhead.
    """
    leased_kw = run_energy(device, 1, 1.0, scope="node")
    used_kw = run_energy(device, 1, 1.0, mfu, pue)
    idle_kw = run_energy(device, 1, 1.0, 0.0, pue)
    years, purchase, share = owning.depreciation_years, owning.purchase_usd, owning.network_share
    left, one = owning.residual_share, Interval(value=1.0, low=1.0, high=1.0)
    return OwnedCost(
        capital_usd=Interval(
            value=purchase.value * (1 + share.value - left.value) / years.value,
            low=purchase.low * (1 + share.low - left.high) / years.high,
            high=purchase.high * (1 + share.high - left.low) / years.low,
        ).scaled(1 / HOURS_PER_YEAR),
        hosting_usd=leased_kw.times(owning.hosting_usd_per_kw_month).scaled(12 / HOURS_PER_YEAR),
        staff_usd=one.times(owning.staff_usd_per_year).scaled(1 / HOURS_PER_YEAR),
        power_usd=used_kw.times(owning.power_usd_per_kwh),
        idle_power_usd=idle_kw.times(owning.power_usd_per_kwh),
    )


def break_even(cost: OwnedCost, rent_usd_per_hour: Interval, years: float) -> BreakEven:
    """The use above which owning is cheaper than a rent.

    rent_usd_per_hour  of a device-hour, with the range of its providers
    years              of depreciation

    The ends combine expensive ownership with a cheap rent, and vice versa. Raises InputError if the
    rent is below the cost of power, so that owning is never cheaper.
    """
    use: dict[str, float] = {}
    for end, of_rent in (("low", "high"), ("value", "value"), ("high", "low")):
        fixed, power, idle = (
            getattr(part, end) for part in (cost.fixed_usd, cost.power_usd, cost.idle_power_usd)
        )
        saved = getattr(rent_usd_per_hour, of_rent) - (power - idle)
        use[end] = (fixed + idle) / saved if saved > 0 else float("inf")
    if use["value"] == float("inf"):
        raise InputError(
            f"a rent of ${rent_usd_per_hour.value:.2f} per device-hour is less than the power of "
            f"an owned device, ${cost.power_usd.value:.2f} per hour: no use makes owning cheaper"
        )
    found = Interval(**use)
    return BreakEven(use=found, device_hours=found.scaled(years * HOURS_PER_YEAR))
