"""Dollars and energy per million tokens (or samples), from dated prices and power figures."""

from __future__ import annotations

from collections.abc import Sequence

from profiles.hardware.catalogue.cluster import Cluster
from profiles.sourced import Sourced
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


def kwh_per_million_tokens(tokens_per_s: Interval, cluster: Cluster) -> Interval:
    """Board power of every device, with the cluster's overhead, per million tokens."""
    watts = low = high = 0.0
    for group in cluster.groups:
        count = group.count * group.devices_per_node
        power = group.device.power_w
        watts += count * power.value
        low += count * power.value * max(0.0, 1 - power.uncertainty)
        high += count * power.value * (1 + power.uncertainty)
    factor = (1 + cluster.overhead_power) / 3.6e6 * 1e6
    if tokens_per_s.value <= 0:
        return Interval(value=0.0, low=0.0, high=0.0)
    return Interval(
        value=watts * factor / tokens_per_s.value,
        low=low * factor / tokens_per_s.high,
        high=high * factor / tokens_per_s.low,
    )
