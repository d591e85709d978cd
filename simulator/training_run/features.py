"""The physical quantities of described runs that a step time is made of, as arrays over the runs.

Nothing here is fitted: seconds at the surfaces' and datasheets' speeds, bytes, kernels and counts.
`step_time.py` puts them together with the coefficients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

from profiles.hardware.catalog import get_device, get_link, node_design
from profiles.hardware.collective_curve import curves_on
from profiles.hardware.host import host_of
from simulator.training_run.blocked_host import blocked_host
from simulator.training_run.far_seconds import FarCut, far_collective_s, far_cut
from simulator.training_run.gradient_exchange import (
    GradientMessage,
    compressed,
    expert_sides,
    gradient_bytes,
    outer_pass_bytes,
    shared_sides,
)
from simulator.training_run.host_offload import (
    activation_host_s,
    host_bytes,
    host_limit_bytes,
    optimizer_host_s,
)
from simulator.training_run.idle_share import idle_share
from simulator.training_run.layer_work import (
    LayerWork,
    element_bytes,
    head_work,
    layer_work,
    padded_vocabulary,
)
from simulator.training_run.message_seconds import Links, Messages, collective, send
from simulator.training_run.network_text import network_of
from simulator.training_run.rank_group import (
    AXIS_ORDERS,
    RankGroup,
    context_group,
    data_group,
    expert_group,
    expert_replicas,
    stage_stride,
    tensor_group,
    worker_group,
)
from simulator.training_run.run_conditions import BLOCK_SCALED, LOW_PRECISIONS
from simulator.training_run.run_stack import RunStack, load_run_stack
from simulator.training_run.training_run import TrainingRun
from simulator.training_run.work_seconds import WorkSeconds, work_seconds

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """[runs] each; per layer and micro-batch where not said otherwise.

    layers, last_layers   of the fullest stage, of the last stage; all_layers of the model
    matmul_*, attention_*  seconds; grouped_* of experts' matmuls; peak_* of `matmul_*` at the
                          datasheet's peak
    state_*               seconds of the recurrence of states, with its bytes
    cast_*                bytes of casts to fewer bits, likewise
    pass_*, score_*       bytes over the device's bandwidth, in seconds
    kernels_*             launched by the host
    socket_calls          tensor-parallel collectives between processes of both sockets, forward
    tensor_rings          ring steps of tensor parallelism's collectives that cross nodes, forward
    recomputed_*          share of the forward's matmuls, attention and passes that the backward
                          does again
    head_*                of the logits and the loss, per micro-batch; head_peak of their matmuls
                          at the datasheet's peak, head_accumulation of adding the gradients of
                          their weights to the sums
    tensor_*              collectives of tensor parallelism; forward ones, backward as many;
    expert_*              all-to-alls of experts, forward (backward as many)
    context_*             of context parallelism, forward (backward twice)
    cut_*                 one send between stages, one direction; cut_peers are the tensor-parallel
                          ranks that send side by side to another node
    gather_*              gathering a layer's sharded weights once (ZeRO-3), reducing its gradients
    reduce_*              exchanging gradients and weights once per step; reduce_ranks are the
                          ring steps of one such exchange
    sync_*                exchanging weights between the workers of local steps, per step
    *_inner, *_outer      seconds over inner and outer links; *_inner_steps, ... latency steps
    *_far                 seconds over the slowest level beyond (far_seconds.py), 0 without any;
                          cut_far_latency of a send, cut_crossings cuts between its parts
    wide_*                of a layer, what bf16 takes beyond the run's lower precision;
                          wide_first, wide_last so many layers of the first and the last stage
    host_step_s           an optimizer in host memory, per step; host_layer_s  what a layer keeps
                          there, down and up; overlaps_host  1 where both go on beside computing
    extra_pass_s          streaming what compression and outer optimizers move, per step
    optimizer_s           streaming the optimizer's bytes at the device's bandwidth
    accumulation_s        adding a layer's gradients to their sums, per micro-batch
    idle_share            of zero-bubble and interleaved schedules: idle time of the step over a
                          stage's time per micro-batch (0 for others, which have a closed form)
    blocking              1 where the host waits for every message between stages (RunStack)
    tensor_waits          ranks of tensor parallelism's collectives, forward, of such a stack
    tensor_nodes          nodes that a group of tensor parallelism spans
    reduce_buckets        buckets of gradients that such a stack exchanges one by one, once per step
    over_memory           1 where such a stack's run with stages needs more than the device has: if
                          it runs at all, it is by giving memory back and taking it again
    """

    microbatches: Array
    pp: Array
    vpp: Array
    dp: Array
    devices: Array
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
    kernels_forward: Array
    kernels_backward: Array
    socket_calls: Array
    tensor_rings: Array
    recomputed_matmul: Array
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
    expert_inner: Array
    expert_outer: Array
    context_inner: Array
    context_outer: Array
    cut_inner: Array
    cut_outer: Array
    cut_steps: Array
    cut_peers: Array
    gather_inner: Array
    gather_outer: Array
    gather_steps: Array
    reduce_inner: Array
    reduce_outer: Array
    reduce_steps: Array
    reduce_ranks: Array
    optimizer_s: Array
    accumulation_s: Array
    idle_share: Array
    blocking: Array
    tensor_waits: Array
    tensor_nodes: Array
    reduce_buckets: Array
    over_memory: Array
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
    extra_pass_s: Array
    wide_forward: Array
    wide_backward: Array
    wide_grouped_forward: Array
    wide_grouped_backward: Array
    wide_first: Array
    wide_last: Array
    host_step_s: Array
    host_layer_s: Array
    overlaps_host: Array

    def rows(self, index: NDArray[np.intp]) -> Features:
        """The features of some of the runs."""
        return Features(**{f.name: getattr(self, f.name)[index] for f in fields(Features)})


def features(runs: Sequence[TrainingRun], *, all_fit: bool = False) -> Features:
    """The features of runs, in their order.

    all_fit  they are known to fit, or to be refused if they do not: nobody asks for their memory
    """
    stacks = [load_run_stack(run.stack) for run in runs]
    works: list[tuple[str, LayerWork]] = []
    places: dict[tuple[object, ...], int] = {}
    computed = [(r, s) for run, s in zip(runs, stacks, strict=True) for r in _precisions(run)]
    for run, stack in computed:
        # Runs that differ in their mesh alone compute the same.
        key = _work_key(run)
        if key in places:
            continue
        places[key] = len(works)
        works.append((run.device, layer_work(run, stack, experts=False)))
        fullest = run.expert_imbalance
        has_experts = run.model.num_experts > 0
        expert = layer_work(run, stack, experts=has_experts, imbalance=fullest)
        works.append((run.device, expert))
        works.append((run.device, head_work(run, stack)))
    seconds = work_seconds(works)
    table = []
    for run, stack in zip(runs, stacks, strict=True):
        at = places[_work_key(run)]
        mine = tuple(work for _, work in works[at : at + 3])
        row = _row(run, stack, mine, tuple(seconds[at : at + 3]), fits=all_fit)
        wide = places[_work_key(_precisions(run)[-1])]
        row |= _wide_layers(run, seconds[at : at + 2], seconds[wide : wide + 2])
        table.append(row)
    names = [f.name for f in fields(Features)]
    return Features(**{name: np.asarray([row[name] for row in table]) for name in names})


def _work_key(run: TrainingRun) -> tuple[object, ...]:
    """All that `layer_work` and `head_work` read of a run."""
    return (
        run.device,
        run.stack,
        run.model,
        run.precision,
        run.tp,
        run.cp,
        run.expert_parallel,
        run.sequence_parallel,
        run.micro_batch,
        run.seq_len,
        run.expert_imbalance,
        run.lora,
    )


def _precisions(run: TrainingRun) -> tuple[TrainingRun, ...]:
    """The run, and where some of its layers stay in bf16 the same in bf16."""
    if not run.wide_layers or run.precision not in LOW_PRECISIONS:
        return (run,)
    return run, replace(run, precision="bf16")


_NO_WIDE_LAYERS = {
    "wide_forward": 0.0,
    "wide_backward": 0.0,
    "wide_grouped_forward": 0.0,
    "wide_grouped_backward": 0.0,
    "wide_first": 0.0,
    "wide_last": 0.0,
}


def _wide_layers(
    run: TrainingRun, low: Sequence[WorkSeconds], wide: Sequence[WorkSeconds]
) -> dict[str, float]:
    """What layers in bf16 take beyond those at the run's precision (dense, with experts)."""
    if not run.wide_layers or run.precision not in LOW_PRECISIONS:
        return _NO_WIDE_LAYERS
    share = run.model.num_expert_layers / run.model.num_layers

    def beyond(name: str) -> float:
        dense, expert = (
            getattr(b, name) - getattr(a, name) for a, b in zip(low, wide, strict=True)
        )
        return float(dense * (1 - share) + expert * share)

    full, last = stage_layers(run)
    ends = run.wide_layers if run.pp > 1 else 2 * run.wide_layers
    backward = "frozen_backward_s" if run.lora else "matmul_backward_s"
    return {
        "wide_forward": beyond("matmul_forward_s"),
        "wide_backward": beyond(backward),
        "wide_grouped_forward": beyond("grouped_forward_s"),
        "wide_grouped_backward": beyond("grouped_backward_s"),
        "wide_first": min(float(ends), full),
        "wide_last": min(float(ends), last),
    }


