"""`base_run`: a model on a cluster as a described run, before any axis of its layout is chosen."""

from __future__ import annotations

from planner.layout.rules import LayoutRules
from profiles.errors import InputError
from profiles.hardware.catalog import node_design
from profiles.hardware.cluster import Cluster
from profiles.hardware.device import Device
from profiles.model.transformer import Transformer
from simulator.training_run.network_text import network_of
from simulator.training_run.training_run import TrainingRun


def base_run(
    name: str,
    model: Transformer,
    cluster: Cluster,
    *,
    rules: LayoutRules,
    global_batch: int,
    seq_len: int,
    precision: str,
    said: list[str],
) -> TrainingRun:
    """The run with every degree 1; what is assumed of the network is added to `said`.

    Raises InputError for a cluster of several device types, for one of which the device has no
    rate in the precision, and for counts below 1.
    """
    device = only_device(cluster)
    if global_batch < 1:
        raise InputError(f"--global-batch must be 1 or more, got {global_batch}")
    device.peak(precision)
    node = min(cluster.levels[0].domain_size if cluster.levels else 1, cluster.num_devices)
    link = _outer_link(cluster, device, node)
    if cluster.num_devices > node:
        network = network_of(link, device.name, node)
        if network.assumed:
            said.append(
                f"{network.words} ({network.source}; --on names a cluster file to change it)"
            )
    inner = node_design(device.name).inner_link
    if cluster.levels and cluster.num_devices > 1 and cluster.levels[0].link.name != inner:
        said.append(f"inside a node, messages are priced as over {inner}, the device's usual link")
    return TrainingRun(
        id=name,
        model=model,
        device=device.name,
        num_devices=cluster.num_devices,
        node_devices=node,
        outer_link=link,
        dp=1,
        tp=1,
        pp=1,
        vpp=1,
        cp=1,
        expert_parallel=1,
        sequence_parallel=rules.sequence_parallel,
        zero_stage=0,
        recompute="none",
        micro_batch=1,
        global_batch=global_batch,
        seq_len=seq_len,
        precision=precision,
        schedule="1f1b",
        stack=rules.name,
    )


def only_device(cluster: Cluster) -> Device:
    """The cluster's device type; raises InputError where there are several."""
    names = sorted({group.device.name for group in cluster.groups})
    if len(names) > 1:
        raise InputError(
            f"--on {cluster.name} mixes {', '.join(names)}: a framework's layout gives every rank "
            "the same share. Name one part of it, or leave out --stack to plan a traced model."
        )
    return cluster.groups[0].device


def _outer_link(cluster: Cluster, device: Device, node: int) -> str:
    """The words for what leaves a node: none for the device's usual network."""
    if len(cluster.levels) < 2:
        return ""
    level = cluster.levels[1]
    usual = node_design(device.name).outer_link
    if level.link.name == usual and level.oversubscription == 1.0:
        return ""
    per_device = level.link.bandwidth_bytes_per_s.value / level.link.shared_by
    gigabits = per_device * node * 8 / level.oversubscription / 1e9
    return f"1x{gigabits:g}Gb/s {level.link.name} per node"
