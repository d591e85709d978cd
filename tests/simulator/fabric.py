"""Two levels of a cluster as plain numbers: an oracle for prices of collectives on clusters."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import UnknownNameError
from profiles.hardware.catalogue.catalog import get_device, get_link, node_design
from profiles.hardware.catalogue.link import OPERATIONS, Link
from profiles.hardware.kernels.collective_curve import ScaledCurves, curves_on
from simulator.collectives import Hop, cards_shared, collective, direct_share, message_share


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """Two levels of a cluster as plain numbers; `fabric_of` makes one from the catalogue.

    domain_size   devices that the inner level joins
    *_rate        one direction per device (inner) or card (outer), bandwidth x efficiency
    nics_shared_by   devices per network card
    """

    domain_size: int
    inner_rate_bytes_per_s: float
    inner_latency_s: float
    outer_rate_bytes_per_s: float
    outer_latency_s: float
    outer_message_bytes_per_s: float = 0.0
    nics_shared_by: int = 1
    oversubscription: float = 1.0
    direct_peers: int = 0
    torus_axes: int = 0
    curve: ScaledCurves | None = None


def collective_time_s(
    operation: str,
    size_bytes: float,
    *,
    group_size: int,
    group_per_node: int,
    fabric: Fabric,
    sharing: int = 1,
) -> float:
    """Seconds of `operation` on `group_size` devices, `group_per_node` of them in each domain.

    size_bytes  the full buffer, as in profiles.hardware.catalogue.link.LinkPoint
    sharing     such groups of the same domains that communicate at the same time

    Raises UnknownNameError for another operation.
    """
    if operation not in OPERATIONS:
        raise UnknownNameError("operation", operation, OPERATIONS)
    if group_size < 2 or (size_bytes <= 0 and operation != "barrier"):
        return 0.0
    inside = max(1, min(group_per_node, group_size, fabric.domain_size))
    hops = []
    if inside > 1:
        share = direct_share(inside, fabric.direct_peers)
        rate = fabric.inner_rate_bytes_per_s
        hops.append(
            Hop(
                members=inside,
                inside=1,
                rate_bytes_per_s=rate * share,
                message_bytes_per_s=rate * message_share(fabric.direct_peers, fabric.torus_axes),
                latency_s=fabric.inner_latency_s,
                torus_axes=fabric.torus_axes,
                curve=fabric.curve,
                loaded=min(inside * sharing, fabric.domain_size),
            )
        )
    if group_size > inside:
        shared = cards_shared(inside, sharing, fabric.domain_size, fabric.nics_shared_by)
        shared *= fabric.oversubscription
        message = fabric.outer_message_bytes_per_s or fabric.outer_rate_bytes_per_s
        hops.append(
            Hop(
                members=-(-group_size // inside),
                inside=inside,
                rate_bytes_per_s=fabric.outer_rate_bytes_per_s * inside / shared,
                message_bytes_per_s=message / shared,
                latency_s=fabric.outer_latency_s,
                level=1,
            )
        )
    return collective(operation, float(size_bytes), hops).total_s


def fabric_of(
    device_name: str,
    *,
    domain_size: int | None = None,
    inner_link: str | None = None,
    outer_link: str | None = None,
    nics_shared_by: int | None = None,
    outer_efficiency: float | None = None,
    oversubscription: float = 1.0,
) -> Fabric:
    """The numbers of `collective_time_s` for a device of the catalogue in its usual node.

    Each argument replaces the usual design's; `outer_efficiency` is the share of the card that a
    fabric reaches, the one number that whole runs may refit.
    Raises UnknownNameError for a device or link that the catalogue lacks.
    """
    design = node_design(device_name)
    inner = get_link(inner_link or design.inner_link)
    outer = get_link(outer_link or design.outer_link)
    bandwidth = outer.bandwidth_bytes_per_s.value
    efficiency = outer_efficiency or outer.efficiency.value
    message = outer.message_efficiency or outer.efficiency
    name = get_device(device_name).name
    return Fabric(
        domain_size=domain_size or design.devices,
        inner_rate_bytes_per_s=_rate(inner),
        inner_latency_s=inner.latency_s.value,
        outer_rate_bytes_per_s=bandwidth * efficiency,
        outer_latency_s=outer.latency_s.value,
        outer_message_bytes_per_s=bandwidth * min(efficiency, message.value),
        nics_shared_by=nics_shared_by or design.outer_shared_by,
        oversubscription=oversubscription,
        direct_peers=inner.direct_peers,
        torus_axes=inner.torus_axes,
        curve=curves_on(name, inner.name, _rate(inner), inner.latency_s.value),
    )


def _rate(link: Link) -> float:
    return link.bandwidth_bytes_per_s.value * link.efficiency.value
