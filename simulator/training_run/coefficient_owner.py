"""Who owns the coefficient that a run takes, and what that owner is akin to.

An owner is a device (and data type), a software of a generation, or a network; its family is what
the fit draws it towards, and what it takes where it has no rows of its own.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from profiles.hardware.catalog import get_device
from profiles.hardware.device import Device
from simulator.training_run.framework import load_framework
from simulator.training_run.network_text import NodeNetwork, network_of, usual_network
from simulator.training_run.training_run import TrainingRun

if TYPE_CHECKING:
    from simulator.training_run.coefficients import Kind

# Processors by the beginnings of their names in the catalogue.
_ARCHITECTURES = (
    ("v100", "volta"),
    ("a100", "ampere"),
    ("a800", "ampere"),
    ("h", "hopper"),
    ("gh", "hopper"),
    ("b", "blackwell"),
    ("gb", "blackwell"),
    ("mi", "cdna"),
    ("tpu", "tpu"),
)
_BITS = {"fp32": 32, "fp8": 8, "int8": 8, "mxfp8": 8, "nvfp4": 4}
# Networks by the beginnings of their names.
_NETWORKS = (
    ("ib-", "infiniband"),
    ("infiniband", "infiniband"),
    ("roce", "ethernet"),
    ("ethernet", "ethernet"),
    ("eth-", "ethernet"),
    ("efa", "ethernet"),
    ("slingshot", "ethernet"),
)
# Bytes per second of a card of each generation (profiles/data/links/ib-*.toml).
_GENERATIONS = ((100e9, "ib-xdr"), (50e9, "ib-ndr"), (25e9, "ib-hdr"), (12.5e9, "ib-edr"))


def owner_of(kind: Kind, run: TrainingRun) -> str:
    """Whose coefficient of a kind a run takes."""
    if kind.owner == "device":
        return processor_of(run.device)
    if kind.owner == "device and bits":
        return f"{processor_of(run.device)}.{_BITS.get(run.precision, 16)}"
    if kind.owner == "stack and sharding":
        return f"{software_of(run)}.{'sharded' if run.zero_stage else 'whole'}"
    if kind.owner == "stack":
        return software_of(run)
    return network_kind(run) if kind.owner == "network" else "*"


def software_of(run: TrainingRun) -> str:
    """The framework whose coefficients a run takes."""
    framework = load_framework(run.stack)
    return framework.coefficients_of or framework.name


@functools.cache
def processor_of(name: str) -> str:
    """That of a device of the catalogue (`processor`)."""
    return processor(get_device(name))


def processor(device: Device) -> str:
    """The device whose kernels a device borrows, where the datasheets give both the same peaks and
    the same power: one processor with other memory or links (A100 of 40 GB, H800). Else its own."""
    if not device.efficiency_of:
        return device.name
    lender = get_device(device.efficiency_of)
    return lender.name if _datasheet(device) == _datasheet(lender) else device.name


def _datasheet(device: Device) -> tuple[object, ...]:
    peaks = {kind: rate.value for kind, rate in device.peak_flop_per_s.items()}
    return tuple(sorted(peaks.items())), device.power_w.value


def family_of(kind: Kind, run: TrainingRun) -> str:
    """What the owner of a run's coefficient is akin to: of a device its architecture (and data
    type), of a network its protocol, "" for all others. An owner without rows of its own takes its
    family's value, and rows of one tell of the others."""
    if kind.owner == "network":
        return _beginning(_NETWORKS, network_kind(run))
    family = _beginning(_ARCHITECTURES, run.device)
    if kind.owner == "device":
        return family
    if kind.owner == "device and bits" and family:
        return f"{family}.{_BITS.get(run.precision, 16)}"
    return ""


def network_kind(run: TrainingRun) -> str:
    """The network between nodes: an InfiniBand by its generation (`ib-hdr`), others by their kind
    (`roce`, `omni-path`, ...). Words that print no kind mean what the device's nodes usually have,
    InfiniBand that prints no cards the generation that they usually have."""
    network = network_of(run.outer_link, run.device, run.node_devices)
    usual = usual_network(run.device, run.node_devices).kind
    if network.kind == "network":
        return usual
    if network.kind != "infiniband":
        return network.kind
    return _generation(network) or (usual if usual.startswith("ib-") else network.kind)


def _generation(network: NodeNetwork) -> str:
    """By the rate of one card; "" where the source prints no cards."""
    if not network.nics:
        return ""
    rate = network.bytes_per_s_per_node / network.nics
    return next((name for least, name in _GENERATIONS if rate >= least), "")


def _beginning(table: tuple[tuple[str, str], ...], name: str) -> str:
    return next((family for start, family in table if name.startswith(start)), "")
