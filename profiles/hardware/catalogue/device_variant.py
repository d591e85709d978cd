"""`DeviceVariant`: a device of the catalog with another power limit or memory, or a share of it.

`h100-sxm@500w` is an H100 limited to 500 W, `a100-sxm@64gb` one with 64 GB, `trainium2/4` a quarter
of a chip (one device in software, if a chip has several cores). Combinations are in this order:
`trainium2/4@400w`. The power limit may follow a hyphen (`h100-sxm-500w`).

A power limit only lowers the rate of long matmuls, by the ratio of powers to the `POWER_EXPONENT`.
Long matmuls of an A100 reach 253 TFLOP/s at 300 W and 271 at 400 W (exponent 0.24), those of a
GH200 829 at 900 W against an H100's 795 at 700 W (0.17; MAMF, github.com/stas00/ml-engineering,
compute/accelerator/README.md). Valid for the upper half of a device's rated power; clocks fall
faster below it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from profiles.errors import InputError
from profiles.hardware.catalogue.catalog_files import NodeDesign
from profiles.hardware.catalogue.device import Device
from profiles.sourced import Sourced

POWER_EXPONENT = 0.24
_LEAST_POWER = 0.3
# Memory sizes are in powers of two: an A100 of 80 GB reports 80 GiB, an H100 79.6.
_GB = 0.995 * 2**30
_VARIANT = re.compile(
    r"^(?P<base>[^/@]+?)(?:/(?P<share>\d+))?(?:@(?P<gb>\d+)gb)?(?:[@-](?P<watts>\d+)w)?$"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceVariant:
    """The parts of a variant's name.

    base   the device
    share  number of equal parts of which the variant is one (1 for a whole device)
    gigabytes, watts   0: the device's
    """

    base: str
    share: int = 1
    gigabytes: int = 0
    watts: int = 0

    @property
    def is_plain(self) -> bool:
        return self.share == 1 and not self.gigabytes and not self.watts

    def name_of(self, base: str) -> str:
        """The variant's name with the device name `base`.

        >>> variant_of("H100-500W".lower()).name_of("h100-sxm-80gb")
        'h100-sxm-80gb@500w'
        """
        share = f"/{self.share}" if self.share > 1 else ""
        memory = f"@{self.gigabytes}gb" if self.gigabytes else ""
        return f"{base}{share}{memory}" + (f"@{self.watts}w" if self.watts else "")

    def of(self, device: Device) -> Device:
        """The device of this variant; raises InputError for an invalid share, power or memory. A
        limit above the device's power has no effect."""
        if self.share < 1:
            raise InputError(f"{device.name}/{self.share}: the number of parts must be 1 or more")
        memory, power = device.memory_bytes, device.power_w
        found = replace(
            device,
            name=self.name_of(device.name),
            aliases=(),
            measurements=None,
            efficiency_of=device.efficiency_of or device.name,
            memory_bytes=_memory(device, self.gigabytes) if self.gigabytes else memory,
            power_w=_power(device, self.watts) if self.watts else power,
        )
        return found if self.share == 1 else _shared(found, self.share)

    def design_of(self, design: NodeDesign) -> NodeDesign:
        """The usual node with `share` times as many devices, which share its links and cards."""
        return replace(
            design,
            devices=design.devices * self.share,
            host_devices=design.host_devices * self.share,
            outer_shared_by=design.outer_shared_by * self.share,
            inner_shared_by=design.inner_shared_by * self.share,
        )

    def matmul_rate(self, full_power_w: float) -> float:
        """Rate of long matmuls, as a share of the rate at `full_power_w` watts."""
        if not self.watts or self.watts >= full_power_w:
            return 1.0
        return float((self.watts / full_power_w) ** POWER_EXPONENT)


def variant_of(name: str) -> DeviceVariant:
    """The variant of a name; a name without a suffix is the base.

    >>> variant_of("trainium2/4").share
    4
    """
    found = _VARIANT.match(name)
    if found is None:
        return DeviceVariant(base=name)
    share = found["share"]
    return DeviceVariant(
        base=found["base"],
        share=1 if share is None else int(share),
        gigabytes=int(found["gb"] or 0),
        watts=int(found["watts"] or 0),
    )


def _memory(device: Device, gigabytes: int) -> Sourced:
    if gigabytes * _GB <= device.reserved_bytes.value:
        raise InputError(f"{device.name}@{gigabytes}gb: driver and context need more memory")
    return Sourced(
        value=gigabytes * _GB,
        source=f"the name: {device.name} with {gigabytes} GB",
        date=device.memory_bytes.date,
        method="published",
        uncertainty=0.05,
    )


def _power(device: Device, watts: int) -> Sourced:
    full = device.power_w
    if watts < _LEAST_POWER * full.value:
        raise InputError(
            f"{device.name}@{watts}w: the power limit must be {_LEAST_POWER:.0%} or more of the "
            f"device's {full.value:g} W ({full.source})"
        )
    if watts >= full.value:
        return full
    source = f"the name: {device.name} held to {watts} W"
    return replace(full, value=float(watts), source=source)


def _shared(device: Device, share: int) -> Device:
    def part(number: Sourced) -> Sourced:
        source = f"1 of {share} parts: {number.source}"
        return replace(number, value=number.value / share, source=source)

    return replace(
        device,
        peak_flop_per_s={kind: part(rate) for kind, rate in device.peak_flop_per_s.items()},
        memory_bytes=part(device.memory_bytes),
        reserved_bytes=part(device.reserved_bytes),
        memory_bandwidth_bytes_per_s=part(device.memory_bandwidth_bytes_per_s),
        power_w=part(device.power_w),
    )