def predicting_layers(run: TrainingRun) -> int:
    """Layers that predict further tokens."""
    return run.model.predicted_ahead * run.model.predicting_layers


def stage_layers(run: TrainingRun) -> tuple[float, float]:
    """Layers of the fullest stage and of the last one.

    Even where pp divides them. Otherwise, where embedding and head count as a layer each
    (Zero Bubble paper, arXiv 2401.10241, section 5.1) and that divides evenly, so; else the first
    stages take one more. Layers that predict further tokens are on the last stage, and they, their
    logits and the loss stand there for a layer each (Megatron-Bridge, recipes/deepseek, layouts of
    DeepSeek-V3 at pp 4, 8 and 16).
    """
    layers, stages = run.model.num_layers, run.pp
    ahead = run.model.predicted_ahead
    if ahead and stages > 1:
        full = float(math.ceil((layers + 2 * ahead + 1) / stages))
        return full, max(0.0, layers - full * (stages - 1)) + predicting_layers(run)
    layers += predicting_layers(run)
    if layers % stages == 0 or stages == 1:
        return layers / stages, layers / stages
    if (layers + 2) % stages == 0:
        full = (layers + 2) / stages
        return full, full - 1
    return float(math.ceil(layers / stages)), float(layers // stages)


def links_of(run: TrainingRun) -> Links:
    """The rates of a run's links: measured curves or rate and efficiency inside a node, the
    adapters' rate as printed between nodes."""
    device = get_device(run.device)
    inner = get_link(node_design(run.device).inner_link)
    network = network_of(run.outer_link, device.name, run.node_devices)
    rate = run.inner_bytes_per_s or inner.bandwidth_bytes_per_s.value * inner.efficiency.value
    measured = not (run.torus or run.inner_bytes_per_s)
    return Links(
        inner_bytes_per_s=rate,
        outer_bytes_per_s=network.bytes_per_s_per_node / run.node_devices,
        node_devices=run.node_devices,
        curve=curves_on(device.name, inner.name, rate, inner.latency_s.value) if measured else None,
        torus=run.torus,
    )


def _row(
    run: TrainingRun,
    stack: RunStack,
    works: tuple[LayerWork, ...],
    seconds: tuple[WorkSeconds, ...],
    *,
    fits: bool,
) -> dict[str, float]:
    model = run.model
    expert_share = model.num_expert_layers / model.num_layers
    bandwidth = get_device(run.device).memory_bandwidth_bytes_per_s.value

    def mixed(dense: float, expert: float) -> float:
        return dense * (1 - expert_share) + expert * expert_share

    dense, expert, head = seconds
    dense_work, expert_work, head_load = works
    backward = "frozen_backward_s" if run.lora else "matmul_backward_s"
    ideal = "frozen_peak_backward_s" if run.lora else "peak_backward_s"
    full, last = stage_layers(run)
    again = _recomputed(run, stack)
    heads = 1.0 + model.predicted_ahead
    blocks = 0.5 * model.blocks_per_layer
    links = links_of(run)
    row = {
        "microbatches": float(run.num_microbatches),
        "pp": float(run.pp),
        "vpp": float(run.vpp),
        "dp": float(run.dp),
        "devices": float(run.num_devices),
        "nodes": float(run.num_nodes),
        "layers": full,
        "last_layers": last,
        "all_layers": float(model.num_layers + predicting_layers(run)),
        "matmul_forward": mixed(dense.matmul_forward_s, expert.matmul_forward_s),
        "matmul_backward": mixed(getattr(dense, backward), getattr(expert, backward)),
        "peak_forward": mixed(dense.peak_forward_s, expert.peak_forward_s),
        "peak_backward": mixed(getattr(dense, ideal), getattr(expert, ideal)),
        "grouped_forward": expert_share * expert.grouped_forward_s,
        "grouped_backward": expert_share * expert.grouped_backward_s,
        "attention_forward": dense.attention_forward_s,
        "attention_backward": dense.attention_backward_s,
        "state_forward": dense.state_forward_s,
        "state_backward": dense.state_backward_s,
        "pass_forward": mixed(dense_work.forward_pass_bytes, expert_work.forward_pass_bytes)
        / bandwidth,
        "pass_backward": mixed(dense_work.backward_pass_bytes, expert_work.backward_pass_bytes)
        / bandwidth,
        "cast_forward": mixed(dense_work.forward_cast_bytes, expert_work.forward_cast_bytes)
        / bandwidth,
        "cast_backward": mixed(dense_work.backward_cast_bytes, expert_work.backward_cast_bytes)
        / bandwidth,
        "score_forward": dense_work.score_bytes / bandwidth,
        "kernels_forward": mixed(
            blocks * stack.kernels_forward,
            _expert_kernels(run, stack, blocks * stack.kernels_forward, products=1),
        ),
        "kernels_backward": mixed(
            blocks * stack.kernels_backward,
            _expert_kernels(run, stack, blocks * stack.kernels_backward, products=2),
        ),
        "recomputed_matmul": again[0],
        "recomputed_attention": again[1],
        "recomputed_pass": again[2],
        "head_matmul": heads * (head.matmul_forward_s + getattr(head, backward)),
        "head_peak": heads * (head.peak_forward_s + getattr(head, ideal)),
        "head_pass": heads
        * (head_load.forward_pass_bytes + head_load.backward_pass_bytes)
        / bandwidth,
    }
    row |= _messages(run, stack, links)
    updated = _updated_parameters(run, stack)
    row["optimizer_s"] = updated * stack.optimizer_traffic_bytes / bandwidth
    if run.optimizer_offload and not run.lora:
        row["optimizer_s"] = 0.0
        row["host_step_s"] = optimizer_host_s(run, stack, updated)
    else:
        row["host_step_s"] = 0.0
    row["host_layer_s"] = activation_host_s(run)
    row["overlaps_host"] = float(stack.overlaps_host)
    row["extra_pass_s"] = _extra_pass_bytes(run, stack) / bandwidth
    layer_gradients = 0.0 if run.lora else _layer_parameters(run)
    row["accumulation_s"] = layer_gradients * stack.accumulation_bytes / bandwidth
    table = 0.0 if run.lora else padded_vocabulary(run, stack) * model.hidden_size / run.tp
    row["head_accumulation"] = table * stack.accumulation_bytes / bandwidth
    row["idle_share"] = idle_share(run, row)
    held = sum(_rank_parameters(run, stack))
    row |= blocked_host(run, stack, rank_parameters=held, fits=fits)
    return row


def _expert_kernels(run: TrainingRun, stack: RunStack, dense: float, *, products: int) -> float:
    """Kernels of a layer with experts: routing, sorting and exchange about double a dense layer's,
    and both of an expert's matmuls are launched for every local expert (`RunStack.expert_kernels`),
    `products` times each; those with a scale per block cast and reorder two operands."""
    each = stack.expert_kernels
    if run.precision in BLOCK_SCALED:
        each += 2 * stack.block_scale_kernels
    return 2 * dense + 2 * products * each * run.model.num_experts / max(1, run.expert_parallel)


def recomputed_share(run: TrainingRun) -> float:
    """Share of the fullest stage's layers that full recomputation runs again."""
    if not run.recompute_layers:
        return 1.0
    full, _ = stage_layers(run)
    return min(1.0, run.recompute_layers * run.vpp / full)


def _recomputed(run: TrainingRun, stack: RunStack) -> tuple[float, float, float]:
    """Shares of the forward's matmuls, attention core and passes that are done again."""
    if run.recompute == "full":
        share = recomputed_share(run)
        return share, share, share
    if run.recompute == "selective":
        return 0.0, 1.0 if stack.attention == "unfused" else 0.0, 0.0
    if run.recompute == "mlp":
        return 0.5, 0.0, 0.5
    if run.recompute == "minimal":
        return 0.0, 0.0, 1.0
    return 0.0, 0.0, 0.0


def _moved(
    run: TrainingRun, links: Links, operation: str, size: float, group: RankGroup, stride: int
) -> Messages:
    """One collective of a run's group: side by side at one stride in the usual order of axes, which
    the coefficients are fitted in, else where its ranks lie."""
    usual = run.axis_order == AXIS_ORDERS[0] and not run.torus
    found = collective(
        operation, size, group.ranks, links, stride=stride, group=None if usual else group
    )
    if not run.far_levels:
        return found
    return replace(found, far_s=far_collective_s(operation, size, group, run.far_levels))


def cuts_cross_nodes(run: TrainingRun) -> bool:
    """Whether a send between stages leaves its node."""
    if run.axis_order == AXIS_ORDERS[0]:
        return run.num_devices // run.pp >= run.node_devices or run.num_devices > run.node_devices
    return run.node_devices % (stage_stride(run) * run.pp) != 0


def _messages(run: TrainingRun, stack: RunStack, links: Links) -> dict[str, float]:
    h, width = run.model.hidden_size, element_bytes(run)
    boundary = run.tokens * h * width
    tensor = Messages()
    if run.tp > 1:
        # Two all-reduces per pass, or with sequence parallelism as many pairs of all-gather and
        # reduce-scatter (Korthikanti et al., arXiv 2205.05198, section 4.2.2), which switches that
        # reduce do not speed up.
        operations = ("all_gather", "reduce_scatter") if run.sequence_parallel else ("all_reduce",)
        for operation in operations:
            each = _moved(run, links, operation, boundary, tensor_group(run), 1)
            tensor += each * run.model.blocks_per_layer
    expert = Messages()
    if run.expert_parallel > 1 and run.model.num_experts:
        share = run.model.num_expert_layers / run.model.num_layers
        # The fullest rank is sent more than the others, and all wait for it.
        routed = run.tokens * run.model.expert_width * width * run.model.top_k
        routed *= run.expert_imbalance / (run.tp if run.sequence_parallel else 1)
        expert = _moved(
            run, links, "all_to_all", routed, expert_group(run), _expert_stride(run)
        ) * (2.0 * share)
    context = Messages()
    if run.cp > 1:
        kv = run.tokens * width * 2 * run.model.head_size * run.model.num_kv_heads / run.tp
        context = _moved(run, links, "all_gather", kv * run.cp, context_group(run), run.tp)
    cut, far = Messages(), FarCut()
    if run.pp > 1:
        share = run.tp if run.sequence_parallel or stack.splits_sends else 1
        cut = send(boundary / share, crosses_nodes=cuts_cross_nodes(run), links=links)
        far = far_cut(run, boundary / share, run.far_levels)
    gather, reduce = _data_messages(run, stack, links)
    sync = _worker_messages(run, stack, links)
    return {
        "socket_calls": 2.0 if run.tp > max(1, links.node_devices // 2) else 0.0,
        "tensor_rings": 4.0 * (run.tp - 1) if run.tp > links.node_devices else 0.0,
        "tensor_inner": tensor.inner_s,
        "tensor_outer": tensor.outer_s,
        "tensor_inner_steps": tensor.inner_steps,
        "tensor_outer_steps": tensor.outer_steps,
        "tensor_far": tensor.far_s,
        "expert_inner": expert.inner_s,
        "expert_outer": expert.outer_s,
        "expert_far": expert.far_s,
        "context_inner": context.inner_s,
        "context_outer": context.outer_s,
        "context_far": context.far_s,
        "cut_inner": cut.inner_s,
        "cut_outer": cut.outer_s,
        "cut_steps": cut.inner_steps + cut.outer_steps,
        "cut_peers": run.tp * cut.outer_steps,
        "cut_far": far.bytes_s,
        "cut_far_latency": far.latency_s,
        "cut_crossings": float(far.crossings),
        "gather_inner": gather.inner_s,
        "gather_outer": gather.outer_s,
        "gather_steps": gather.inner_steps + gather.outer_steps,
        "gather_far": gather.far_s,
        "reduce_ranks": float(run.sharing_ranks - 1) if run.zero_stage < 3 else 0.0,
        "reduce_inner": reduce.inner_s,
        "reduce_outer": reduce.outer_s,
        "reduce_steps": reduce.inner_steps + reduce.outer_steps,
        "reduce_far": reduce.far_s,
        "sync_inner": sync.inner_s,
        "sync_outer": sync.outer_s,
        "sync_far": sync.far_s,
    }


def _expert_stride(run: TrainingRun) -> int:
    # Experts are spread over data-parallel ranks, tp apart, unless they take the tp ranks too.
    return run.tp if run.expert_parallel <= run.dp * run.cp else 1


def _layer_parameters(run: TrainingRun) -> float:
    """Weights of an average layer on one tp (and expert) rank."""
    return _shared_parameters(run) + _expert_parameters(run)


def _shared_parameters(run: TrainingRun) -> float:
    """Of an average layer on one tp rank, what every data-parallel rank has alike."""
    model = run.model
    layer = (model.mixer_parameters + model.small_parameters) / run.tp
    expert_share = model.num_expert_layers / model.num_layers
    layer += (1 - expert_share) * model.dense_density * model.dense_parameters / run.tp
    shared = model.shared_expert_parameters / run.tp
    return layer + expert_share * (shared + model.router_parameters)


def _expert_parameters(run: TrainingRun) -> float:
    """Of an average layer, the experts that one rank holds."""
    model = run.model
    expert_share = model.num_expert_layers / model.num_layers
    return expert_share * model.num_experts * model.expert_parameters / _expert_ranks(run)


def _expert_ranks(run: TrainingRun) -> int:
    """Ranks over which experts are spread; without expert parallelism tensor parallelism splits
    each."""
    return run.expert_parallel if run.expert_parallel > 1 else run.tp


def _expert_replicas(run: TrainingRun) -> int:
    """Ranks that hold the same experts and share their states."""
    return max(1, run.sharing_ranks * run.tp // _expert_ranks(run))


def _rank_parameters(run: TrainingRun, stack: RunStack) -> tuple[float, float]:
    """Weights of the pipeline rank that holds most, its layers and one vocabulary table: those that
    all data-parallel ranks have alike, and experts."""
    full, _ = stage_layers(run)
    table = padded_vocabulary(run, stack) * run.model.hidden_size / run.tp
    tables = 1 if run.pp > 1 or run.model.tied_embeddings else 2
    return full * _shared_parameters(run) + tables * table, full * _expert_parameters(run)


def _updated_parameters(run: TrainingRun, stack: RunStack) -> float:
    if run.lora:
        return 0.0
    shared, experts = _rank_parameters(run, stack)
    if run.zero_stage < 1:
        return shared + experts
    return shared / run.sharing_ranks + experts / _expert_replicas(run)


def host_memory_short(run: TrainingRun) -> str:
    """Why host memory does not hold what the run keeps there, "" where it does."""
    if not (run.optimizer_offload or run.activation_offload):
        return ""
    host = host_of(run.device)
    stack = load_run_stack(run.stack)
    needed = host_bytes(run, _updated_parameters(run, stack), stage_layers(run)[0])
    if needed <= host_limit_bytes(host):
        return ""
    return (
        f"needs {needed / 1e9:.0f} GB of host memory per device, {host.name} has "
        f"{host_limit_bytes(host) / 1e9:.0f} GB to use"
    )


def _data_messages(run: TrainingRun, stack: RunStack, links: Links) -> tuple[Messages, Messages]:
    """Of ZeRO-3 per layer and micro-batch (gathered twice, reduced once), and once per step."""
    group, stride = data_group(run), run.tp
    if group.ranks < 2 or run.lora:
        return Messages(), Messages()
    weight = element_bytes(run) if run.precision == "fp32" else stack.weight_bytes
    gradient = gradient_bytes(run, stack.gradient_bytes)
    if run.zero_stage == 3:
        layer = _layer_parameters(run)
        gather = _moved(run, links, "all_gather", layer * weight, group, stride)
        reduce = _moved(run, links, "reduce_scatter", layer * gradient, group, stride)
        return gather * 2.0 + reduce, Messages()
    shared, experts = _rank_parameters(run, stack)
    reduce = Messages()
    replicas = expert_replicas(run)
    if run.compression:
        for message, ranks in _compressed(run, stack):
            reduce += _moved(run, links, message.operation, message.size_bytes, ranks, stride)
    for count, ranks in ((shared, group), (experts, replicas)):
        weights = count * weight
        if run.zero_stage >= 1:
            if not run.compression:
                reduce += _moved(run, links, "reduce_scatter", count * gradient, ranks, stride)
            reduce += _moved(run, links, "all_gather", weights, ranks, stride)
        elif not run.compression:
            reduce += _moved(run, links, "all_reduce", count * gradient, ranks, stride)
    return Messages(), reduce


def _compressed(run: TrainingRun, stack: RunStack) -> list[tuple[GradientMessage, RankGroup]]:
    """The compressed gradients' messages: of what all replicas have alike, and of experts."""
    shared, experts = _rank_parameters(run, stack)
    full, _ = stage_layers(run)
    tables = padded_vocabulary(run, stack) / run.tp + run.model.hidden_size
    found = []
    for count, sides, ranks in (
        (shared, full * shared_sides(run) + tables, data_group(run)),
        (experts, full * expert_sides(run, _expert_ranks(run)), expert_replicas(run)),
    ):
        if count and ranks.ranks > 1:
            found.append((compressed(run, count, sides, ranks.ranks), ranks))
    return found


def _worker_messages(run: TrainingRun, stack: RunStack, links: Links) -> Messages:
    """Averaging the workers' weights in fp32 every `local_steps` steps, per step: every rank of a
    worker averages its share with the other workers' and the worker gathers them."""
    if run.local_workers < 2 or run.lora:
        return Messages()
    size = 4.0 * sum(_rank_parameters(run, stack))
    across, inside = worker_group(run), data_group(run)
    share = size / run.sharing_ranks
    found = _moved(run, links, "all_reduce", share, across, across.axes[0][1])
    if run.zero_stage < 3:
        found += _moved(run, links, "all_gather", size, inside, run.tp)
    return found * (1.0 / run.local_steps)


def _extra_pass_bytes(run: TrainingRun, stack: RunStack) -> float:
    if run.local_workers < 2 and not run.compression:
        return 0.0
    moved = outer_pass_bytes(run, sum(_rank_parameters(run, stack)))
    if run.compression and run.zero_stage < 3 and not run.lora:
        moved += sum(message.pass_bytes for message, _ in _compressed(run, stack))
    return moved
