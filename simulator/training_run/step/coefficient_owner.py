"""Who owns the coefficient that a run takes, and what that owner is akin to.

An owner is a device (and data type), a software of a generation, or a network; its family is what
the fit draws it towards, and what it takes where it has no rows of its own.
"""

from __future__ import annotations

import functools

from profiles.hardware.catalogue.catalog import base_of, get_device
from profiles.hardware.catalogue.device import Device
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.framework.graph_compiler import attention_kernel, compiles_graphs
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.coefficient_kinds import Kind

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
# Frameworks of one generation, by the beginnings of their names: what the fit draws each towards.
_GENERATIONS = (
    ("megatron-2021", "megatron-2021"),
    ("megatron-deepspeed", "megatron-2021"),
    ("oneflow", "megatron-2021"),
    ("megatron", "megatron-core"),
    ("torch", "torch"),
    ("nemo-automodel", "torch"),
    ("transformers", "torch"),
    ("nanotron", "torch"),
)
_BITS = {"fp32": 32, "fp8": 8, "int8": 8, "mxfp8": 8, "nvfp4": 4}
# Protocols over Ethernet's wires.
_ETHERNET = ("ethernet", "roce", "efa", "slingshot", "data-centre network")


def owner_of(kind: Kind, run: TrainingRun) -> str:
    """Whose coefficient of a kind a run takes."""
    if kind.owner == "device":
        return processor_of(run.device)
    if kind.owner == "device and bits":
        return f"{processor_of(run.device)}.{_BITS.get(run.precision, 16)}"
    if kind.owner == "stack and sharding":
        return f"{stack_owner(run)}.{_sharding(run)}"
    if kind.owner == "stack":
        return stack_owner(run)
    return (run.node_network.kind or "*") if kind.owner == "network" else "*"


def software_of(run: TrainingRun) -> str:
    """The framework whose coefficients a run takes."""
    framework = load_framework(run.stack)
    return framework.coefficients_of or framework.name


def stack_owner(run: TrainingRun) -> str:
    """The framework, and on devices of graph compilers that it is compiled there."""
    name = software_of(run)
    return f"{name} (compiled)" if compiles_graphs(run) else name


def _sharding(run: TrainingRun) -> str:
    return "sharded" if run.zero_stage else "whole"


@functools.cache
def processor_of(name: str) -> str:
    """That of a device of the catalogue (`processor`), whatever its power limit (which is in the
    rate of its matmuls), its memory or how many share it."""
    return processor(get_device(base_of(name)))


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
    type), of a framework its generation (its attention: the kernel), of a network its protocol, ""
    for all others. An owner without rows of its own takes its family's value, and rows of one tell
    of the others."""
    if kind.owner == "network":
        return "over-ethernet" if run.node_network.kind in _ETHERNET else ""
    if kind.name == "attention":
        return f"{attention_kernel(run, load_framework(run.stack))}-kernels"
    if kind.owner in ("stack", "stack and sharding"):
        compiled = compiles_graphs(run)
        found = "compiled" if compiled else _beginning(_GENERATIONS, software_of(run))
        sharded = f".{_sharding(run)}" if kind.owner == "stack and sharding" else ""
        return f"{found}{sharded}" if found else ""
    family = _beginning(_ARCHITECTURES, run.device)
    if kind.owner == "device":
        return family
    if kind.owner == "device and bits" and family:
        return f"{family}.{_BITS.get(run.precision, 16)}"
    return ""


def _beginning(table: tuple[tuple[str, str], ...], name: str) -> str:
    return next((family for start, family in table if name.startswith(start)), "")
