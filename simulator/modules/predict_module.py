"""Predicting a module's training step on a device: time, memory, whether it fits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from profiles.errors import InputError
from profiles.hardware.catalogue.catalog import get_device, get_link, node_design
from profiles.hardware.catalogue.device import Device
from profiles.hardware.catalogue.relatives import chip_of
from profiles.model.steps.module_step import ModuleStep, StepPrecision, step_precision
from profiles.published.module_table import ModuleRow
from simulator.memory.module_step import module_memory
from simulator.modules.kernel_kinds import seconds_by_kind, unmeasured
from simulator.modules.kernel_seconds import grouped, kernel_rates, kernel_seconds
from simulator.modules.module_constants import ModuleConstants, module_constants
from simulator.modules.module_framework import (
    ModuleFramework,
    OptimizerKind,
    module_framework,
    optimizer_kind,
)
from simulator.modules.step_arrays import Array, StepArrays, step_arrays
from simulator.modules.step_seconds import StepParts, step_facts, step_parts
from simulator.values.prediction import Interval

_LAYOUTS = {"": False, "nchw": False, "contiguous": False, "channels_first": False}
_LAYOUTS |= {"nhwc": True, "channels_last": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSetting:
    """A row of a table of modules with every question answered.

    defaults  what was taken where the row is silent
    """

    device: Device
    devices: int
    precision: StepPrecision
    channels_last: bool
    framework: ModuleFramework
    optimizer: OptimizerKind
    defaults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModulePrediction:
    """What is predicted of a step.

    peak_memory_bytes  allocated by tensors at the highest moment, as torch counts it
    fits               the device has what the step needs: `needed_bytes`, with what the allocator
                       holds and kernels' workspaces
    unmeasured         kinds of kernels that too few measured steps have -> share of the kernels'
                       time
    """

    step_time_s: Interval
    peak_memory_bytes: Interval
    needed_bytes: float
    fits: bool
    unmeasured: Mapping[str, float]


def module_setting(row: ModuleRow) -> ModuleSetting:
    """The row, complete. Raises InputError (UnknownNameError) for a device, a precision or a layout
    that is not known, and for a cell that could not be read."""
    if row.faults:
        raise InputError("; ".join(row.faults))
    defaults = []
    if not row.precision:
        defaults.append("no precision is named: taken as fp32")
    if row.memory_format.lower() not in _LAYOUTS:
        raise InputError(
            f"memory_format {row.memory_format!r} is not known; use nchw or nhwc (channels_last)"
        )
    framework, said = module_framework(row.framework)
    defaults += [said] if said else []
    optimizer, said = optimizer_kind(row.optimizer, together=framework.together)
    defaults += [said] if said else []
    device = get_device(row.device)
    if device.type == "cpu":
        raise InputError(f"{row.device} is a CPU; modules are predicted on accelerators")
    if row.devices > 1:
        link = node_design(device.name).inner_link
        defaults.append(f"gradients are summed over {link} beside the backward")
    return ModuleSetting(
        device=device,
        devices=row.devices,
        precision=step_precision(row.precision or "fp32"),
        channels_last=_LAYOUTS[row.memory_format.lower()],
        framework=framework,
        optimizer=optimizer,
        defaults=tuple(defaults),
    )


def predict_module(step: ModuleStep, setting: ModuleSetting) -> ModulePrediction:
    """The prediction of a traced step, with the constants that the project ships."""
    used = module_constants()
    arrays = step_arrays(step)
    seconds = _seconds_of_ops(arrays, setting, used)
    parts = _parts_of_step(step, arrays, seconds, setting, used)
    time_s = float(parts.total_s[0]) + _exposed_exchange_s(step, setting, parts)
    by_kind = seconds_by_kind(step.ops, seconds)
    shares = unmeasured(by_kind, used.kinds, compiled=setting.framework.compiled)
    unmeasured_s = sum(by_kind[kind] for kind in shares)
    width = math.hypot(
        used.half_widths[_known(setting.device, used)],
        used.half_widths["kernel"] * min(1.0, unmeasured_s / time_s),
    )
    memory = module_memory(
        step,
        setting.precision,
        states=setting.optimizer.states,
        keeps_gradients=setting.framework.keeps_gradients,
        capacity_bytes=setting.device.usable_bytes,
        held=used.held,
        workspace_bytes=used.workspace_mib * 2**20,
    )
    return ModulePrediction(
        step_time_s=_interval(time_s, width),
        peak_memory_bytes=_interval(memory.peak_bytes, used.half_widths["memory"]),
        needed_bytes=memory.limiting_bytes,
        fits=memory.fits,
        unmeasured=shares,
    )


def _seconds_of_ops(
    arrays: StepArrays, setting: ModuleSetting, constants: ModuleConstants
) -> Array:
    """Device seconds of every op of the step, all its runs together."""
    rates = kernel_rates(arrays, setting.device, setting.precision)
    return kernel_seconds(grouped(arrays, rates), constants.values) * arrays.count


def _parts_of_step(
    step: ModuleStep,
    arrays: StepArrays,
    seconds: Array,
    setting: ModuleSetting,
    constants: ModuleConstants,
) -> StepParts:
    """Device and host seconds of each pass, arrays of one."""
    forward = np.asarray([seconds[~arrays.backward].sum()])
    backward = np.asarray([seconds[arrays.backward].sum()])
    facts = step_facts(step, arrays, setting.device, setting.framework, setting.optimizer)
    return step_parts(facts, forward, backward, constants.values)


def _exposed_exchange_s(step: ModuleStep, setting: ModuleSetting, parts: StepParts) -> float:
    """What summing gradients over the devices of a node adds: what does not fit beside the
    backward (a ring's 2 (n - 1) / n of the bytes)."""
    if setting.devices < 2:
        return 0.0
    link = get_link(node_design(setting.device.name).inner_link)
    rate = link.bandwidth_bytes_per_s.value * link.efficiency.value
    share = 2 * (setting.devices - 1) / setting.devices
    return max(0.0, share * step.gradient_bytes / rate - float(parts.backward_device[0]))


def _known(device: Device, constants: ModuleConstants) -> str:
    if device.name in constants.measured_devices:
        return "device"
    architecture = chip_of(device).architecture
    near = {chip_of(get_device(name)).architecture for name in constants.measured_devices}
    return "architecture" if architecture and architecture in near else "none"


def _interval(value: float, log_half_width: float) -> Interval:
    factor = math.exp(log_half_width)
    return Interval(value=value, low=value / factor, high=value * factor)
