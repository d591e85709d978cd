"""`MeasuredCluster`: coefficients of a cluster's links from the output of nccl-tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planner.layout.layout_question import base_run
from profiles.errors import DocumentError, InputError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.link import LinkPoint
from profiles.model.figures.transformer import Transformer
from shardwright.runs.device_text import device_of
from shardwright.runs.run import PublishedRun
from shardwright_frameworks.analysis.measured_links import (
    LinkFactors,
    MeasuredCollective,
    link_factors,
)
from shardwright_frameworks.traces.nccl_tests import NcclCurve, NcclOutput
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.messages.run_links import links_of
from simulator.training_run.run.training_run import UnsupportedRunError
from simulator.training_run.step.coefficients import assign, shipped_coefficients

# A run needs a model; only the positions of its ranks are used here.
ANY_MODEL = Transformer(
    num_layers=1,
    hidden_size=128,
    ffn_size=512,
    num_heads=1,
    num_kv_heads=1,
    head_size=128,
    vocab_size=128,
    gated=False,
    tied_embeddings=False,
)
# The kinds of coefficients that multiply a message's time inside nodes and between them; both
# belong to the hardware, whatever framework runs.
_KINDS = ("inner", "outer")
_CLUSTER = re.compile(r"\d+x")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredCluster:
    """Coefficients of a cluster's links.

    cluster        the measured cluster
    factors        measured over assumed times of its links
    before, after  the changed coefficients by name
    """

    cluster: str
    factors: LinkFactors
    before: Mapping[str, float]
    after: Mapping[str, float]


def measured_cluster(outputs: Mapping[Path, NcclOutput], on: str = "") -> MeasuredCluster:
    """The coefficients of a cluster's links.

    on  the cluster, as for `plan --on`, or its device; "" if the output names its ranks

    Raises DocumentError for output that names neither its collective nor its ranks, InputError if
    it does not name the cluster, and the errors of link_factors.
    """
    curves = {path: output.curves for path, output in outputs.items()}
    cluster = _cluster(next(iter(curves)), [c for each in curves.values() for c in each], on)
    run = base_run(
        "nccl-tests",
        ANY_MODEL,
        cluster,
        rules=load_framework("megatron-core").rules,
        global_batch=1,
        seq_len=1,
        precision="bf16",
    )
    measured = [
        _collective(path, curve, run.degrees.num_devices, run.node_devices)
        for path, found in curves.items()
        for curve in found
    ]
    factors = link_factors(measured, links_of(run))
    assigned = assign([run])
    known = dict(
        zip(assigned.names, assigned.from_file(shipped_coefficients()).tolist(), strict=True)
    )
    before, after = {}, {}
    for kind, factor in zip(_KINDS, (factors.inner, factors.outer), strict=True):
        if factor is not None:
            name = next(name for name in assigned.names if name.partition(".")[0] == kind)
            before[name], after[name] = known[name], factor * known[name]
    return MeasuredCluster(cluster=cluster.name, factors=factors, before=before, after=after)


def _cluster(path: Path, curves: list[NcclCurve], on: str) -> Cluster:
    """The cluster `on`, otherwise one with the largest printed numbers of hosts and devices."""
    nodes = max((curve.hosts or 1 for curve in curves), default=1)
    each = max(
        (-(-curve.devices // (curve.hosts or 1)) for curve in curves if curve.devices), default=0
    )
    if _CLUSTER.match(on) or (on and Path(on).is_file()):
        return get_cluster(on)
    names = {curve.device_name for curve in curves if curve.device_name}
    if not on and len(names) != 1:
        raise InputError(
            f"--from {path}: "
            + ("names no device" if not names else f"names several devices, {', '.join(names)}")
            + "; name the cluster: --on 2x8xh100-sxm"
        )
    if not each:
        raise InputError(
            f"--from {path}: prints no line per rank; name the cluster: --on 2x8x{on or 'DEVICE'}"
        )
    said: list[str] = []
    try:
        device = device_of(PublishedRun(row=1, id="nccl-tests", device=on or names.pop()), said)
    except UnsupportedRunError as error:
        raise InputError(f"--from {path}: {error}; name the cluster: --on 2x8xh100-sxm") from error
    return get_cluster(f"{nodes}x{each}x{device.name}")


def _collective(
    path: Path, curve: NcclCurve, num_devices: int, node_devices: int
) -> MeasuredCollective:
    """The curve as a collective; without printed ranks, it used all devices of the cluster."""
    if curve.operation is None:
        raise DocumentError(
            f"--from {path}: does not name its collective; name the file after the program, "
            "for example all_reduce_perf.txt"
        )
    devices = curve.devices or num_devices
    if devices < 2:
        raise DocumentError(f"--from {path}: {curve.operation} ran on one device; no link was used")
    hosts = curve.hosts or -(-devices // node_devices)
    return MeasuredCollective(
        hosts=hosts,
        points=tuple(
            LinkPoint(
                operation=curve.operation,
                group_size=devices,
                size_bytes=round(point.size_bytes),
                time_s=point.time_s,
            )
            for point in curve.points
        ),
    )
