"""Peak memory of a module's step on one device, and what a device needs beyond it to run it.

    allocated = parameters + gradients + optimizer states + buffers + inputs + highest bytes alive
                of activations and their gradients (from the trace, tensor by tensor)
    needed    = allocated x held + workspace

`held` is what torch's allocator has reserved over what is allocated at the peak: blocks of 2 MiB
and more that no later tensor fits into; `workspace` what cuDNN and cuBLAS take while kernels run.
Both are fitted on batches that fitted beside the next that did not (tools/derive_module_steps.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from profiles.model.steps.module_step import ModuleStep, StepPrecision
from simulator.modules.module_framework import ModuleFramework, OptimizerKind

_MASTER_BYTES = 4  # of a weight or a state in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """Bytes by what holds them; `peak_bytes` is their sum, as torch counts allocated memory."""

    parameter_bytes: float
    gradient_bytes: float
    optimizer_bytes: float
    buffer_bytes: float
    input_bytes: float
    activation_bytes: float

    @property
    def peak_bytes(self) -> float:
        """Allocated at the highest moment of the step."""
        return (
            self.parameter_bytes
            + self.gradient_bytes
            + self.optimizer_bytes
            + self.buffer_bytes
            + self.input_bytes
            + self.activation_bytes
        )

    def needed_bytes(self, held: float, workspace_bytes: float) -> float:
        """What the device must have for the step to run."""
        return self.peak_bytes * held + workspace_bytes


def step_memory(
    step: ModuleStep,
    precision: StepPrecision,
    framework: ModuleFramework,
    optimizer: OptimizerKind,
) -> StepMemory:
    """The peak of a step in the steady state: optimizer states and, where the framework keeps them,
    gradients are there from its start."""
    elements = sum(step.parameters)
    narrow = precision.weights in ("float16", "bfloat16")
    states = optimizer.states + (1 if narrow and optimizer.states else 0)  # and a float32 copy
    # Gradients that are not kept come while activations go; both together are the traced peak.
    gradients = step.gradient_bytes
    if not framework.keeps_gradients:
        both = max(step.peak_with_gradients_bytes, step.gradient_bytes)  # the update needs them all
        gradients = max(both - step.peak_bytes, 0)
    return StepMemory(
        parameter_bytes=step.parameter_bytes,
        gradient_bytes=gradients,
        optimizer_bytes=float(states * _MASTER_BYTES * elements),
        buffer_bytes=step.buffer_bytes,
        input_bytes=step.input_bytes,
        activation_bytes=step.peak_bytes,
    )
