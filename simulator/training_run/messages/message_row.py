"""The messages of a run as features: of a layer, between stages, and of data parallelism."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.collectives import NOTHING, CollectiveTime
from simulator.training_run.framework.framework import Framework
from simulator.training_run.messages.rank_group import (
    RankGroup,
    context_group,
    data_group,
    expert_group,
    expert_replicas,
    tensor_group,
)
from simulator.training_run.messages.run_links import Links, moved, sent, steps
from simulator.training_run.messages.step_messages import data_messages, worker_messages
from simulator.training_run.run.training_run import NetworkLevel, TrainingRun
from simulator.training_run.work.layer_work import element_bytes
from simulator.training_run.work.muon_work import rank_matrices
from simulator.values.degrees import AXIS_ORDERS


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelCut:
    """Sends of a pipeline over the slowest network level beyond the nodes' network: between parts
    such as racks (over spines) or sites (over lines).

    All devices of a part share its uplink. Only the stages next to a cut between parts send over
    it, and they share its whole bandwidth. No fitted coefficient is used: time is bytes / (rate x
    efficiency) plus the given latency. Collectives over these levels: simulator/collectives.py.

    bytes_s, latency_s   seconds of one send
    crossings            number of cuts between parts
    """

    bytes_s: float = 0.0
    latency_s: float = 0.0
    crossings: int = 0


def level_cut(run: TrainingRun, size_bytes: float, levels: Sequence[NetworkLevel]) -> LevelCut:
    """Sends of `size_bytes` from each rank of a stage to the next stage, at the slowest level."""
    degrees = run.degrees
    if degrees.pp < 2:
        return LevelCut()
    stride = degrees.stride("pp")
    slowest = LevelCut()
    for level in levels:
        part = level.part_devices
        if part % stride:
            # A stage is larger than a part or crosses its boundary: every device may send.
            senders, crossings = part, degrees.pp - 1
        else:
            # The worst pipeline among those starting at a multiple of gcd(pp, stages per part).
            held = part // stride
            offset = held - math.gcd(degrees.pp, held)
            senders, crossings = stride, (offset + degrees.pp - 1) // held
        seconds = size_bytes * senders / (part * level.bytes_per_s_per_device)
        if crossings and seconds + level.latency_s > slowest.bytes_s + slowest.latency_s:
            slowest = LevelCut(bytes_s=seconds, latency_s=level.latency_s, crossings=crossings)
    return slowest


def cuts_cross_nodes(run: TrainingRun) -> bool:
    """Whether a send between stages leaves its node."""
    degrees, node = run.degrees, run.node_devices
    if degrees.num_devices <= node:
        return False
    return degrees.axis_order == AXIS_ORDERS[0] or node % (degrees.stride("pp") * degrees.pp) != 0


def layer_messages_row(run: TrainingRun, stack: Framework, links: Links) -> dict[str, float]:
    """Features of a layer's messages and of sends between stages, by their names in `Features`."""
    degrees = run.degrees
    h, width = run.model.hidden_size, element_bytes(run)
    boundary = run.tokens * h * width
    tensor = NOTHING
    if degrees.tp > 1:
        # Two all-reduces per pass, or with sequence parallelism two pairs of all-gather and
        # reduce-scatter (Korthikanti et al., arXiv 2205.05198, section 4.2.2). In-network reduction
        # does not speed up the latter.
        operations = ("all_gather", "reduce_scatter") if run.sequence_parallel else ("all_reduce",)
        for operation in operations:
            each = moved(operation, boundary, tensor_group(run), links)
            tensor += each * run.model.blocks_per_layer
    expert = NOTHING
    if degrees.ep > 1 and run.model.num_experts:
        share = run.model.num_expert_layers / run.model.num_layers
        # All ranks wait for the fullest rank, which receives more tokens.
        routed = run.tokens * run.model.expert_width * width * run.model.top_k
        routed *= run.fullest_expert_load / (degrees.tp if run.sequence_parallel else 1)
        expert = moved("all_to_all", routed, expert_group(run), links) * (2.0 * share)
        if stack.sends_tokens_once:
            expert = _sent_once(expert, run.model.top_k, expert_group(run), links)
    context = NOTHING
    if degrees.cp > 1:
        kv = run.tokens * width * 2 * run.model.head_size * run.model.num_kv_heads / degrees.tp
        context = moved("all_gather", kv * degrees.cp, context_group(run), links)
    cut, level = NOTHING, LevelCut()
    crosses = degrees.pp > 1 and cuts_cross_nodes(run)
    if degrees.pp > 1:
        share = degrees.tp if run.sequence_parallel or stack.splits_sends else 1
        cut = sent(boundary / share, links, crosses_nodes=crosses)
        level = level_cut(run, boundary / share, run.far_levels)
    tensor_steps = steps(tensor)
    return {
        **_levels("tensor", tensor, latencies=False),
        "tensor_inner_steps": tensor_steps[0],
        "tensor_outer_steps": 0.0 if stack.blocking_messages else tensor_steps[1],
        "tensor_host_hops": tensor_steps[1] if stack.blocking_messages else 0.0,
        "tensor_nodes": tensor_group(run).nodes(links.node_devices),
        **_levels("expert", expert),
        "expert_nodes": expert_group(run).nodes(links.node_devices),
        **_levels("context", context),
        "context_nodes": context_group(run).nodes(links.node_devices),
        "cut_inner": cut.inner_s,
        "cut_outer": cut.outer_s,
        "cut_steps": float(degrees.pp > 1),
        "cut_far": level.bytes_s,
        "cut_far_latency": level.latency_s,
        "cut_crossings": float(level.crossings),
    }


