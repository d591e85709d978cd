"""`KINDS`: the kinds of fitted coefficients, with meaning, initial value and owner.

`owner_of` finds the owner of each coefficient used by a run: a device with a data type, a framework
or a kind of attention kernel. The fit shrinks members of a family towards the family's value
(`family_of`), which is also used for an owner without rows.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document
from profiles.hardware.catalogue.catalog import base_of, get_device
from profiles.hardware.catalogue.device import Device
from simulator.training_run.framework.framework import load_framework
from simulator.training_run.framework.run_conditions import attention_kernel, compiles_graphs
from simulator.training_run.run.training_run import TrainingRun

_SCHEMA = "shardwright/coefficient-kinds@1"
_FILE = Path(__file__).parents[3] / "profiles" / "data" / "coefficient_kinds.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of coefficient.

    owner    each owner has one value: `stack` (a framework), `device and bits` (of the matmuls'
             data type), `attention kernel`, or "" for one value shared by all runs
    start    the physical starting value, its origin in `source`
    spread   prior standard deviation of the logarithm around the start
    between  initial value of the standard deviation of the logarithm between sources, 2 x `spread`
             if 0; estimated by the fit
    least, most   physical limits: a message is never faster than in isolation, and shares are at
                  most 1
    """

    name: str
    start: float
    spread: float
    meaning: str
    source: str
    owner: str = ""
    between: float = 0.0
    least: float = 0.0
    most: float = math.inf

    def __post_init__(self) -> None:
        if not self.between:
            object.__setattr__(self, "between", 2.0 * self.spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class KindFile:
    """profiles/data/coefficient_kinds.toml."""

    kinds: tuple[Kind, ...]


KINDS = read_document(_FILE, KindFile, schema=_SCHEMA).kinds
BY_NAME = {kind.name: kind for kind in KINDS}


# Architectures, by the first letters of device names in the catalog.
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


def owner_of(kind: Kind, run: TrainingRun) -> str:
    """The owner of a run's coefficient of a kind; `*` for kinds with one value."""
    if kind.owner == "device and bits":
        return f"{processor_of(run.device)}.{_BITS.get(run.precision, 16)}"
    if kind.owner == "attention kernel":
        return f"{attention_kernel(run, load_framework(run.stack))}-kernels"
    if kind.owner == "stack":
        # On devices with graph compilers, a framework has another level.
        return software_of(run) + (" (compiled)" if compiles_graphs(run) else "")
    return "*"


def family_of(kind: Kind, run: TrainingRun) -> str:
    """The family whose value is used for an owner without rows: for a device, its architecture and
    data type; for a framework, all frameworks. "" for other kinds."""
    if kind.owner == "device and bits":
        architecture = architecture_of(run.device)
        return f"{architecture}.{_BITS.get(run.precision, 16)}" if architecture else ""
    return "frameworks" if kind.owner == "stack" else ""


def software_of(run: TrainingRun) -> str:
    """The framework whose coefficients a run uses."""
    framework = load_framework(run.stack)
    return framework.coefficients_of or framework.name


@functools.cache
def processor_of(name: str) -> str:
    """The processor of a device of the catalog (`processor`), ignoring its power limit (which is in
    the rate of its matmuls), its memory, and whether it is a part of one."""
    return processor(get_device(base_of(name)))


def processor(device: Device) -> str:
    """The device whose kernels are used for this one. It is another device if the data sheets give
    both equal peaks and power: one processor with other memory or links (A100 of 40 GB, H800)."""
    if not device.efficiency_of:
        return device.name
    lender = get_device(device.efficiency_of)
    mine, lenders = (
        ({kind: rate.value for kind, rate in each.peak_flop_per_s.items()}, each.power_w.value)
        for each in (device, lender)
    )
    return lender.name if mine == lenders else device.name


def architecture_of(device: str) -> str:
    """The architecture of a device by its name in the catalog; "" if unknown."""
    return next((name for start, name in _ARCHITECTURES if device.startswith(start)), "")
