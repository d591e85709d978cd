"""`Host`: a device's share of its host, for offloading: link, memory, memory bandwidth."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document
from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import base_of
from profiles.sourced import Sourced

HOST_SCHEMA = "shardwright/host@1"
HOST_FOLDER = Path(__file__).parents[2] / "data" / "hosts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A file of profiles/data/hosts; all numbers are one device's share of its host.

    link_gb_per_s   link to the host (PCIe, NVLink-C2C), one direction, with all devices active
    """

    name: str
    devices: tuple[str, ...]
    link_gb_per_s: Sourced
    memory_gb: Sourced
    memory_bandwidth_gb_per_s: Sourced

    def __post_init__(self) -> None:
        for key in ("link_gb_per_s", "memory_gb", "memory_bandwidth_gb_per_s"):
            if not getattr(self, key).value > 0:
                raise InputError(f"host {self.name}: {key} must be above 0")

    @property
    def link_bytes_per_s(self) -> float:
        return self.link_gb_per_s.value * 1e9

    @property
    def memory_bytes(self) -> float:
        return self.memory_gb.value * 1e9

    @property
    def memory_bandwidth_bytes_per_s(self) -> float:
        return self.memory_bandwidth_gb_per_s.value * 1e9


@functools.cache
def _files() -> dict[str, Host]:
    found = {}
    for path in sorted(HOST_FOLDER.glob("*.toml")):
        file = read_document(path, Host, schema=HOST_SCHEMA)
        for device in file.devices:
            found[device] = file
    return found


def has_host(device: str) -> bool:
    """Whether the catalog has the host of a device."""
    return base_of(device) in _files()


def host_of(device: str) -> Host:
    """The usual host of a device; raises InputError if no file has it."""
    name = base_of(device)
    file = _files().get(name)
    if file is None:
        raise InputError(
            f"the host of {name} is unknown, so nothing can be offloaded: describe its host "
            "in profiles/data/hosts, or leave out --optimizer-offload and --activation-offload"
        )
    return file
