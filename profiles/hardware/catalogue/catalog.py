"""The catalog: devices, links and clusters by name.

All files in profiles/data/devices and profiles/data/links are read. Cluster strings: `4x8xh100-sxm`
is four nodes of eight, `4xh100-sxm` four devices of one node, `h100-sxm` one device;
`2x8xh100-sxm+2x8xa100` joins node groups; a path is a cluster file, `local` this machine's profile.
`16x4xgb200` is sixteen trays of four whose NVLink domain is the rack. Nodes and slices may have
their cloud's name: `4xp5.48xlarge`, `2xv6e-256`.

A device has a name, aliases and the name of its driver, in any case and with spaces, underscores or
hyphens (`NVIDIA H100 80GB HBM3`, `A100-SXM4-80GB`, `TPU_v5p`), and variants with another power
limit or memory, or a share of it (`h100-sxm@500w`, device_variant.py).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from profiles.document import read_document, read_mapping
from profiles.errors import DocumentError, InputError, UnknownNameError
from profiles.hardware.catalogue.catalog_files import (
    OVERHEAD_POWER,
    ClusterFile,
    DeviceFile,
    LinkFile,
    NodeDesign,
)
from profiles.hardware.catalogue.cluster import Cluster, Level, NodeGroup
from profiles.hardware.catalogue.device import Device
from profiles.hardware.catalogue.device_variant import DeviceVariant, variant_of
from profiles.hardware.catalogue.link import Link
from profiles.sourced import Sourced

DATA = Path(__file__).parents[2] / "data"
DEVICE_SCHEMA = "shardwright/device@1"
LINK_SCHEMA = "shardwright/link@1"
CLUSTER_SCHEMA = "shardwright/cluster@1"

_GIB = 2**30
_SLICE = re.compile(r"^(?:tpu-?)?(v3|v4|v5p|v5e|v5litepod|v6e)-(\d+)$")
NAME_START = r"(?:[A-Za-z]|\d{3,})"
"""Regular expression for the beginning of a device's name: `h100`, `4090`."""
_PART = re.compile(rf"^(?:(\d+)x)?(?:(\d+)x)?({NAME_START}[\w.-]*)$")


def scaled(number: Sourced, factor: float) -> Sourced:
    """The number in other units: value times `factor`."""
    return replace(number, value=number.value * factor)


@functools.cache
def _paths(folder: str) -> dict[str, Path]:
    return {path.stem: path for path in sorted((DATA / folder).glob("*.toml"))}


@functools.cache
def _aliases() -> dict[str, str]:
    found: dict[str, str] = {}
    for name, path in _paths("devices").items():
        for alias in (name, *read_mapping(path, head=True).get("aliases", ())):
            if alias in found:
                raise InputError(f"{path}: the alias {alias!r} belongs to {found[alias]} already")
            found[alias] = name
    return found


def device_names() -> tuple[str, ...]:
    """Canonical names of the catalog's devices."""
    return tuple(_paths("devices"))


@functools.cache
def _device_file(name: str) -> tuple[DeviceFile, DeviceVariant]:
    """The file of a device by name, and its variant."""
    normalized = re.sub(r"[\s_]+", "-", name.strip().lower())
    known = normalized in _aliases()
    variant = DeviceVariant(base=normalized) if known else variant_of(normalized)
    canonical = _aliases().get(variant.base)
    if canonical is None:
        raise UnknownNameError("device", name, _aliases())
    file = read_document(_paths("devices")[canonical], DeviceFile, schema=DEVICE_SCHEMA)
    return file, variant


def device_file(name: str) -> DeviceFile:
    """The file of a device by name or alias, for a variant that of its base device. Raises
    UnknownNameError."""
    return _device_file(name)[0]


def device_path(name: str) -> Path:
    """The path of a device's file."""
    return _paths("devices")[base_of(name)]


def node_design(name: str) -> NodeDesign:
    """The usual node of a device of this name or alias; raises UnknownNameError."""
    file, variant = _device_file(name)
    return variant.design_of(file.node)


def base_of(name: str) -> str:
    """The name of the catalog's device, without a variant."""
    return _device_file(name)[0].name


def get_device(name: str) -> Device:
    """The device of a name or alias; raises UnknownNameError, and InputError for an invalid
    variant."""
    file, variant = _device_file(name)
    return _device(file.name) if variant.is_plain else _variant(file.name, variant)


@functools.cache
def _variant(name: str, variant: DeviceVariant) -> Device:
    return variant.of(_device(name))


