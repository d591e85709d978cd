"""The physical quantities in the step time of runs, as arrays over the runs.

None is fitted: they are seconds at the speed of measured surfaces and data sheets, bytes, kernels
and counts. `step_time.py` combines them with the coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from simulator.training_run.framework.framework import load_framework
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.feature_row import layer_row, mesh_row, precisions, thrashes
from simulator.training_run.step.idle_share import idle_share
from simulator.training_run.work.layer_work import LayerWork, head_work, layer_work
from simulator.training_run.work.work_seconds import work_seconds

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Arrays [runs], per layer and micro-batch unless stated otherwise.

    layers, last_layers   of the fullest stage, of the last stage; all_layers of the model
    matmul_*, attention_*  seconds; grouped_* of experts' matmuls; peak_* of `matmul_*` at the
                          datasheet's peak
    state_*               seconds of the recurrence of states, including its bytes
    cast_*                bytes of casts to fewer bits over the device's bandwidth, in seconds
    pass_*, score_*       bytes over the device's bandwidth, in seconds
    kernels_*             launched by the host; launches  1 if it launches any, 0 if a whole step is
                          one program
    measured_step_s       constant time of a step, if the framework's file has it; fitted_steps 1 if
                          it does not and the host launches kernels
    recomputed_*          share of the forward's matmuls, attention and passes that is recomputed in
                          the backward; routed: experts' matmuls and messages
    head_*                of the logits and the loss, per micro-batch; head_peak of their matmuls
                          at the datasheet's peak, head_accumulation of adding the gradients of
                          their weights to the sums
    tensor_*              collectives of tensor parallelism, forward (backward as many)
    expert_*              all-to-alls of experts, forward (backward as many)
    context_*             of context parallelism, forward (backward twice)
    cut_*                 one send between stages, one direction
    gather_*              gathering a layer's sharded weights once (ZeRO-3), reducing its gradients
    reduce_*              exchanging gradients and weights once per step
    sync_*                exchanging weights between the workers of local steps, per step
    muon_*                gathering the matrices that Muon makes orthogonal, per step
    *_inner, *_outer      seconds over inner and outer links; *_inner_steps, ... latency steps
    *_nodes               number of nodes from the first rank of a group to its last; data_* of the
                          groups that gather weights and exchange gradients; nodes  of the run
    tensor_host_hops      hops of tensor parallelism between nodes if hosts block on messages
    *_far                 seconds over the slowest level beyond (message_row.py), 0 without any;
                          cut_far_latency of a send, cut_crossings cuts between its parts
    wide_*                additional seconds of a layer in bf16 over the run's lower precision;
                          wide_first, wide_last number of such layers in the first and last stage
    host_step_s           an optimizer in host memory, per step; host_sum_s  adding a micro-batch's
                          gradients there, except the first's; host_layer_s  a layer's kept tensors,
                          to the host and back; overlaps_host  1 if both overlap with compute;
                          gather_host_s  a layer's shards, to the device for gathers and back
    overlapped_exchange   share of the exchange's messages that overlap with the passes of a
                          micro-batch
    overlaps_experts      share of the passes that experts' all-to-alls overlap with
                          (`paired_share`)
    extra_pass_s          memory traffic of compression and outer optimizers, per step
    orthogonal_s          Muon's products, at the surfaces' speed, per step
    optimizer_s           streaming the optimizer's bytes at the device's bandwidth
    accumulation_s        adding a layer's gradients to their sums, per micro-batch
    idle_share            of zero-bubble and interleaved schedules: idle time of the step over a
                          stage's time per micro-batch (0 for others, which have a closed form)
    waiting_ranks         ranks of tensor parallelism's collectives that wait for the host, forward
    waiting_buckets       gradient buckets that wait for the host, times their ranks, per step
    copied_slices         slices of gathered weights copied to their tensors, per step
    stalls                1 if messages between stages stall (blocked_host.py)
    """

    microbatches: Array
    pp: Array
    vpp: Array
    nodes: Array
    layers: Array
    last_layers: Array
    all_layers: Array
    matmul_forward: Array
    matmul_backward: Array
    peak_forward: Array
    peak_backward: Array
    grouped_forward: Array
    grouped_backward: Array
    attention_forward: Array
    attention_backward: Array
    state_forward: Array
    state_backward: Array
    pass_forward: Array
    pass_backward: Array
    cast_forward: Array
    cast_backward: Array
    score_forward: Array
    launches: Array
    fitted_steps: Array
    measured_step_s: Array
    kernels_forward: Array
    kernels_backward: Array
    recomputed_matmul: Array
    recomputed_routed: Array
    recomputed_attention: Array
    recomputed_pass: Array
    head_matmul: Array
    head_peak: Array
    head_pass: Array
    head_accumulation: Array
    tensor_inner: Array
    tensor_outer: Array
    tensor_inner_steps: Array
    tensor_outer_steps: Array
    tensor_host_hops: Array
    expert_inner: Array
    expert_outer: Array
    context_inner: Array
    context_outer: Array
    cut_inner: Array
    cut_outer: Array
    cut_steps: Array
    gather_inner: Array
    gather_outer: Array
    gather_steps: Array
    reduce_inner: Array
    reduce_outer: Array
    reduce_steps: Array
    optimizer_s: Array
    accumulation_s: Array
    idle_share: Array
    waiting_ranks: Array
    waiting_buckets: Array
    copied_slices: Array
    stalls: Array
    tensor_far: Array
    expert_far: Array
    context_far: Array
    gather_far: Array
    reduce_far: Array
    cut_far: Array
    cut_far_latency: Array
    cut_crossings: Array
    sync_inner: Array
    sync_outer: Array
    sync_far: Array
    muon_inner: Array
    muon_outer: Array
    muon_far: Array
    orthogonal_s: Array
    extra_pass_s: Array
    wide_matmul_forward: Array
    wide_matmul_backward: Array
    wide_grouped_forward: Array
    wide_grouped_backward: Array
    wide_first: Array
    wide_last: Array
    host_step_s: Array
    host_sum_s: Array
    host_layer_s: Array
    gather_host_s: Array
    overlaps_host: Array
    overlaps_experts: Array
    overlapped_exchange: Array
    tensor_nodes: Array
    expert_nodes: Array
    context_nodes: Array
    data_nodes: Array

    def rows(self, index: NDArray[np.intp]) -> Features:
        """The features of some of the runs. An array of one number applies to all runs; only
        `microbatches` is expanded to one number per run."""
        found = {f.name: of_rows(getattr(self, f.name), index) for f in fields(Features)}
        found["microbatches"] = np.broadcast_to(found["microbatches"], index.shape)
        return Features(**found)


