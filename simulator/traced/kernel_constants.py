"""Fitted constants of modules' steps, with their errors and interval widths.

Read from profiles/data/calibration/module_steps.toml, made by tools/derive_module_steps.py.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from profiles.document import read_document
from profiles.model.kernels import DeviceKernel, Kernel

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
    fits           share of rows predicted to fit with their batch, but not with the next larger one
    held, workspace_mib   memory in addition to allocated tensors: needed is allocated x held +
                          workspace
    half_widths    of 90 % intervals, in log: `device` if the fit has the device, `architecture` if
                   it has another of its architecture, otherwise `none`; `kernel` for kinds of
                   kernels with too few rows
    measured_devices   devices in the fit
    kinds          kind of kernel -> number of rows with a twentieth or more of their kernels' time
                   in it
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


MUCH = 0.05
"""Least share of a step's kernel time for the step to count for a kind of kernel."""
_IMAGES = 2  # dimensions
_JOINED = frozenset(
    (
        Kernel.BATCH_NORM,
        Kernel.ROW_NORM,
        Kernel.SOFTMAX,
        Kernel.REDUCTION,
        Kernel.COPY,
        Kernel.TRANSPOSE,
        Kernel.GATHER,
        Kernel.FILL,
        Kernel.ELEMENTWISE,
    )
)
# Steps are 9 % off in the mean when their family is left out, 20 of them together 2 %: that is 40 %
# of a kernel of a twentieth of their time. Fewer steps are little evidence.
_ENOUGH_STEPS = 20


def kernel_kind(kernel: DeviceKernel) -> str:
    """The kind of kernel for which constants are fitted. Convolutions that differ from those of
    images are separate kinds, because libraries use other algorithms.

    >>> volumes = DeviceKernel(kernel=Kernel.CONV, dtype="float32", spatial=3, taps=27)
    >>> kernel_kind(volumes)
    'conv 3-d'
    >>> from dataclasses import replace
    >>> kernel_kind(replace(volumes, dilation=2))
    'dilated conv 3-d'
    """
    words = [kernel.kernel.value]
    if kernel.spatial not in (0, _IMAGES):
        words.append(f"{kernel.spatial}-d")
    if kernel.dilation > 1 and kernel.taps > 1:
        words.insert(0, "dilated")
    return " ".join(words)


def seconds_by_kind(kernels: Iterable[tuple[DeviceKernel, float]]) -> dict[str, float]:
    """Seconds of kernels by kind, all runs of a kernel together."""
    found: dict[str, float] = {}
    for kernel, taken in kernels:
        kind = kernel_kind(kernel)
        found[kind] = found.get(kind, 0.0) + taken
    return found


def is_unmeasured(kernel: DeviceKernel, measured: Mapping[str, int], *, compiled: bool) -> bool:
    """Whether the fit has too few steps with such a kernel.

    measured  kind -> number of fitted steps that contain it
    compiled  whether the step is compiled, which fuses kernels that only move bytes with others; no
              fitted step has such kernels
    """
    if compiled and kernel.kernel in _JOINED:
        return True
    return measured.get(kernel_kind(kernel), 0) < _ENOUGH_STEPS
