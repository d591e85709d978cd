"""A link: what connects devices of a group, and what was measured on it."""

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

    size_bytes  the full buffer: the tensor that is reduced, gathered (result) or scattered
                (input); for `send` the message; for all_to_all what one rank holds.
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

    kind                   of networks between nodes their protocol: `infiniband`, `roce`,
                           `ethernet`, ...; "" for links inside a node
    bandwidth_bytes_per_s  one direction, per device
    latency_s              of one message between two devices
    efficiency             share of the bandwidth that large collectives reach
    message_efficiency     share that one large message alone reaches; None: as efficiency
    shared_by              devices that share one such link (2 where two devices share a NIC)
    direct_peers           where the bandwidth is that of cables to so many neighbours together: a
                           group of n uses (n - 1) / direct_peers of it; 0 behind a switch
    torus_axes             axes of a torus of such links, whose bandwidth is that of all together;
                           0 where there is none
    points                 measured times, used first where they cover the question
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
        # Hashing every measured point would cost more than a look-up saves.
        return hash((self.name, self.bandwidth_bytes_per_s.value))
