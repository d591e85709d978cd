"""`base_run`: a model on a cluster before its layout is chosen, and assumptions on the network."""

from __future__ import annotations

import itertools
from dataclasses import replace

from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import node_design
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import Device
from profiles.hardware.catalogue.node_network import NodeNetwork, network_of_level, usual_network
from profiles.model.figures.transformer import Transformer
from simulator.training_run.framework.framework import FrameworkRules
from simulator.training_run.run.training_run import NetworkLevel, TrainingRun
from simulator.values.degrees import Degrees
from simulator.values.workload import MOST

# Light takes 0.1 ms for 20 km of fibre: a level of that latency joins sites, not nodes.
_SITE_LATENCY_S = 1e-4


def base_run(
    name: str,
    model: Transformer,
    cluster: Cluster,
    *,
    rules: FrameworkRules,
    global_batch: int,
    seq_len: int,
    precision: str,
) -> TrainingRun:
    """The run with every degree 1.

    Raises InputError for a cluster of several device types and for counts below 1.
    """
    device = only_device(cluster)
    if global_batch < 1:
        raise InputError(f"--global-batch must be 1 or more, got {global_batch}")
    if max(global_batch, seq_len) > MOST:
        flag, value = max(("--global-batch", global_batch), ("--seq", seq_len), key=lambda f: f[1])
        raise InputError(f"{flag} may be {MOST:,} at most, got {value:,}")
    node = min(cluster.levels[0].domain_size if cluster.levels else 1, cluster.num_devices)
    return TrainingRun(
        id=name,
        model=model,
        device=device.name,
        degrees=Degrees(tp=1, pp=1, dp=cluster.num_devices),
        node_devices=node,
        network=_network(cluster, device, node),
        sequence_parallel=rules.sequence_parallel,
        zero_stage=0,
        recompute="none",
        micro_batch=1,
        global_batch=global_batch,
        seq_len=seq_len,
        precision=precision,
        schedule="1f1b",
        stack=rules.name,
        inner_bytes_per_s=_inner_bytes_per_s(cluster, device),
        far_levels=far_levels_of(cluster),
        torus=_torus(cluster),
    )


def network_assumptions(run: TrainingRun, cluster: Cluster) -> list[str]:
    """Assumptions about `base_run`'s links without a measurement, as text."""
    found = [
        f"level {level.name}: parts of {level.part_devices} devices, "
        f"{level.bytes_per_s_per_device / 1e9:.3g} GB/s of what leaves a part for each, "
        f"{level.latency_s * 1e6:.3g} us; priced at its own rate and efficiency, not fitted"
        for level in run.far_levels
    ]
    network, inner = run.network, run.inner_bytes_per_s
    if network is not None and network.assumed and cluster.num_devices > run.node_devices:
        found.append(f"{network.words} ({network.source}; --on names a cluster file to change it)")
    if inner:
        found.append(
            f"inside a node, messages are priced at the rate and efficiency of "
            f"{cluster.levels[0].link.name}, {inner / 1e9:.3g} GB/s; nothing of it was measured"
        )
    return found


def only_device(cluster: Cluster) -> Device:
    """The cluster's device type; raises InputError if there are several."""
    names = sorted({group.device.name for group in cluster.groups})
    if len(names) > 1:
        raise InputError(
            f"--on {cluster.name} mixes {', '.join(names)}: a framework's layout gives every rank "
            "the same share. Name one part of it, or leave out --stack to plan a traced model."
        )
    return cluster.groups[0].device


def far_levels_of(cluster: Cluster) -> tuple[NetworkLevel, ...]:
    """The levels beyond the network of a node: from the third on, or from the second if it has the
    latency of a line between sites."""
    found = []
    for below, level in itertools.pairwise(cluster.levels):
        nearest = below is cluster.levels[0]
        if nearest and level.link.latency_s.value < _SITE_LATENCY_S:
            continue
        link = level.link
        rate = link.bandwidth_bytes_per_s.value * link.efficiency.value
        found.append(
            NetworkLevel(
                name=level.name,
                part_devices=below.domain_size,
                bytes_per_s_per_device=rate / link.shared_by / level.oversubscription,
                latency_s=link.latency_s.value,
            )
        )
    return tuple(found)


def _inner_bytes_per_s(cluster: Cluster, device: Device) -> float:
    """Bandwidth of the innermost level, 0 if it is the device's usual link."""
    if not cluster.levels or cluster.num_devices < 2:
        return 0.0
    link = cluster.levels[0].link
    if link.name == node_design(device.name).inner_link:
        return 0.0
    return link.bandwidth_bytes_per_s.value * link.efficiency.value / link.shared_by


def _torus(cluster: Cluster) -> tuple[int, ...]:
    """The sides of the innermost level, the only one that may be a torus."""
    for level in cluster.levels[1:]:
        if level.torus:
            raise InputError(
                f"--on {cluster.name}: level {level.name} is a torus; only the innermost may be"
            )
    return cluster.levels[0].torus if cluster.levels else ()


def _network(cluster: Cluster, device: Device, node: int) -> NodeNetwork:
    """The network between nodes: the second level, otherwise the device's usual network."""
    usual = usual_network(device.name, node)
    if len(cluster.levels) < 2 or cluster.levels[1].link.latency_s.value >= _SITE_LATENCY_S:
        return usual
    found = network_of_level(cluster.levels[1], node)
    return usual if replace(usual, source=found.source, assumed=False) == found else found
