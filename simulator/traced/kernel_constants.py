"""Fitted constants of modules' steps, with their errors and interval widths.

Read from profiles/data/calibration/module_steps.toml, made by tools/derive_module_steps.py.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document

MODULE_STEPS_SCHEMA = "shardwright/module-steps@1"
MODULE_STEPS_FILE = (
    Path(__file__).parents[2] / "profiles" / "data" / "calibration" / "module_steps.toml"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Relative errors of step times predicted by a fit without the rows' group.

    inside  share of rows inside their 90 % interval
    """

    rows: int
    median: float
    mean: float
    inside: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleConstants:
    """The constants; meanings in kernel_seconds.py and in_step.py.

    residual       median relative error of the rows fitted on
    families, devices   with whole families, whole devices left out
    fits           share of rows whose batch fits by the prediction and the next listed one does not
    held, workspace_mib   memory beyond what is allocated: needed is allocated x held + workspace
    half_widths    of 90 % intervals, in log: `device` where the fit has the device, `architecture`
                   where it has another of its architecture, `none` elsewhere, `kernel` of a kernel
                   of a kind that too few rows have
    measured_devices   that the fit has
    kinds          kind of kernel -> rows that spend a twentieth of their kernels' time on it
    """

    source: str
    method: str
    date: str
    rows: int
    residual: float
    families: LeftOut
    devices: LeftOut
    fits: float
    held: float
    workspace_mib: float
    measured_devices: tuple[str, ...]
    kinds: Mapping[str, int]
    half_widths: Mapping[str, float]
    values: Mapping[str, float]


@functools.cache
def module_constants() -> ModuleConstants:
    """The shipped constants."""
    return read_document(MODULE_STEPS_FILE, ModuleConstants, schema=MODULE_STEPS_SCHEMA)
