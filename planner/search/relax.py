"""What could be changed so that a plan exists: candidates, nearest to what was asked first.

A candidate changes the space, the cluster or both, and names the flag that does it. The search
solves each (planner/search/search.py) and only shows those under which a plan was really found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from planner.axes import Axes
from planner.search.other_clusters import Rebuild, larger_clusters, with_more_memory
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import Device
from profiles.units import format_bytes
from simulator.values.plan import Plan, Recompute
from simulator.values.plan_file import Relaxation

_FREED = {
    "micro_batch": "--micro-batch {plan.micro_batch}",
    "zero": "--zero {plan.zero_stage}",
    "tp": "--tp {plan.degrees.tp}",
    "pp": "--pp {plan.degrees.pp}",
    "dp": "--dp {plan.degrees.dp}",
    "schedule": "--schedule {plan.schedule}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A change to try.

    kind  candidates of one kind are tried in order until one of them has a plan
    change, flag   what it is called and the flag that makes it; `{plan.schedule}` and the like
                   are filled in from the plan that it led to
    """

    kind: str
    space: Axes
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
    space: Axes,
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


def _freed(space: Axes, cluster: Cluster) -> Iterator[Candidate]:
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
            space=Axes(),
            cluster=cluster,
            change="all pins taken back: tp {plan.degrees.tp}, pp {plan.degrees.pp}, "
            "dp {plan.degrees.dp}",
            flag="--tp {plan.degrees.tp} --pp {plan.degrees.pp} --micro-batch {plan.micro_batch}",
        )


def _more_devices(space: Axes, cluster: Cluster, rebuild: Rebuild) -> Iterator[Candidate]:
    for larger in larger_clusters(cluster, rebuild):
        yield Candidate(
            kind="devices",
            space=space,
            cluster=larger,
            change=f"{larger.num_devices} devices instead of {cluster.num_devices}",
            flag=f"--on {larger.name}",
        )


def _larger_devices(
    space: Axes, cluster: Cluster, other_devices: tuple[Device, ...], rebuild: Rebuild
) -> Iterator[Candidate]:
    for device, changed in with_more_memory(cluster, other_devices, rebuild):
        yield Candidate(
            kind="memory",
            space=space,
            cluster=changed,
            change=f"devices with {format_bytes(device.memory_bytes.value)} ({device.name})",
            flag=f"--on {changed.name}",
        )
