"""The links of a run, and one collective over them where its ranks lie."""

from __future__ import annotations

from dataclasses import replace

from profiles.hardware.catalog import get_device, get_link, node_design
from profiles.hardware.collective_curve import curves_on
from simulator.training_run.axis_order import AXIS_ORDERS
from simulator.training_run.far_seconds import far_collective_s
from simulator.training_run.message_seconds import Links, Messages, collective
from simulator.training_run.network_text import network_of
from simulator.training_run.rank_group import RankGroup
from simulator.training_run.training_run import TrainingRun


def links_of(run: TrainingRun) -> Links:
    """The rates of a run's links: measured curves or rate and efficiency inside a node, the
    adapters' rate as printed between nodes."""
    device = get_device(run.device)
    inner = get_link(node_design(run.device).inner_link)
    network = network_of(run.outer_link, device.name, run.node_devices)
    rate = run.inner_bytes_per_s or inner.bandwidth_bytes_per_s.value * inner.efficiency.value
    measured = not (run.torus or run.inner_bytes_per_s)
    return Links(
        inner_bytes_per_s=rate,
        outer_bytes_per_s=network.bytes_per_s_per_node / run.node_devices,
        node_devices=run.node_devices,
        curve=curves_on(device.name, inner.name, rate, inner.latency_s.value) if measured else None,
        torus=run.torus,
    )


def moved_messages(
    run: TrainingRun, links: Links, operation: str, size: float, group: RankGroup, stride: int
) -> Messages:
    """One collective of a run's group: side by side at one stride in the usual order of axes, which
    the coefficients are fitted in, else where its ranks lie."""
    usual = run.axis_order == AXIS_ORDERS[0] and not run.torus
    found = collective(
        operation, size, group.ranks, links, stride=stride, group=None if usual else group
    )
    if not run.far_levels:
        return found
    return replace(found, far_s=far_collective_s(operation, size, group, run.far_levels))