@functools.cache
def _device(name: str) -> Device:
    file, _ = _device_file(name)
    return Device(
        name=file.name,
        vendor=file.vendor,
        type=file.type,
        aliases=file.aliases,
        peak_flop_per_s={k: scaled(v, 1e12) for k, v in file.peak_tflops.items()},
        memory_bytes=scaled(file.memory_gib, _GIB),
        reserved_bytes=scaled(file.reserved_gib, _GIB),
        memory_bandwidth_bytes_per_s=scaled(file.memory_bandwidth_gb_per_s, 1e9),
        power_w=file.power_w,
        launch_s=scaled(file.launch_us, 1e-6),
        efficiency_of=file.efficiency_of,
        notes=file.notes,
    )


def link_names() -> tuple[str, ...]:
    """Names of the catalog's links."""
    return tuple(_paths("links"))


@functools.cache
def get_link(name: str) -> Link:
    """The link of a name; raises UnknownNameError."""
    paths = _paths("links")
    if name not in paths:
        raise UnknownNameError("link", name, paths)
    return _link(read_document(paths[name], LinkFile, schema=LINK_SCHEMA))


def _link(file: LinkFile) -> Link:
    return Link(
        name=file.name,
        bandwidth_bytes_per_s=scaled(file.bandwidth_gb_per_s, 1e9),
        latency_s=scaled(file.latency_us, 1e-6),
        efficiency=file.efficiency,
        kind=file.kind,
        message_efficiency=file.message_efficiency,
        direct_peers=file.direct_peers,
        torus_axes=file.torus_axes,
    )


def get_cluster(text: str, *, local: Path | None = None) -> Cluster:
    """The cluster of a cluster string or file; `local` is the file of this machine's profile.

    Raises UnknownNameError for a device, InputError for invalid counts, DocumentError for an
    invalid file.
    """
    if text == "local":
        if local is None or not local.is_file():
            raise InputError(
                "--on local needs this machine's own profile, and there is none yet: run "
                "`shardwright profile` first"
            )
        return _read_cluster(local)
    if text.endswith((".toml", ".json")) or Path(text).is_file():
        return _read_cluster(Path(text))
    groups, designs = zip(*(_group(part.strip(), text) for part in text.split("+")), strict=True)
    return _assembled(text, groups, designs)


def _group(part: str, text: str) -> tuple[NodeGroup, NodeDesign]:
    match = _PART.match(part.lower())
    if match is None:
        raise InputError(
            f"--on {text!r}: {part!r} is not a cluster; write 4x8xh100-sxm for four nodes of eight "
            "devices, 4xh100-sxm for four devices of one node, or the path of a cluster file"
        )
    first, second, name = match.groups()
    name, each, link, shared_by = _cloud_node(name)
    if each and second:
        raise InputError(
            f"--on {text!r}: {match[3]} is {each} devices already; write {first}x{match[3]}"
        )
    try:
        file, _ = _device_file(name)
    except UnknownNameError as error:
        raise InputError(f"--on {text!r}: {error}") from error
    nodes, per_node = (int(first), int(second)) if second else (1, int(first or 1))
    if each:
        nodes, per_node = int(first or 1), each
    if nodes < 1 or per_node < 1:
        raise InputError(f"--on {text!r}: counts must be 1 or more")
    if per_node > file.node.devices:
        raise InputError(
            f"--on {text!r}: a {file.name} node holds {file.node.devices} devices, not {per_node}; "
            f"write {-(-per_node // file.node.devices)}x{file.node.devices}x{name}, or describe "
            "the cluster in a file"
        )
    group = NodeGroup(count=nodes, devices_per_node=per_node, device=get_device(file.name))
    network = replace(file.node, outer_link=link, outer_shared_by=shared_by) if link else file.node
    return group, network


