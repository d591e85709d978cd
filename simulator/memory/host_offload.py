"""Time and host memory of offloading: optimizer states, activations.

Optimizer (Ren et al., ZeRO-Offload, arXiv 2101.06840, section 4): gradients are copied to the host,
the CPU steps in its own memory, weights are copied back. Adam in fp32 reads gradient, master weight
and two moments and writes the last three and a 16-bit copy: 30 bytes a parameter, at a measured
share of the memory's rate (ADAM_REACH). If the framework overlaps the three, blocks of parameters
pass through them as a pipeline and the slowest determines the time; otherwise the times add up.

Activations (Rhu et al., vDNN, arXiv 1602.08124, section 3): kept activations of a layer are copied
to the host in the forward and back in the backward, during the layers' work if the framework
overlaps them.

Rates are those of profiles/data/hosts.
"""

from __future__ import annotations

from profiles.hardware.catalogue.host import Host, host_of
from simulator.memory.run_tensors import run_tensors
from simulator.training_run.framework.framework import Framework, load_framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.rank_parameters import updated_parameters
from simulator.training_run.work.stage_layers import stage_layers

_ADAM_BYTES = 30.0
# Share of the host's memory bandwidth that Megatron's optimizer on the CPU reaches. Qwen3-30B-A3B
# on 16 H100 (tp 2, pp 2, ep 4, batch 8; github.com/NVIDIA-NeMo/Megatron-Bridge b00deab,
# skills/perf-techniques/cpu-offloading/card.yaml, 2026-03-30): 996 ms a step, and 875, 1488, 2191
# and 3193 ms more with 25, 50, 75 and 100 % of the states on the host, 2881 with transfers
# overlapped. Least squares through 0 over the first four, the link's seconds taken off: 2.73 s for
# 1.91e9 parameters of a device. Those five are then met within 3 to 12 %, 6 % on average
# (tests/simulator/test_host_offload.py). That other hosts and frameworks reach as much is assumed.
ADAM_REACH = 0.27
# Beside the states (12 bytes) the host holds the gradient that came down.
_HELD_BYTES = 16.0
# Of the host's memory, what data loaders, the system and pinned buffers leave (assumed).
USABLE_SHARE = 0.9


def optimizer_host_s(run: TrainingRun, framework: Framework, updated: float) -> float:
    """Seconds per step of an optimizer in host memory for `updated` parameters on this device."""
    host = host_of(run.device)
    down = updated * framework.summed_gradient_bytes / host.link_bytes_per_s
    work = updated * _ADAM_BYTES / (ADAM_REACH * host.memory_bandwidth_bytes_per_s)
    up = updated * framework.sent_weight_bytes / host.link_bytes_per_s
    return max(down, work, up) if framework.overlaps_host else down + work + up


def activation_host_s(run: TrainingRun, framework: Framework) -> float:
    """Seconds that the link takes for a layer's activations of one micro-batch, down and up."""
    if not run.activation_offload:
        return 0.0
    moved = 2.0 * run.activation_offload * _kept_bytes(run, framework)
    return moved / host_of(run.device).link_bytes_per_s


def host_bytes(run: TrainingRun, framework: Framework, updated: float, layers: float) -> float:
    """Bytes of host memory that a device needs; `layers` are the layers of its rank."""
    held = _HELD_BYTES * updated if run.optimizer_offload else 0.0
    if run.activation_offload:
        in_flight = run.in_flight[0]
        held += run.activation_offload * _kept_bytes(run, framework) * layers * in_flight
    return held


def host_limit_bytes(host: Host) -> float:
    """Host memory available to a device's share of a run."""
    return USABLE_SHARE * host.memory_bytes


def _kept_bytes(run: TrainingRun, framework: Framework) -> float:
    """Activations kept by an average layer per micro-batch."""
    tensors = run_tensors(run, framework)
    share = run.model.num_expert_layers / run.model.num_layers

    def of(kind: str) -> float:
        layer = tensors.layer(kind)
        return (1 - share) * layer.dense + share * layer.expert

    if run.recompute == "full" and run.recompute_layers:
        again = min(1.0, run.recompute_layers * run.degrees.num_stages / run.model.num_layers)
        return again * of("full") + (1 - again) * of("none")
    return of(run.recompute)


def host_memory_short(run: TrainingRun) -> str:
    """Message if host memory is too small for the offloaded data, otherwise ""."""
    if not (run.optimizer_offload or run.activation_offload):
        return ""
    host = host_of(run.device)
    framework = load_framework(run.stack)
    needed = host_bytes(run, framework, updated_parameters(run, framework), stage_layers(run)[0])
    if needed <= host_limit_bytes(host):
        return ""
    return (
        f"needs {needed / 1e9:.0f} GB of host memory per device, {host.name} has "
        f"{host_limit_bytes(host) / 1e9:.0f} GB to use"
    )
