"""A link between devices, and its measurements."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InputError
from profiles.sourced import Sourced

OPERATIONS = (
    "send",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "all_to_all",
    "barrier",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPoint:
    """A measured communication: `operation` on `group_size` devices took `time_s` (median).

    size_bytes  the full buffer: the reduced tensor, the gathered result, the input of a scatter,
                the message of `send`, one rank's buffer of all_to_all
    """

    operation: str
    group_size: int
    size_bytes: int
    time_s: float

    def __post_init__(self) -> None:
        if self.operation not in OPERATIONS:
            raise InputError(f"operation {self.operation!r} is not one of {', '.join(OPERATIONS)}")
        if self.group_size < 2 or self.size_bytes < 0 or not self.time_s > 0:
            raise InputError(f"a link point must have 2 devices or more and a time above 0: {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A kind of connection.

    kind                   protocol of a network between nodes: `infiniband`, `roce`, `ethernet`,
                           ...; "" for links inside a node
    bandwidth_bytes_per_s  one direction, per device
    latency_s              of one message between two devices
    efficiency             share of the bandwidth that large collectives reach
    message_efficiency     share for one large message alone; None: as efficiency
    shared_by              devices per link (2 if two devices share a NIC)
    direct_peers           number of neighbors with direct cables, if the bandwidth is the total of
                           their cables: a group of n uses (n - 1) / direct_peers of it; 0 with a
                           switch
    torus_axes             axes of a torus of such links, if the bandwidth is the total of all axes;
                           otherwise 0
    points                 measured times, used first within their range
    """

    name: str
    bandwidth_bytes_per_s: Sourced
    latency_s: Sourced
    efficiency: Sourced
    kind: str = ""
    shared_by: int = 1
    direct_peers: int = 0
    torus_axes: int = 0
    message_efficiency: Sourced | None = None
    points: tuple[LinkPoint, ...] = ()

    def __post_init__(self) -> None:
        if not self.bandwidth_bytes_per_s.value > 0:
            raise InputError(f"link {self.name}: bandwidth must be above 0")
        if self.latency_s.value < 0:
            raise InputError(f"link {self.name}: latency must not be negative")
        for share in (self.efficiency, self.message_efficiency):
            if share is not None and not 0 < share.value <= 1:
                raise InputError(f"link {self.name}: efficiency must lie in (0, 1]")
        if self.shared_by < 1:
            raise InputError(f"link {self.name}: shared_by must be 1 or more")
        if self.direct_peers < 0 or self.torus_axes < 0:
            raise InputError(f"link {self.name}: direct_peers and torus_axes must be 0 or more")

    def __hash__(self) -> int:
        # Hashing every measured point would be slow.
        return hash((self.name, self.bandwidth_bytes_per_s.value))
