"""Buying the devices of a sized run instead of renting them: cost of the run, and break-even.

Purchase, network and staff come from a file of ownership costs (docs/prices.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planner.sizing.run_outlook import power_mfu_of
from profiles.errors import InputError
from profiles.hardware.prices.owning import Owning
from shardwright.requests.sizing.sized import Sized
from simulator.log_interval import product
from simulator.ownership import break_even, owned_cost
from simulator.values.prediction import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class UseThatPays:
    """Share of the time in use from which owning is cheaper; above 1: never.

    high  None if the cheapest rent is below the cost of power, so that owning is never cheaper
    """

    value: float
    low: float
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Purchase:
    """Buying the devices of the answer.

    purchase_usd  of all devices, including their network
    years         of depreciation
    usd_per_hour  of a device in continuous use, including power
    run_usd       of the run at this rate
    rent_usd      of renting for the run; None without a price
    use           from which owning is cheaper; None without a price, and if the rent is below the
                  cost of power
    runs          number of such runs after which the purchase pays off; None if it never does
    words         assumed inputs, with sources
    """

    device: str
    devices: int
    purchase_usd: Interval
    years: float
    usd_per_hour: Interval
    run_usd: Interval
    rent_usd: float | None
    use: UseThatPays | None
    runs: float | None
    words: tuple[str, ...]


def purchase_of(owning: Owning, sized: Sized) -> Purchase | None:
    """Ownership costs (docs/prices.md) of the best run; None without an answer."""
    best = sized.answer.best
    if best is None:
        return None
    run, question = best.run, sized.question
    cost = owned_cost(owning, run.choice.device, power_mfu_of(question, run), question.pue)
    full = cost.usd_per_used_hour(1.0)
    years = owning.depreciation_years.value
    rent, use, runs = run.choice.usd_per_hour, None, None
    if rent is not None:
        try:
            found = break_even(cost, rent, years)
            use = _use_that_pays(found.use)
            if found.ever:
                runs = found.device_hours.value * run.devices / best.device_hours.value
        except InputError:
            pass  # The rent is below the power alone: no use pays.
    share = 1.0 + owning.network_share.value
    purchase = owning.purchase_usd
    return Purchase(
        device=run.choice.asked,
        devices=run.devices,
        purchase_usd=Interval(value=purchase.value, low=purchase.low, high=purchase.high).scaled(
            share * run.devices
        ),
        years=years,
        usd_per_hour=full,
        run_usd=product(best.device_hours, full),
        rent_usd=best.rent_usd.value if best.rent_usd is not None else None,
        use=use,
        runs=runs,
        words=tuple(
            f"{name.replace('_', ' ')} {value.value:g}: {value.source}"
            for name, value in owning.published.items()
        ),
    )


def _use_that_pays(use: Interval) -> UseThatPays:
    return UseThatPays(
        value=use.value, low=use.low, high=use.high if math.isfinite(use.high) else None
    )