def mesh_messages_row(run: TrainingRun, stack: Framework, links: Links) -> dict[str, float]:
    """Features of weight gathering and gradient exchange, by their names in `Features`."""
    gather, reduce = data_messages(run, stack, links)
    sync = worker_messages(run, stack, links)
    muon = muon_messages(run, links)
    return {
        **_levels("gather", gather, latencies=False),
        "gather_steps": sum(steps(gather)),
        **_levels("reduce", reduce, latencies=False),
        "reduce_steps": sum(steps(reduce)),
        "data_nodes": data_group(run).nodes(links.node_devices),
        **_levels("sync", sync),
        **_levels("muon", muon),
    }


def _levels(kind: str, time: CollectiveTime, *, latencies: bool = True) -> dict[str, float]:
    """A time by levels, as features. `latencies`: include those of the inner and outer links;
    otherwise they are counted as steps."""
    inner, outer = (time.inner_latency_s, time.outer_latency_s) if latencies else (0.0, 0.0)
    return {
        f"{kind}_inner": time.inner_s + inner,
        f"{kind}_outer": time.outer_s + outer,
        f"{kind}_far": time.far_s + time.far_latency_s,
    }


def _sent_once(
    copies: CollectiveTime, top_k: int, group: RankGroup, links: Links
) -> CollectiveTime:
    """The all-to-all of a group if a token is sent once per node, instead of once per expert.

    copies  the all-to-all with a copy per expert

    DeepEP (github.com/deepseek-ai/DeepEP, README, "normal kernels": forwarding from the network to
    the links inside the node) and NVIDIA's HybridEP send once per node. Megatron-Core's older
    `alltoall` dispatcher sends a copy to each expert.
    """
    nodes = group.ranks / group.within(links.node_devices)
    share = reached(nodes, top_k) / top_k
    return replace(copies, outer_s=share * copies.outer_s, far_s=share * copies.far_s)


def reached(nodes: float, top_k: int) -> float:
    """Expected number of nodes per token, if its k experts are uniformly distributed over n nodes.

    Routers with a limit (DeepSeek-V3: four nodes) reach fewer.

    >>> reached(1, 8), round(reached(8, 8), 2)
    (1.0, 5.25)
    """
    return nodes * (1.0 - (1.0 - 1.0 / nodes) ** top_k)


_MOMENTUM_BYTES = 2.0


def muon_messages(run: TrainingRun, links: Links) -> CollectiveTime:
    """Time per step in which Muon gathers matrices that are split between ranks; zero for other
    optimizers.

    Newton-Schulz needs whole matrices. Momenta are sent in bf16 (Liu et al., arXiv 2502.16982,
    section 2.3, "DP Gather"; Megatron-LM, `--muon-tp-mode duplicated`):

    - tensor parallelism: each matrix is gathered from the ranks that split it;
    - states sharded over replicas (ZeRO 1 and 2): a matrix that is cut between two ranks is
    gathered;
    - weights split over all replicas (ZeRO 3): each matrix goes to one rank and its update back.
    """
    time = NOTHING
    groups = (data_group(run), expert_replicas(run))
    for matrices, group in zip(rank_matrices(run), groups, strict=False):  # models without experts
        size = _MOMENTUM_BYTES * matrices.elements
        if matrices.splits > 1:
            whole = _MOMENTUM_BYTES * matrices.whole_elements * matrices.handled
            time += moved("all_gather", whole, tensor_group(run), links)
        if matrices.shards > 1:
            if run.zero_stage == 3:
                time += moved("all_to_all", size / matrices.shards, group, links) * 2.0
            else:
                time += moved("all_gather", size * matrices.cut, group, links)
    return time
