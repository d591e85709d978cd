"""Time and host memory of offloading: optimizer states, activations.

Optimizer (Ren et al., ZeRO-Offload, arXiv 2101.06840, section 4): gradients are copied to the host,
the CPU updates the weights in host memory, weights are copied back. Adam in fp32 reads gradient,
master weight and two moments, and writes the last three and a 16-bit copy: 30 bytes per parameter,
at a measured share of the memory bandwidth (ADAM_REACH). If the framework overlaps the three,
blocks of parameters pass through them as a pipeline and the slowest determines the time; otherwise
the times add up.

FSDP also keeps the shards of weights and gradients on the host (torch 2.13,
torch/distributed/fsdp/_fully_shard, CPUOffloadPolicy). A gather first copies fp32 shards to the
device, on the stream of the gather, so both overlap with computing (`shard_copies_s`). Reduced
gradient shards are copied to the host; from the second micro-batch on they are added there, and the
run waits. Adam reads gradient, weight and two moments and writes the last three: 28 bytes. Copies
made once per step are not assumed to overlap.

Activations (Rhu et al., vDNN, arXiv 1602.08124, section 3): kept activations of a layer are copied
to the host in the forward and back in the backward, during the layers' work if the framework
overlaps them.

Host rates are in profiles/data/hosts.
"""

from __future__ import annotations

from profiles.hardware.catalogue.host import Host, host_of
from simulator.memory.run_tensors import run_tensors
from simulator.schedules.in_flight import most_in_flight
from simulator.training_run.framework.framework import Framework, load_framework
from simulator.training_run.messages.step_messages import per_micro_batch
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.rank_parameters import layer_shard, updated_parameters
from simulator.training_run.work.stage_layers import stage_layers

_ADAM_BYTES = 30.0
# Share of the host's memory bandwidth that Megatron's optimizer on the CPU reaches. Qwen3-30B-A3B
# on 16 H100 (tp 2, pp 2, ep 4, batch 8; github.com/NVIDIA-NeMo/Megatron-Bridge b00deab,
# skills/perf-techniques/cpu-offloading/card.yaml, 2026-03-30) took 996 ms per step; with 25, 50, 75
# and 100 % of the states on the host 875, 1488, 2191 and 3193 ms more, and 2881 with overlapped
# transfers. Least squares through 0 over the first four, minus the seconds of the link: 2.73 s for
# 1.91e9 parameters per device. Errors of these five are 3 to 12 %, 6 % on average
# (tests/simulator/test_host_offload.py). Other hosts and frameworks are assumed to reach the same.
ADAM_REACH = 0.27
# Bytes in fp32 per element: of a shard, of Adam's traffic, of adding a gradient to its sum.
_SHARD_BYTES, _FP32_ADAM_BYTES, _ADDED_BYTES = 4.0, 28.0, 12.0
# In addition to the states (12 bytes), the host has the copied gradient.
_HELD_BYTES = 16.0
# FSDP's weights and gradients are in pinned memory, which torch allocates in powers of two (pytorch
# aten/src/ATen/core/CachingHostAllocator.h, `allocate`): 8 of the 16 bytes may double.
_HELD_WITH_PINNED_BYTES = 24.0
# Share of host memory that is left by data loaders, the system and pinned buffers (assumed).
USABLE_SHARE = 0.9


def optimizer_host_s(run: TrainingRun, framework: Framework, updated: float) -> float:
    """Seconds per step of an optimizer in host memory for `updated` parameters on this device."""
    host = host_of(run.device)
    if framework.rules.offloads_shards:
        gathers, reduces = per_micro_batch(run, framework)
        return shard_step_s(host, updated, copies=(gathers == 0) + (reduces == 0))
    down = updated * framework.summed_gradient_bytes / host.link_bytes_per_s
    work = updated * _ADAM_BYTES / (ADAM_REACH * host.memory_bandwidth_bytes_per_s)
    up = updated * framework.sent_weight_bytes / host.link_bytes_per_s
    return max(down, work, up) if framework.overlaps_host else down + work + up


def shard_step_s(
    host: Host,
    elements: float,
    *,
    copies: int,
    traffic: float = _FP32_ADAM_BYTES,
) -> float:
    """Seconds per step of FSDP's optimizer in host memory, for a shard of `elements`.

    traffic  bytes that the optimizer reads and writes per element; default: AdamW
    copies   number of copies over the link per step
    """
    work = elements * traffic / (ADAM_REACH * host.memory_bandwidth_bytes_per_s)
    return work + copies * link_s(host, elements)


def shard_sum_s(host: Host, elements: float) -> float:
    """Seconds in which FSDP adds gradients of `elements` to their sums on the host."""
    return elements * _ADDED_BYTES / (ADAM_REACH * host.memory_bandwidth_bytes_per_s)


def link_s(host: Host, elements: float) -> float:
    """Seconds to copy a shard of `elements` over the host link, in one direction."""
    return elements * _SHARD_BYTES / host.link_bytes_per_s


def gradient_sums_s(run: TrainingRun, framework: Framework, updated: float) -> float:
    """Seconds per step, for each micro-batch after the first, to add the gradients of `updated`
    parameters on the host; 0 unless FSDP sends them there in every micro-batch."""
    _, reduces = per_micro_batch(run, framework)
    if not run.optimizer_offload or run.lora or not framework.rules.offloads_shards or not reduces:
        return 0.0
    return shard_sum_s(host_of(run.device), updated)


def shard_copies_s(run: TrainingRun, framework: Framework) -> float:
    """Seconds per micro-batch of copying a layer's shards over the host link: to the device for
    every gather, to the host for every reduction; 0 if the framework leaves shards on the
    device."""
    if not run.optimizer_offload or run.lora or not framework.rules.offloads_shards:
        return 0.0
    return sum(per_micro_batch(run, framework)) * link_s(host_of(run.device), layer_shard(run))


def activation_host_s(run: TrainingRun, framework: Framework) -> float:
    """Seconds of copying a layer's activations of one micro-batch over the host link, both ways."""
    if not run.activation_offload:
        return 0.0
    moved = 2.0 * run.activation_offload * _kept_bytes(run, framework)
    return moved / host_of(run.device).link_bytes_per_s


def host_bytes(run: TrainingRun, framework: Framework, layers: float) -> float:
    """Upper bound on the host memory in bytes that a device needs; `layers` are the layers of its
    rank."""
    if not (run.optimizer_offload or run.activation_offload):
        return 0.0
    each = _HELD_WITH_PINNED_BYTES if framework.rules.offloads_shards else _HELD_BYTES
    held = each * updated_parameters(run, framework) if run.optimizer_offload else 0.0
    if run.activation_offload:
        pp, vpp = run.degrees.pp, run.degrees.vpp
        in_flight = most_in_flight(run.schedule, pp, run.num_microbatches, vpp)[0]
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
    needed = host_bytes(run, framework, stage_layers(run)[0])
    if needed <= host_limit_bytes(host):
        return ""
    return (
        f"needs {needed / 1e9:.0f} GB of host memory per device, {host.name} has "
        f"{host_limit_bytes(host) / 1e9:.0f} GB to use"
    )