def of_rows(values: Array, index: NDArray[np.intp] | slice) -> Array:
    """The values of some of the runs; an array of one number applies to all."""
    return values if values.size == 1 else values[index]


def features(runs: Sequence[TrainingRun], *, all_fit: bool = False) -> Features:
    """The features of runs, in their order.

    all_fit  skip the memory check: the runs are known to fit, or are refused elsewhere
    """
    table = []
    for run, row in zip(runs, _layer_rows(runs), strict=True):
        stack = load_framework(run.stack)
        row |= mesh_row(run, stack)
        if not all_fit and not row["stalls"]:
            row["stalls"] = float(thrashes(run, stack))
        row["idle_share"] = idle_share(run, row)
        table.append(row)
    names = [f.name for f in fields(Features)]
    return Features(**{name: np.asarray([row[name] for row in table]) for name in names})


def layer_features(runs: Sequence[TrainingRun]) -> dict[str, Array]:
    """Name -> [runs] features of a layer: its kernels, its messages, and sends between stages."""
    return _columns(_layer_rows(runs))


def mesh_features(runs: Sequence[TrainingRun]) -> dict[str, Array]:
    """Name -> [runs] features of the placement of layers, weights and gradients on ranks."""
    return _columns([mesh_row(run, load_framework(run.stack)) for run in runs])


def _columns(table: Sequence[Mapping[str, float]]) -> dict[str, Array]:
    return {name: np.asarray([row[name] for row in table]) for name in table[0]}


def _layer_rows(runs: Sequence[TrainingRun]) -> list[dict[str, float]]:
    # Runs that differ only in their mesh have equal work.
    computed = {_work_key(each): each for run in runs for each in precisions(run)}
    works = {key: _works(run) for key, run in computed.items()}
    found = iter(work_seconds([(computed[k].device, work) for k in works for work in works[k]]))
    seconds = {key: (next(found), next(found), next(found)) for key in works}
    table = []
    for run in runs:
        low, wide = (_work_key(each) for each in (run, precisions(run)[-1]))
        table.append(layer_row(run, works[low], seconds[low], seconds[wide]))
    return table


def _works(run: TrainingRun) -> tuple[LayerWork, LayerWork, LayerWork]:
    """The work of a dense layer, of a layer with experts, and of the head."""
    stack, experts = load_framework(run.stack), run.model.num_experts > 0
    return (
        layer_work(run, stack, experts=False),
        layer_work(run, stack, experts=experts, imbalance=run.fullest_expert_load),
        head_work(run, stack),
    )


def _work_key(run: TrainingRun) -> tuple[object, ...]:
    """Key of the values of a run that `layer_work` and `head_work` use."""
    return (
        run.device,
        run.stack,
        run.model,
        run.precision,
        run.degrees.tp,
        run.degrees.cp,
        run.degrees.ep,
        run.sequence_parallel,
        run.micro_batch,
        run.seq_len,
        run.document_length,
        run.fullest_expert_load,
        run.lora,
    )
