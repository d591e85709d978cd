"""`NetworkLevel`: a level of interconnect beyond the network between nodes."""

from __future__ import annotations

from dataclasses import dataclass

from profiles.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLevel:
    """Connection between parts of a machine (racks over a spine, sites over a line).

    part_devices             devices of each part; consecutive ranks fill a part
    bytes_per_s_per_device   bandwidth out of a part, one direction, divided by its devices; with
                             efficiency, shared network cards and oversubscription included
    latency_s                of one message between parts
    """

    name: str
    part_devices: int
    bytes_per_s_per_device: float
    latency_s: float

    def __post_init__(self) -> None:
        if self.part_devices < 1 or not self.bytes_per_s_per_device > 0 or self.latency_s < 0:
            raise InputError(
                f"level {self.name}: part_devices must be 1 or more, its rate above 0 and its "
                f"latency 0 or more; got {self.part_devices}, {self.bytes_per_s_per_device:g} "
                f"bytes/s and {self.latency_s:g} s"
            )
