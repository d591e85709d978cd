"""A device's chip, and its relatives: devices whose measured kernels or collectives replace missing
ones.

All of it is in the device's file (data/devices).
"""

from __future__ import annotations

from dataclasses import replace

from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import (
    base_of,
    device_file,
    device_names,
    device_path,
    get_device,
)
from profiles.hardware.catalogue.catalog_files import Chip, CollectiveRelative, Relative
from profiles.hardware.catalogue.device import Device
from profiles.hardware.catalogue.device_variant import variant_of

_DEFAULT_CHIP = "h100-sxm-80gb"


def chip_of(device: Device) -> Chip:
    """The chip of a device. An unknown one gets the processors and cache of the device whose
    coefficients it uses (by default an H100)."""
    found = _chip(device.name)
    if found is not None:
        return found
    lender = device.efficiency_of or _DEFAULT_CHIP
    chip = _chip(lender) or _chip(_DEFAULT_CHIP)
    assert chip is not None
    return replace(chip, architecture="", source=f"taken as {lender}", float32_sums=1.0)


def _chip(name: str) -> Chip | None:
    return device_file(name).chip if name in device_names() else None


def matmul_rate_of(device_name: str) -> float:
    """Share of the peak that a device's long matmuls reach, over its relative's share; 1 for a
    measured device; lower with a power limit."""
    base = base_of(device_name)
    kernels = device_file(base).kernels
    rate = kernels.matmul_rate if kernels is not None else 1.0
    if base == device_name:
        return rate
    return rate * variant_of(device_name).matmul_rate(get_device(base).power_w.value)


def relative_of(device_name: str) -> Relative:
    """The device whose kernels are used for a device without measured ones; for a variant
    (device_variant.py) the base device. Raises InputError if the file names none."""
    base = base_of(device_name)
    if base != device_name:
        # The base device's kernels, or those of its relative.
        found = device_file(base).kernels or Relative(measured_on=base, reason="")
        rate = matmul_rate_of(device_name)
        reason = f"{base} as {device_name}: long matmuls reach {rate:.2f} of the peak's share"
        return replace(found, matmul_rate=rate, reason=f"{reason}. {found.reason}".strip(". "))
    kernels = device_file(device_name).kernels
    if kernels is None:
        raise _missing(device_name, "kernels", "the measured device whose kernels are used")
    return kernels


def collective_relative_of(device_name: str) -> CollectiveRelative:
    """The device whose collectives are used for a device without measured ones, or none with the
    reason. Raises InputError if its file has neither."""
    found = device_file(device_name).collectives
    if found is None:
        needed = 'the measured device whose collectives are used, or measured_on = "" for formulas'
        raise _missing(device_name, "collectives", needed)
    return found


def _missing(device_name: str, table: str, needed: str) -> InputError:
    return InputError(
        f"{device_name} has no measured {table}, and {device_path(device_name).name} has no "
        f"[{table}]: give measured_on ({needed}) and reason"
    )
