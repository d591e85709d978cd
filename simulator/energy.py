"""Energy and carbon of a run: measured power by utilization, the site's overhead, the grid.

A node at full load draws its boards' power plus `host_power` (hosts, fans, network; the device
files have the sources). At a lower utilization it draws less:

    power = full power x (r + (1 - r) x min(1, MFU / MFU at full load))

with r from profiles/data/energy/power_draw.toml. The site draws PUE times as much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.catalog import get_device, node_design
from profiles.hardware.catalogue.catalog_files import OVERHEAD_POWER
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.energy.grid_carbon import grid_of
from profiles.hardware.energy.power_draw import power_draw
from profiles.sourced import SourcedRange
from simulator.values.prediction import Interval

SCOPES = ("site", "node", "board")
"""Scopes of an energy: the site with its cooling, the nodes with their network, the boards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Draw:
    """Watts of devices at full load, and the relative half-width of their 90 % interval."""

    board_w: float
    host_w: float
    width: float
    by_mfu: bool = True  # for accelerators; a CPU is assumed at full load


def run_energy(
    device: str,
    devices: int,
    hours: float | Interval,
    mfu: float | None = None,
    pue: SourcedRange | None = None,
    *,
    scope: str = "site",
) -> Interval:
    """Kilowatt-hours of a run on devices of one type.

    device  name in the catalog
    hours   of the run, including idle ones
    mfu     of the 16-bit peak; None for full load
    pue     None for the shipped one
    scope   one of SCOPES; published numbers are often for the boards only

    Raises UnknownNameError for an unknown device or scope, InputError for negative counts or MFU.
    """
    time = hours if isinstance(hours, Interval) else Interval(value=hours, low=hours, high=hours)
    if devices < 0 or time.low < 0 or (mfu is not None and mfu < 0):
        raise InputError(f"devices {devices}, hours {hours} and mfu {mfu} must not be negative")
    watts = _watts([(devices, _draw_of(device))], mfu, pue, scope)
    return Interval(
        value=watts.value * time.value / 1e3,
        low=watts.low * time.low / 1e3,
        high=watts.high * time.high / 1e3,
    )


def cluster_watts(cluster: Cluster, mfu: float | None = None) -> Interval:
    """Watts of a cluster's site during training, at the published PUE."""
    groups = [
        (
            group.count * group.devices_per_node,
            _Draw(
                board_w=group.device.power_w.value,
                host_w=group.device.power_w.value * cluster.overhead_power,
                width=group.device.power_w.uncertainty,
                by_mfu=group.device.type != "cpu",
            ),
        )
        for group in cluster.groups
    ]
    return _watts(groups, mfu, None, "site")


def carbon(kwh: Interval, region: str) -> Interval:
    """Kilograms of CO2 (equivalents, if the source counts them) for an energy from a grid.

    region  of profiles/hardware/energy/grid_carbon.py: a country, a zone, a cloud's region, or
            `world`. The interval contains other sources' values for the same grid.

    Raises UnknownNameError for an unknown region.
    """
    grid = grid_of(region).kg_per_kwh
    return Interval(
        value=kwh.value * grid.value,
        low=kwh.low * grid.value * max(0.0, 1 - grid.uncertainty),
        high=kwh.high * grid.value * (1 + grid.uncertainty),
    )


def power_words(device: str, mfu: float | None = None, pue: SourcedRange | None = None) -> str:
    """`700 W per board and 28 % for hosts and network, at 92 % of full load, PUE 1.10`."""
    draw, known = _draw_of(device), power_draw()
    site = pue or known.pue
    return (
        f"{draw.board_w:.0f} W per board and {draw.host_w / draw.board_w:.0%} for hosts and "
        f"network, at {known.share(mfu):.0%} of full load, PUE {site.value:.2f}"
    )


def _draw_of(device: str) -> _Draw:
    found, host = get_device(device), node_design(device).host_power
    board = found.power_w
    share, host_width = (
        (OVERHEAD_POWER, 0.0) if host is None else (host.value, host.uncertainty * host.value)
    )
    # The host's uncertainty as a part of the node's power.
    width = math.hypot(board.uncertainty, host_width / (1 + share))
    return _Draw(board_w=board.value, host_w=board.value * share, width=width)


def _watts(
    groups: list[tuple[int, _Draw]], mfu: float | None, pue: SourcedRange | None, scope: str
) -> Interval:
    if scope not in SCOPES:
        raise UnknownNameError("scope of an energy", scope, SCOPES)
    known = power_draw()
    site = pue or known.pue
    if scope != "site":
        site = SourcedRange(value=1.0, low=1.0, high=1.0, source="without the site", date="")
    value = low = high = 0.0
    for count, draw in groups:
        share = known.share(mfu if draw.by_mfu else None)
        watts = count * share * (draw.board_w + (draw.host_w if scope != "board" else 0.0))
        width = math.hypot(draw.width, known.rest_share.uncertainty)
        value += watts
        low += watts * max(0.0, 1 - width)
        high += watts * (1 + width)
    return Interval(value=value, low=low, high=high).times(site)
