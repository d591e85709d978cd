"""Clusters of several levels that tests ask about."""

import math
from dataclasses import replace

from profiles.hardware.catalogue.catalog import get_cluster, get_link
from profiles.hardware.catalogue.cluster import Cluster, Level
from profiles.sourced import Sourced


def given(value: float) -> Sourced:
    return Sourced(value=value, source="a test", date="2026-11-21", method="assumed")


def two_sites(
    nodes: int = 4, *, gigabits: float = 100.0, latency_s: float = 5e-3, sites: int = 2
) -> Cluster:
    """Sites of `nodes` nodes of eight H100 each, a line of so many Gb/s leaving each site."""
    part = get_cluster(f"{nodes}x8xh100-sxm")
    whole = get_cluster(f"{sites * nodes}x8xh100-sxm")
    line = replace(
        get_link("ib-ndr"),
        name="line",
        bandwidth_bytes_per_s=given(gigabits / 8 * 1e9),
        latency_s=given(latency_s),
        efficiency=given(1.0),
        shared_by=nodes * 8,
    )
    return replace(
        whole,
        name="sites",
        levels=(
            *part.levels,
            Level(name="sites", domain_size=sites * nodes * 8, link=line),
        ),
    )


def fat_tree(nodes: int = 8, *, oversubscription: float = 1.0) -> Cluster:
    """Racks of four nodes under a spine of the same links."""
    whole = get_cluster(f"{nodes}x8xh100-sxm")
    node, fabric = whole.levels
    return replace(
        whole,
        name="racks",
        levels=(
            node,
            replace(fabric, name="rack", domain_size=32),
            replace(fabric, name="spine", oversubscription=oversubscription),
        ),
    )


def torus(sides: tuple[int, ...]) -> Cluster:
    """TPU v5p chips in a torus."""
    count = math.prod(sides)
    whole = get_cluster(f"{count}xtpu-v5p")
    return replace(whole, name="torus", levels=(replace(whole.levels[0], torus=sides),))
