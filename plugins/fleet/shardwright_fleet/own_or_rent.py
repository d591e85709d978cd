"""Compares buying the devices of a fleet with renting them for the hours used by its runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from profiles.errors import InputError
from profiles.hardware.prices.offer import Offer
from profiles.hardware.prices.owning import Owning
from shardwright.requests.price_request import price_for
from shardwright_fleet.question import FleetCluster
from simulator.log_interval import total
from simulator.ownership import break_even, owned_cost
from simulator.values.prediction import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnOrRent:
    """One cluster of a schedule, bought and rented.

    purchase_usd  of all its devices, with their share of the network
    owned_usd     of all its hours in the schedule, used or not: depreciation, hosting, staff, power
    rented_usd    of the used hours;  None without a known rent
    use           share of its hours used by runs
    pays_from     use above which owning is cheaper; above 1 or None: never
    """

    cluster: str
    devices: int
    purchase_usd: Interval
    owned_usd: Interval
    rented_usd: Interval | None
    use: float
    pays_from: Interval | None

    @property
    def buy(self) -> bool | None:
        """Whether owning is cheaper at this use; None without a known rent."""
        return None if self.rented_usd is None else self.owned_usd.value < self.rented_usd.value


def own_or_rent(
    cluster: FleetCluster,
    owning: Owning,
    *,
    open_device_hours: float,
    used_device_hours: float,
    offers: Sequence[Offer] | None,
) -> OwnOrRent:
    """A cluster bought and rented.

    The rent is the cluster's own if it is rented, otherwise the on-demand price. Devices run at
    full load while they are used (simulator/ownership.py).
    """
    cost = owned_cost(owning, cluster.device)
    idle_hours = open_device_hours - used_device_hours
    devices = cluster.nodes * cluster.node_devices
    whole = cluster.parts[cluster.nodes]
    found = price_for(whole, "on-demand", offers) if cluster.owned else cluster.price
    rent = pays_from = None
    if found is not None:
        low, high = max(0.0, 1 - found.uncertainty), 1 + found.uncertainty
        rent = Interval(value=found.value, low=found.value * low, high=found.value * high)
        with suppress(InputError):  # The rent is below the power alone: no use pays.
            pays_from = break_even(cost, rent, owning.depreciation_years.value).use
    purchase, network = owning.purchase_usd, 1 + owning.network_share.value
    return OwnOrRent(
        cluster=cluster.name,
        devices=devices,
        purchase_usd=Interval(value=purchase.value, low=purchase.low, high=purchase.high).scaled(
            network * devices
        ),
        owned_usd=total(
            cost.fixed_usd.scaled(open_device_hours),
            cost.power_usd.scaled(used_device_hours),
            cost.idle_power_usd.scaled(idle_hours),
        ),
        rented_usd=None if rent is None else rent.scaled(used_device_hours),
        use=used_device_hours / open_device_hours if open_device_hours else 0.0,
        pays_from=pays_from,
    )