def _cloud_node(name: str) -> tuple[str, int, str, int]:
    """A cloud's node or slice: its device, number of devices, network link, and devices that share
    a link. Examples: `p5.48xlarge` (data/instances.toml), `v5p-64` (v3, v4 and v5p are counted in
    cores, two per chip; docs.cloud.google.com/tpu/docs). Any other name is a device's, with 0 and
    no link."""
    plain = re.sub(r"[\s_]+", "-", name).removeprefix("standard-")
    if (found := _SLICE.match(plain)) is not None:
        cores = 2 if found[1] in ("v3", "v4", "v5p") else 1
        chips = max(1, int(found[2]) // cores)
        return f"tpu-{found[1].replace('v5litepod', 'v5e')}", chips, "", 1
    entry = read_mapping(DATA / "instances.toml").get(plain)
    if entry is None:
        return name, 0, "", 1
    count, _, device = entry["nodes"].partition("x")
    return device, int(count), entry.get("link", ""), entry.get("shared_by", 1)


def _assembled(
    name: str, groups: tuple[NodeGroup, ...], designs: tuple[NodeDesign, ...]
) -> Cluster:
    total = sum(group.count * group.devices_per_node for group in groups)
    sizes = {group.devices_per_node for group in groups}
    if len(sizes) > 1:
        raise InputError(
            f"--on {name!r}: nodes of {sorted(sizes)} devices in one cluster; write them in a "
            "cluster file with separate levels"
        )
    per_node = sizes.pop()
    inner_size = min(_domain_size(per_node, total, design) for design in designs)
    inner = min((get_link(d.inner_link) for d in designs), key=_speed)
    outer = min(
        (replace(get_link(d.outer_link), shared_by=d.outer_shared_by) for d in designs), key=_speed
    )
    levels = []
    if inner_size > 1:
        level = "node" if inner_size == per_node else "rack"
        levels.append(Level(name=level, domain_size=inner_size, link=inner))
    if total > inner_size:
        levels.append(Level(name="fabric", domain_size=total, link=outer))
    # The designs' host_power, weighted by the power of their devices.
    watts = [group.count * group.devices_per_node * group.device.power_w.value for group in groups]
    shares = [d.host_power.value if d.host_power else OVERHEAD_POWER for d in designs]
    overhead = sum(w * s for w, s in zip(watts, shares, strict=True)) / sum(watts)
    return Cluster(name=name, groups=groups, levels=tuple(levels), overhead_power=overhead)


def _domain_size(per_node: int, total: int, design: NodeDesign) -> int:
    """Number of devices connected by the inner link: those of a node. If nodes are trays of a
    rack: those of as many trays as fit in a rack and divide the cluster evenly, as schedulers
    place jobs."""
    if per_node != design.host_devices:
        return per_node
    most = min(total, design.devices)
    even = [size for size in range(most, most // 2, -per_node) if total % size == 0]
    return even[0] if even else most


def _speed(link: Link) -> float:
    return link.bandwidth_bytes_per_s.value / link.shared_by


def _read_cluster(path: Path) -> Cluster:
    data: dict[str, Any] = read_mapping(path)
    groups = data.get("groups")
    first = groups[0] if isinstance(groups, list) and groups else {}
    if isinstance(first, dict) and isinstance(first.get("device"), str):
        file = read_document(path, ClusterFile, schema=CLUSTER_SCHEMA)
        return _from_file(file, path)
    return read_document(path, Cluster, schema=CLUSTER_SCHEMA)


@contextmanager
def _placed(where: str) -> Iterator[None]:
    """Context that adds the place in a file to errors of values."""
    try:
        yield
    except InputError as error:
        raise DocumentError(f"{where}: {error}") from error


def _from_file(file: ClusterFile, path: Path) -> Cluster:
    groups = []
    for number, group in enumerate(file.groups):
        with _placed(f"{path}: groups[{number}].device"):
            device = get_device(group.device)
        groups.append(
            NodeGroup(count=group.count, devices_per_node=group.devices_per_node, device=device)
        )
    levels = []
    for number, level in enumerate(file.levels):
        with _placed(f"{path}: levels[{number}].link"):
            link = get_link(level.link) if isinstance(level.link, str) else _link(level.link)
            link = replace(link, shared_by=level.shared_by)
        fields = ("name", "domain_size", "oversubscription", "torus")
        with _placed(f"{path}: levels[{number}]"):
            levels.append(Level(link=link, **{name: getattr(level, name) for name in fields}))
    with _placed(str(path)):
        return Cluster(
            name=file.name,
            groups=tuple(groups),
            levels=tuple(levels),
            overhead_power=file.overhead_power,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogRow:
    """One line of `shardwright catalog`."""

    name: str
    vendor: str
    aliases: tuple[str, ...]
    peak_bf16_flop_per_s: float
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    power_w: float
    measured: str


def catalog_rows() -> tuple[CatalogRow, ...]:
    """All devices of the catalog with their main figures."""
    rows = []
    for name in device_names():
        device = get_device(name)
        measured = "kernels" if (DATA / "kernels" / f"{name}.gemm.toml").is_file() else ""
        rows.append(
            CatalogRow(
                name=name,
                vendor=device.vendor,
                aliases=device.aliases,
                peak_bf16_flop_per_s=device.peak_or_twins("bfloat16").value,
                memory_bytes=device.memory_bytes.value,
                memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s.value,
                power_w=device.power_w.value,
                measured=measured
                or (f"as {device.efficiency_of}" if device.efficiency_of else "no"),
            )
        )
    return tuple(rows)
