"""The files of the catalog: units in the keys, a source per number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from profiles.sourced import Sourced

# Default power of hosts and network relative to the devices: between the measured nodes of eight
# H100 (0.28) and eight B200 (0.22) of MLPerf Training 4.1 and 5.0 (the device files' host_power).
OVERHEAD_POWER = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDesign:
    """The usual node (or NVLink rack, or pod) of a device, and its two links.

    devices          joined by the inner link: 8 of a node, 72 of an NVL72 rack, a TPU pod
    host_devices     per host, if the inner link joins several hosts (4 in an NVL72 rack); default 0
    outer_shared_by  devices per network card of the outer link
    inner_shared_by  devices per inner link: the cores of a chip
    cores            possible numbers of devices per chip in software, ascending: single or joined
                     cores; () if the chip is always one device
    host_power       power of hosts and network relative to that of the devices
    """

    devices: int
    inner_link: str
    outer_link: str
    source: str
    outer_shared_by: int = 1
    inner_shared_by: int = 1
    cores: tuple[int, ...] = ()
    host_devices: int = 0
    host_power: Sourced | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """The limits of small and cached kernels in addition to peak and bandwidth.

    architecture  target of its kernels (`ga100`, `ga10x`, `hopper`), "" if unknown
    processors    number of units that run a kernel's blocks (NVIDIA: streaming multiprocessors)
    cache_mib     of the last level
    float32_sums  rate of 16-bit products accumulated in float32 over those in float16 (half on
                  GeForce boards)
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
class Relative:
    """The measured device whose kernels replace those of an unmeasured device. Assumed.

    Times are scaled by the data sheets' ratios of peak and memory bandwidth.

    attention_measured_on   another device for attention, if the relative's kernel does not match
    sm_count      the device's number of processors, 0 to keep the relative's
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
class CollectiveRelative:
    """The device whose measured collectives replace those of an unmeasured device; "" for formulas.
    Assumed.

    Latencies scale with the links' latencies, the rest of the time with bandwidth times efficiency.
    """

    measured_on: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFile:
    """A device file: everything known about an accelerator.

    memory_gib    as reported by the device (nvidia-smi's MiB / 1024), not the vendor's number
    reserved_gib  the part that a framework cannot use: driver, context, kernels, NCCL
    efficiency_of   the device whose fitted coefficients are used, "" for its own
    kernels, collectives   relatives; required if the device has no measured ones
    chip          None for the chip of `efficiency_of`
    """

    name: str
    vendor: str
    type: str
    aliases: tuple[str, ...] = ()
    efficiency_of: str = ""
    notes: str = ""
    memory_gib: Sourced
    reserved_gib: Sourced
    memory_bandwidth_gb_per_s: Sourced
    power_w: Sourced
    launch_us: Sourced
    peak_tflops: Mapping[str, Sourced]
    node: NodeDesign
    kernels: Relative | None = None
    collectives: CollectiveRelative | None = None
    chip: Chip | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFile:
    """A link file."""

    name: str
    bandwidth_gb_per_s: Sourced
    latency_us: Sourced
    efficiency: Sourced
    kind: str = ""
    message_efficiency: Sourced | None = None
    direct_peers: int = 0
    torus_axes: int = 0
    notes: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFile:
    """Nodes of a cluster file; `device` is a name in the catalog."""

    count: int
    devices_per_node: int
    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelFile:
    """A level of a cluster file; `link` is a name in the catalog, or an inline table."""

    name: str
    domain_size: int
    link: str | LinkFile
    oversubscription: float = 1.0
    shared_by: int = 1
    torus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFile:
    """A cluster file (docs/clusters.md)."""

    name: str
    groups: tuple[GroupFile, ...]
    levels: tuple[LevelFile, ...]
    overhead_power: float = OVERHEAD_POWER
