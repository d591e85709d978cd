"""A device's chip (data/kernels/chips.toml), and the device whose measured kernels replace missing
ones (data/kernels/relatives.toml).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from profiles.document import read_document
from profiles.errors import UnknownNameError
from profiles.hardware.catalogue.catalog import DATA, base_of, get_device
from profiles.hardware.catalogue.device import Device
from profiles.hardware.catalogue.device_variant import variant_of

CHIPS_FILE = DATA / "kernels" / "chips.toml"
CHIPS_SCHEMA = "shardwright/chips@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """A device's chip.

    architecture  target of its kernels (`ga100`, `ga10x`, `hopper`), "" if unknown
    processors    that run a kernel's blocks (NVIDIA: streaming multiprocessors)
    cache_mib     of the last level
    float32_sums  rate of 16-bit products accumulated in float32 over those in float16
    """

    architecture: str
    processors: int
    cache_mib: float
    source: str
    float32_sums: float = 1.0

    @property
    def cache_bytes(self) -> float:
        """Bytes of the last cache level."""
        return self.cache_mib * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Chips:
    """The table: device -> chip."""

    devices: Mapping[str, Chip]


@functools.cache
def chips() -> Mapping[str, Chip]:
    """All known chips."""
    return read_document(CHIPS_FILE, Chips, schema=CHIPS_SCHEMA).devices


def chip_of(device: Device) -> Chip:
    """The chip of a device. An unknown one gets the processors and cache of the device whose
    kernels it uses (by default an H100)."""
    found = chips().get(device.name)
    if found is not None:
        return found
    lender = chips().get(device.efficiency_of) or chips()["h100-sxm-80gb"]
    source = f"taken as {device.efficiency_of or 'h100-sxm-80gb'}"
    return replace(lender, architecture="", source=source, float32_sums=1.0)


RELATIVES_FILE = DATA / "kernels" / "relatives.toml"
RELATIVES_SCHEMA = "shardwright/kernel-relatives@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relative:
    """The measured device whose kernel surfaces are used for another device.

    attention_measured_on   another device for attention, if the relative's kernel does not match
    sm_count   the device's number of processors, 0 to keep the relative's
    matmul_rate   share of the peak that its long matmuls reach, over the relative's share; the
                  source is in `reason`
    """

    measured_on: str
    reason: str
    attention_measured_on: str = ""
    sm_count: int = 0
    sm_source: str = ""
    matmul_rate: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Relatives:
    """The table: device -> relative."""

    devices: Mapping[str, Relative]


def matmul_rate_of(device_name: str) -> float:
    """Share of the peak that a device's long matmuls reach, over its relative's share; 1 for a
    measured or unknown device; lower with a power limit."""
    base = base_of(device_name)
    found = relatives().get(base)
    rate = found.matmul_rate if found is not None else 1.0
    if base == device_name:
        return rate
    return rate * variant_of(device_name).matmul_rate(get_device(base).power_w.value)


@functools.cache
def relatives(
    path: Path = RELATIVES_FILE, schema: str = RELATIVES_SCHEMA
) -> Mapping[str, Relative]:
    """All devices with a relative, for kernels or for another table (collectives)."""
    return read_document(path, Relatives, schema=schema).devices


def relative_of(device_name: str) -> Relative:
    """The relative of a device without measured kernels.

    The fallback is the device file's `efficiency_of`; of a variant (device_variant.py) it is the
    base device. Raises UnknownNameError if there is none.
    """
    base = base_of(device_name)
    if base != device_name:
        # The base device's kernels, or those of its relative.
        borrowed = base in relatives() or get_device(base).efficiency_of
        found = relative_of(base) if borrowed else Relative(measured_on=base, reason="")
        rate = matmul_rate_of(device_name)
        reason = f"{base} as {device_name}: long matmuls reach {rate:.2f} of the peak's share"
        return replace(found, matmul_rate=rate, reason=f"{reason}. {found.reason}".strip(". "))
    if device_name in relatives():
        return relatives()[device_name]
    lender = get_device(device_name).efficiency_of
    if lender:
        return Relative(measured_on=lender, reason=f"efficiency_of of {device_name}.toml")
    raise UnknownNameError(
        "device with a kernel relative", device_name, relatives(), where=RELATIVES_FILE.name
    )
