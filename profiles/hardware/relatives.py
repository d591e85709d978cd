"""Whose measured kernels stand in for a device that has none (data/kernels/relatives.toml)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document
from profiles.errors import UnknownNameError
from profiles.hardware.catalog import get_device

RELATIVES_FILE = Path(__file__).parents[1] / "data" / "kernels" / "relatives.toml"
RELATIVES_SCHEMA = "shardwright/kernel-relatives@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Relative:
    """The device whose surfaces are borrowed, and why.

    attention_measured_on   another device for attention, where the relative's kernel is no match
    sm_count   the borrower's own number of processors, 0 to keep the relative's
    """

    measured_on: str
    reason: str
    attention_measured_on: str = ""
    sm_count: int = 0
    sm_source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relatives:
    """The table: device -> relative."""

    devices: Mapping[str, Relative]


@functools.cache
def relatives() -> Mapping[str, Relative]:
    """Every device that borrows."""
    return read_document(RELATIVES_FILE, Relatives, schema=RELATIVES_SCHEMA).devices


def relative_of(device_name: str) -> Relative:
    """The relative of a device without measured kernels.

    A device that the table does not name yet borrows from its device file's `efficiency_of`.
    Raises UnknownNameError if neither names one.
    """
    found = relatives().get(device_name)
    if found is not None:
        return found
    lender = get_device(device_name).efficiency_of
    if lender:
        return Relative(measured_on=lender, reason=f"efficiency_of of {device_name}.toml")
    raise UnknownNameError(
        "device with a kernel relative", device_name, relatives(), where=RELATIVES_FILE.name
    )
