"""What could be changed so that a plan exists: candidates, nearest to what was asked first.

A candidate changes the space, the cluster or both, and names the flag that does it. The search
solves each (planner/search.py) and only shows those under which a plan was really found.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from planner.space import Space
from profiles.errors import InputError
from profiles.hardware.cluster import Cluster
from profiles.hardware.device import Device
from profiles.units import format_bytes
from simulator.plan import Plan, Recompute
from simulator.plan_file import Relaxation

_MOST_TIMES = 1024  # devices are doubled at most to so many times what was asked
_FREED = {
    "micro_batch": "--micro-batch {plan.micro_batch}",
    "zero": "--zero {plan.zero_stage}",
    "tp": "--tp {plan.tp}",
    "pp": "--pp {plan.pp}",
    "dp": "--dp {plan.dp}",
    "schedule": "--schedule {plan.schedule}",
}
_NAMED = re.compile(r"^(?:(\d+)x)?(\d+)x([A-Za-z][\w.-]*)$")

Rebuild = Callable[[str], Cluster]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A change to try.

    kind  candidates of one kind are tried in order until one of them has a plan
    change, flag   what it is called and the flag that makes it; `{plan.tp}` and the like are
                   filled in from the plan that it led to
    """

    kind: str
    space: Space
    cluster: Cluster
    change: str
    flag: str

    def relaxation(self, plan: Plan, step_time_s: float) -> Relaxation:
        """The candidate as it is shown, with the plan that proved it."""
        return Relaxation(
            change=self.change.format(plan=plan),
            flag=self.flag.format(plan=plan),
            step_time_s=step_time_s,
        )


def candidates(
    space: Space,
    cluster: Cluster,
    *,
    other_devices: Callable[[], tuple[Device, ...]],
    rebuild: Rebuild,
) -> Iterator[Candidate]:
    """Changes to try, those that cost nothing first.

    other_devices   devices that the catalog offers; asked for last
    rebuild         the cluster of a name such as `8x4xh100-sxm`
    """
    yield from _freed(space, cluster)
    yield from _more_devices(space, cluster, rebuild)
    yield from _larger_devices(space, cluster, other_devices(), rebuild)


def _freed(space: Space, cluster: Cluster) -> Iterator[Candidate]:
    """Pins taken back, one by one, then all together."""
    if space.recompute is not None and Recompute.FULL not in space.recompute:
        yield Candidate(
            kind="recompute",
            space=replace(space, recompute=None),
            cluster=cluster,
            change="recompute activations where memory is short",
            flag="--recompute none,attention,full",
        )
    for axis, flag in _FREED.items():
        if getattr(space, axis) is None:
            continue
        freed = replace(space, **{axis: None})
        if axis == "schedule":
            freed = replace(freed, vpp=None)
        yield Candidate(
            kind=axis, space=freed, cluster=cluster, change=flag.removeprefix("--"), flag=flag
        )
    if len(space.pins()) > 1:
        yield Candidate(
            kind="pins",
            space=Space(),
            cluster=cluster,
            change="all pins taken back: tp {plan.tp}, pp {plan.pp}, dp {plan.dp}",
            flag="--tp {plan.tp} --pp {plan.pp} --micro-batch {plan.micro_batch}",
        )


def _more_devices(space: Space, cluster: Cluster, rebuild: Rebuild) -> Iterator[Candidate]:
    times = 2
    while times <= _MOST_TIMES:
        larger = grown(cluster, times, rebuild)
        yield Candidate(
            kind="devices",
            space=space,
            cluster=larger,
            change=f"{larger.num_devices} devices instead of {cluster.num_devices}",
            flag=f"--on {larger.name}",
        )
        times *= 2


def _larger_devices(
    space: Space, cluster: Cluster, other_devices: tuple[Device, ...], rebuild: Rebuild
) -> Iterator[Candidate]:
    """The same number of a device with more memory: same vendor first, least memory first."""
    if not cluster.homogeneous:
        return
    now = cluster.groups[0].device
    larger = [
        device
        for device in other_devices
        if device.usable_bytes > now.usable_bytes and device.type == now.type
    ]
    larger.sort(key=lambda d: (d.vendor != now.vendor, d.usable_bytes, d.name))
    for device in larger:
        try:
            changed = with_device(cluster, device, rebuild)
        except InputError:
            continue  # so many of them make no node
        yield Candidate(
            kind="memory",
            space=space,
            cluster=changed,
            change=f"devices with {format_bytes(device.memory_bytes.value)} ({device.name})",
            flag=f"--on {changed.name}",
        )


def grown(cluster: Cluster, times: int, rebuild: Rebuild) -> Cluster:
    """The cluster with so many times the nodes: by its name where the name says how it is built,
    else with its outermost level reaching all of them."""
    match = _NAMED.match(cluster.name)
    if match is not None:
        nodes = int(match.group(1) or 1) * times
        return rebuild(f"{nodes}x{match.group(2)}x{match.group(3)}")
    groups = tuple(replace(group, count=group.count * times) for group in cluster.groups)
    devices = cluster.num_devices * times
    levels = cluster.levels
    if levels:
        outer = replace(levels[-1], domain_size=max(levels[-1].domain_size, devices))
        levels = (*levels[:-1], outer)
    name = f"{cluster.name} with {times} times the nodes"
    return replace(cluster, name=name, groups=groups, levels=levels)


def with_device(cluster: Cluster, device: Device, rebuild: Rebuild) -> Cluster:
    """The cluster with all devices replaced: by its name where that says how it is built, else in
    place, with the links as they are.

    Raises InputError where the named cluster cannot be.
    """
    short = min((device.name, *device.aliases), key=len)
    match = _NAMED.match(cluster.name)
    if match is not None:
        nodes = f"{match.group(1)}x" if match.group(1) else ""
        return rebuild(f"{nodes}{match.group(2)}x{short}")
    groups = tuple(replace(group, device=device) for group in cluster.groups)
    return replace(cluster, name=f"{cluster.name} with {short}", groups=groups)
