"""Seconds of a training step from those of its kernels and of the host that starts them.

The host runs ahead of the device; each pass takes about as long as the slower of the two,

    pass    (device^4 + host^4)^(1/4)
    step    forward + backward + update + step constant

    host    starts x seconds per kernel + views x seconds per view, by pass and age of the framework
            (Python's forward costs more than autograd's backward, which is C++)
    update  bytes of the optimizer's kernels and, where gradients are kept, of filling them with
            zeros and adding to them
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from profiles.hardware.catalogue.device import Device
from profiles.model.steps.module_step import Kernel, ModuleStep
from simulator.modules.kernel_seconds import Values
from simulator.modules.module_framework import ModuleFramework, OptimizerKind
from simulator.modules.step_arrays import Array, StepArrays

_SHARPNESS = 4.0  # of the maximum of host and device
_ELEMENT_BYTES = 4.0
_FIRST_NEW_RELEASE = (1, 12)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFacts:
    """What of a step is not its kernels; [steps] each.

    *_starts, *_views   kernels and views that the host starts in a pass
    parameters, elements   trainable parameters and their elements
    update_moved    numbers per element that the update reads and writes, zeroing gradients and
                    adding to them included;  update_kernels  kernels per parameter
    old, compiled   flags of the framework
    """

    forward_starts: Array
    forward_views: Array
    backward_starts: Array
    backward_views: Array
    parameters: Array
    elements: Array
    update_moved: Array
    update_kernels: Array
    bandwidth: Array
    old: Array
    compiled: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class StepParts:
    """[steps] seconds of a step's parts, device and host each as if the other took no time."""

    forward_device: Array
    forward_host: Array
    backward_device: Array
    backward_host: Array
    update_device: Array
    update_host: Array
    constant: Array

    @property
    def total_s(self) -> Array:
        """The step."""
        return (
            _slower(self.forward_device, self.forward_host)
            + _slower(self.backward_device, self.backward_host)
            + _slower(self.update_device, self.update_host)
            + self.constant
        )


def step_facts(
    step: ModuleStep,
    arrays: StepArrays,
    device: Device,
    framework: ModuleFramework,
    optimizer: OptimizerKind,
) -> StepFacts:
    """The facts of one step, as arrays of one."""
    view = arrays.of(Kernel.VIEW)

    def started(backward: bool, views: bool) -> float:
        return float(arrays.starts[(arrays.backward == backward) & (view == views)].sum())

    kept = framework.keeps_gradients
    numbers = {
        "forward_starts": started(False, False),
        "forward_views": started(False, True),
        "backward_starts": started(True, False) + (len(step.parameters) if kept else 0),
        "backward_views": started(True, True),
        "parameters": len(step.parameters),
        "elements": sum(step.parameters),
        # Zeros are written; adding reads two and writes one.
        "update_moved": optimizer.moved + (4 if kept else 0),
        "update_kernels": optimizer.kernels,
        "bandwidth": device.memory_bandwidth_bytes_per_s.value,
        "old": framework.release < _FIRST_NEW_RELEASE,
        "compiled": framework.compiled,
    }
    return StepFacts(**{name: np.asarray([float(x)]) for name, x in numbers.items()})


def step_parts(
    facts: StepFacts, forward_device: Array, backward_device: Array, values: Values
) -> StepParts:
    """The parts of steps whose kernels take so long in each pass."""
    eager = 1.0 - facts.compiled

    def host(name: str) -> Array:
        old, new = values[f"host.{name}.old_us"], values[f"host.{name}.new_us"]
        return np.where(facts.old > 0, old, new) * 1e-6 * eager

    update_bytes = _ELEMENT_BYTES * facts.elements * facts.update_moved
    kernels = facts.parameters * facts.update_kernels
    return StepParts(
        forward_device=forward_device,
        forward_host=facts.forward_starts * host("forward") + facts.forward_views * host("view"),
        backward_device=backward_device,
        backward_host=facts.backward_starts * host("backward")
        + facts.backward_views * host("view"),
        update_device=update_bytes / (facts.bandwidth * values["bytes.update"])
        + kernels * values["start_us"] * 1e-6,
        update_host=kernels * host("update"),
        constant=np.full(len(facts.elements), values["step_us"] * 1e-6),
    )


def _slower(device: Array, host: Array) -> Array:
    both = device**_SHARPNESS + host**_SHARPNESS
    return np.asarray(both ** (1 / _SHARPNESS))
