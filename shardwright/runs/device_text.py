"""`device_of`: the device of a row, in the unit that the row's software counts as a device."""

from __future__ import annotations

import functools
import itertools
import re

from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.catalog import get_device, node_design
from profiles.hardware.catalogue.device import Device
from profiles.hardware.catalogue.device_variant import variant_of
from shardwright.runs.run import PublishedRun
from simulator.training_run.run.training_run import UnsupportedRunError

_GIB = 2**30
_NONE = ("", "nan", "none", "unknown")
_VENDORS = ("nvidia-", "google-", "amd-", "aws-", "intel-", "habana-")
_MEMORY = re.compile(r"^(?P<head>.+)-(?P<gb>\d+)gb$")
# B200s are sold as 180, 186 and 192 GB: a name that differs by less identifies the device, not its
# memory.
_SAME_MEMORY = 0.1
_FEW_WORDS = 4


def device_of(run: PublishedRun, assumptions: list[str]) -> Device:
    """The row's device, by name or alias of the catalog, with the variant in its name (a power
    limit, another memory; device_variant.py); a part of a device if the software counts cores as
    devices. Raises UnsupportedRunError for an unknown device."""
    if run.device.strip().lower() in _NONE:
        raise UnsupportedRunError(run.id, "no device is given")
    try:
        device, assumed = _named(run.device)
        assumptions += assumed
        return _as_software_sees(run, device, assumptions)
    except InputError as error:
        raise UnsupportedRunError(run.id, str(error)) from error


@functools.cache
def _named(text: str) -> tuple[Device, tuple[str, ...]]:
    """The device of this text, and the assumptions."""
    name = re.sub(r"[\s_]+", "-", text.strip().lower())
    for vendor in _VENDORS:
        name = name.removeprefix(vendor)
    for asked in (text, name, *_reordered(name)):
        try:
            return get_device(asked), ()
        except UnknownNameError:
            continue
    variant = variant_of(name)
    memory = _MEMORY.match(variant.base)
    if memory is None:
        return get_device(text), ()
    try:
        plain = get_device(memory["head"])
    except UnknownNameError:
        return get_device(text), ()
    gigabytes = int(memory["gb"])
    if abs(gigabytes / (plain.memory_bytes.value / _GIB) - 1) < _SAME_MEMORY:
        return get_device(variant.name_of(plain.name)), ()
    assumed = f"device {plain.name} with {gigabytes} GB: {text!r} has no file of its own"
    watts = f"@{variant.watts}w" if variant.watts else ""
    return get_device(f"{plain.name}@{gigabytes}gb{watts}"), (assumed,)


def _reordered(name: str) -> list[str]:
    """The same words in other orders (`h100-80gb-sxm`), and `tpuv4` as `tpu-v4`."""
    words = re.sub(r"^tpu-?v", "tpu-v", name).split("-")
    few = words if len(words) <= _FEW_WORDS else words[:1]
    return ["-".join(words), *("-".join(order) for order in itertools.permutations(few))]


def _as_software_sees(run: PublishedRun, device: Device, assumptions: list[str]) -> Device:
    """A share of the device if the row counts the cores of a chip: if its node has more devices
    than chips or, without a given number, if the software counts cores by default."""
    design = node_design(device.name)
    if not design.cores:
        return device
    share = design.cores[0]
    if run.devices_per_node is not None:
        share, rest = divmod(run.devices_per_node, design.devices)
        if rest or share not in design.cores:
            return device
    variant = variant_of(device.name)
    base, _, tail = device.name.partition("@")
    assumptions.append(
        f"devices are cores: 1 of {share} parts of a {base} each"
        + ("" if run.devices_per_node else f", {share * design.devices} in a node")
    )
    return get_device(f"{base}/{share}" + (f"@{tail}" if not variant.is_plain else ""))
