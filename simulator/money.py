"""Dollars and energy per million tokens (or samples), from dated prices and power figures."""

from __future__ import annotations

from collections.abc import Sequence

from profiles.hardware.catalogue.cluster import Cluster
from profiles.sourced import Sourced
from simulator.energy import cluster_watts
from simulator.values.prediction import Interval


def usd_per_million_tokens(
    tokens_per_s: Interval, num_devices: int, price_usd_per_hour: Sourced | None
) -> Interval | None:
    """Device-hours times the price, per million tokens; None without a price.

    The price's own uncertainty widens the interval.
    """
    if price_usd_per_hour is None or tokens_per_s.value <= 0:
        return None
    return usd_per_million(tokens_per_s, [(num_devices, price_usd_per_hour)])


def usd_per_million(per_s: Interval, devices: Sequence[tuple[int, Sourced]]) -> Interval:
    """US dollars per million of what is counted `per_s`.

    devices  how many at which price per hour
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
    """What the site draws for a million tokens (simulator/energy.py), idle devices included.

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
