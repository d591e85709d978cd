"""Changes of a request under which a plan may fit, in order of distance from the request.

The search solves each (planner/blocks/answer.py) and reports only those with a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from planner.axes import Axes
from planner.neighbors import Neighbor, larger_clusters, with_more_memory
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


Changed = Neighbor[tuple[Axes, Cluster]]
"""Other axes or another cluster; `{plan.schedule}` and the like are filled in from the plan that
it led to."""


def relaxation(found: Changed, plan: Plan, step_time_s: float) -> Relaxation:
    """A change for the answer, with the plan that proves it."""
    return Relaxation(
        change=found.change.format(plan=plan),
        flag=found.flag.format(plan=plan),
        step_time_s=step_time_s,
    )


def candidates(
    space: Axes, cluster: Cluster, *, other_devices: Callable[[], tuple[Device, ...]]
) -> Iterator[Changed]:
    """Changes to try, those without cost first.

    other_devices  devices of the catalog, tried last
    """
    yield from _freed(space, cluster)
    for larger in larger_clusters(cluster):
        change = f"{larger.num_devices} devices instead of {cluster.num_devices}"
        yield Neighbor("devices", (space, larger), change, f"--on {larger.name}")
    for device, changed in with_more_memory(cluster, other_devices()):
        change = f"devices with {format_bytes(device.memory_bytes.value)} ({device.name})"
        yield Neighbor("memory", (space, changed), change, f"--on {changed.name}")


def _freed(space: Axes, cluster: Cluster) -> Iterator[Changed]:
    """The axes with each pin removed, one at a time, then all removed."""
    if space.recompute is not None and Recompute.FULL not in space.recompute:
        free = replace(space, recompute=None)
        change, flag = "recompute activations where memory is short", "none,attention,full"
        yield Neighbor("recompute", (free, cluster), change, f"--recompute {flag}")
    for axis, flag in _FREED.items():
        if getattr(space, axis) is None:
            continue
        free = replace(space, **{axis: None})
        if axis == "schedule":
            free = replace(free, vpp=None)
        yield Neighbor(axis, (free, cluster), flag.removeprefix("--"), flag)
    if len(space.pins()) > 1:
        yield Neighbor(
            "pins",
            (Axes(), cluster),
            "all pins taken back: tp {plan.degrees.tp}, pp {plan.degrees.pp}, dp {plan.degrees.dp}",
            "--tp {plan.degrees.tp} --pp {plan.degrees.pp} --micro-batch {plan.micro_batch}",
        )
