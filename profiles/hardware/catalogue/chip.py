"""What a device's chip is beside its peak and bandwidth (data/kernels/chips.toml)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document
from profiles.hardware.catalogue.device import Device

CHIPS_FILE = Path(__file__).parents[2] / "data" / "kernels" / "chips.toml"
CHIPS_SCHEMA = "shardwright/chips@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A device's chip.

    architecture  the generation that its kernels are written for (`ga100`, `ga10x`, `hopper`), ""
                  where it is not known
    processors    that a kernel's parts are dealt to (NVIDIA: streaming multiprocessors)
    cache_mib     of the last level
    float32_sums  rate of 16-bit products summed in float32 over those summed in float16
    """

    architecture: str
    processors: int
    cache_mib: float
    source: str
    float32_sums: float = 1.0

    @property
    def cache_bytes(self) -> float:
        """Of the last level."""
        return self.cache_mib * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Chips:
    """The table: device -> chip."""

    devices: Mapping[str, Chip]


@functools.cache
def chips() -> Mapping[str, Chip]:
    """Every chip that is known."""
    return read_document(CHIPS_FILE, Chips, schema=CHIPS_SCHEMA).devices


def chip_of(device: Device) -> Chip:
    """The chip of a device, or of an unknown architecture with as many processors and as much cache
    as the device whose kernels it borrows (an H100's where it names none)."""
    found = chips().get(device.name)
    if found is not None:
        return found
    lender = chips().get(device.efficiency_of) or chips()["h100-sxm-80gb"]
    return Chip(
        architecture="",
        processors=lender.processors,
        cache_mib=lender.cache_mib,
        source=f"taken as {device.efficiency_of or 'h100-sxm-80gb'}",
    )
