"""What could be changed so that a layout exists: candidates, nearest to what was asked first."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

from planner.layout.layout_space import LayoutSpace
from profiles.errors import ShardwrightError
from profiles.hardware.catalog import get_device
from profiles.hardware.cluster import Cluster
from profiles.units import format_bytes

_NAMED = re.compile(r"^(?:(\d+)x)?(\d+)x([A-Za-z][\w.-]*)$")
_MOST_TIMES = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCandidate:
    """A change to try; candidates of one kind are tried in order until one has a layout."""

    kind: str
    space: LayoutSpace
    cluster: Cluster
    change: str
    flag: str


def layout_candidates(
    space: LayoutSpace,
    cluster: Cluster,
    rebuild: Callable[[str], Cluster],
    device_names: tuple[str, ...],
) -> Iterator[LayoutCandidate]:
    """Pins taken back, then more devices, then devices of more memory."""
    for axis in (f.name for f in fields(LayoutSpace)):
        if getattr(space, axis) is not None:
            freed = replace(space, **{axis: None})
            flag = "--" + axis.replace("_", "-")
            yield LayoutCandidate(
                kind=axis, space=freed, cluster=cluster, change=f"without {flag}", flag=f"no {flag}"
            )
    named = _NAMED.match(cluster.name)
    if named is None:
        return
    nodes, per_node, device = int(named[1] or 1), int(named[2]), named[3]
    times = 2
    while times <= _MOST_TIMES:
        larger = _rebuilt(rebuild, f"{nodes * times}x{per_node}x{device}")
        if larger is not None:
            yield LayoutCandidate(
                kind="devices",
                space=space,
                cluster=larger,
                change=f"{larger.num_devices} devices",
                flag=f"--on {larger.name}",
            )
        times *= 2
    here = cluster.groups[0].device
    others = [get_device(name) for name in device_names]
    for other in sorted(others, key=lambda found: (found.usable_bytes, found.name)):
        if other.usable_bytes <= here.usable_bytes or other.type != here.type:
            continue
        swapped = _rebuilt(rebuild, f"{nodes}x{per_node}x{other.name}")
        if swapped is not None:
            yield LayoutCandidate(
                kind="memory",
                space=space,
                cluster=swapped,
                change=f"{other.name} ({format_bytes(other.usable_bytes)} usable)",
                flag=f"--on {swapped.name}",
            )


def _rebuilt(rebuild: Callable[[str], Cluster], name: str) -> Cluster | None:
    try:
        return rebuild(name)
    except ShardwrightError:
        return None
