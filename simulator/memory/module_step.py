"""Peak memory of a module's step on one device, and what a device needs beyond it to run it.

    allocated = parameters + gradients + optimizer states + buffers + inputs + highest bytes alive
                of activations and their gradients (from the trace, tensor by tensor)
    required  = allocated x held + workspace

`held` is what torch's allocator has reserved over what is allocated at the peak: blocks of 2 MiB
and more that no later tensor fits into; `workspace` what cuDNN and cuBLAS take while kernels run.
Both are fitted on the largest batches that fitted and the next ones, which did not
(tools/derive_module_steps.py).
"""

from __future__ import annotations

from profiles.model.steps.module_step import ModuleStep, StepPrecision
from simulator.values.prediction import RankMemory

_MASTER_BYTES = 4  # of a weight or a state in float32


def module_memory(
    step: ModuleStep,
    precision: StepPrecision,
    *,
    states: int,
    keeps_gradients: bool,
    capacity_bytes: float,
    held: float = 1.0,
    workspace_bytes: float = 0.0,
) -> RankMemory:
    """The peak of a step in the steady state: optimizer states and, where the framework keeps them,
    gradients are there from its start. Buffers and inputs are counted as communication.

    states  numbers that the optimizer keeps per weight
    """
    if states and precision.weights in ("float16", "bfloat16"):
        states += 1  # and a float32 copy of the weights
    # Gradients that are not kept come while activations go; both together are the traced peak.
    gradients = step.gradient_bytes
    if not keeps_gradients:
        both = max(step.peak_with_gradients_bytes, step.gradient_bytes)  # the update needs them all
        gradients = max(both - step.peak_bytes, 0)
    optimizer = states * _MASTER_BYTES * sum(step.parameters)
    buffers = step.buffer_bytes + step.input_bytes
    peak = step.parameter_bytes + gradients + optimizer + buffers + step.peak_bytes
    return RankMemory(
        rank=0,
        parameters_bytes=step.parameter_bytes,
        gradients_bytes=gradients,
        optimizer_bytes=optimizer,
        activations_bytes=step.peak_bytes,
        transient_bytes=0.0,
        communication_bytes=buffers,
        capacity_bytes=capacity_bytes,
        peak_time_s=0.0,
        reserved_bytes=peak * held,
        required_bytes=peak * held + workspace_bytes,
    )
