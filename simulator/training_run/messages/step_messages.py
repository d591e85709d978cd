"""Messages of data parallelism: gradients and weights, and averages of local steps' workers."""

from __future__ import annotations

from simulator.collectives import NOTHING, CollectiveTime
from simulator.training_run.framework.executor_states import gathers_per_micro_batch
from simulator.training_run.framework.framework import Framework
from simulator.training_run.messages.gradient_exchange import (
    GradientMessage,
    compressed,
    expert_sides,
    gradient_buckets,
    gradient_bytes,
    outer_pass_bytes,
    shared_sides,
)
from simulator.training_run.messages.rank_group import (
    RankGroup,
    data_group,
    expert_replicas,
    replicate_group,
    worker_group,
)
from simulator.training_run.messages.run_links import Links, moved
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.adapter_work import frozen_weight_bytes
from simulator.training_run.work.layer_work import element_bytes, vocabulary_share
from simulator.training_run.work.rank_parameters import (
    expert_ranks,
    layer_parameters,
    rank_parameters,
)
from simulator.training_run.work.stage_layers import stage_layers


def data_messages(
    run: TrainingRun, stack: Framework, links: Links
) -> tuple[CollectiveTime, CollectiveTime]:
    """Data-parallel communication: (per layer and micro-batch, per step). Only ZeRO 3 has the
    former: two gathers and one reduction.

    Our executor gathers and reduces per micro-batch as in executor_states.gathers_per_micro_batch,
    otherwise once per step. With hybrid sharding, every reduction within a group is followed by an
    all-reduce of the shards across groups (torch 2.13, _fsdp_collectives.py, foreach_reduce).
    """
    group = data_group(run)
    if group.ranks < 2:
        return NOTHING, NOTHING
    weight = element_bytes(run) if run.precision == "fp32" else stack.sent_weight_bytes
    if run.lora:
        return _gathered_frozen(run, stack, group, links, weight), NOTHING
    gradient = gradient_bytes(run, stack.summed_gradient_bytes)
    gathers, reduces = per_micro_batch(run, stack)
    once = NOTHING
    if gathers or reduces:
        layer = layer_parameters(run)
        gather = moved("all_gather", layer * weight, group, links)
        reduce = _reduced(run, layer * gradient, group, links)
        once = gather * gathers + reduce * reduces
    if reduces:
        return once, NOTHING
    shared, experts = rank_parameters(run, stack)
    reduce = NOTHING
    replicas = expert_replicas(run)
    buckets = gradient_buckets(run, stack)
    if run.compression:
        for message, ranks in _compressed(run, stack):
            reduce += moved(message.operation, message.size_bytes, ranks, links)
    for count, ranks in ((shared, group), (experts, replicas)):
        if not run.compression:
            reduce += _reduced(run, count * gradient / buckets, ranks, links) * buckets
        if run.zero_stage >= 1 and not gathers:
            reduce += moved("all_gather", count * weight, ranks, links)
    return once, reduce


def _reduced(run: TrainingRun, size_bytes: float, group: RankGroup, links: Links) -> CollectiveTime:
    """Time to sum gradients of this size over all replicas; the result is sharded if the group
    shards."""
    if not run.zero_stage:
        return moved("all_reduce", size_bytes, group, links)
    shards = moved("reduce_scatter", size_bytes, group, links)
    return shards + moved("all_reduce", size_bytes / group.ranks, replicate_group(run), links)


def _gathered_frozen(
    run: TrainingRun, stack: Framework, group: RankGroup, links: Links, weight: float
) -> CollectiveTime:
    """Gathers of sharded frozen weights, in their stored type.

    The adapters' one small message per step is ignored."""
    gathers, _ = per_micro_batch(run, stack)
    if not gathers:
        return NOTHING
    each = frozen_weight_bytes(run) if run.frozen_type else weight
    return moved("all_gather", layer_parameters(run) * each, group, links) * gathers


def per_micro_batch(run: TrainingRun, stack: Framework) -> tuple[float, float]:
    """(gathers of a layer, reductions of its gradients) per micro-batch."""
    if not stack.own_executor:
        return (2.0, 1.0) if run.zero_stage == 3 else (0.0, 0.0)
    pipelined = run.degrees.pp > 1
    gathers = gathers_per_micro_batch(run.zero_stage, pipelined=pipelined)
    return float(gathers), float(gathers > 0 and not pipelined)


def _compressed(run: TrainingRun, stack: Framework) -> list[tuple[GradientMessage, RankGroup]]:
    """Messages of compressed gradients: of weights that are equal on all replicas, and of
    experts."""
    shared, experts = rank_parameters(run, stack)
    full, _ = stage_layers(run)
    tables = vocabulary_share(run, stack) + run.model.hidden_size
    messages = []
    for count, sides, ranks in (
        (shared, full * shared_sides(run) + tables, data_group(run)),
        (experts, full * expert_sides(run, expert_ranks(run)), expert_replicas(run)),
    ):
        if count and ranks.ranks > 1:
            messages.append((compressed(run, count, sides, ranks.ranks), ranks))
    return messages


def worker_messages(run: TrainingRun, stack: Framework, links: Links) -> CollectiveTime:
    """Time per step of averaging the workers' weights in fp32 every `local_steps` steps.

    Every rank averages its share with the other workers, then each worker gathers the shares."""
    if run.local_workers < 2 or run.lora:
        return NOTHING
    size = 4.0 * sum(rank_parameters(run, stack))
    across, inside = worker_group(run), data_group(run)
    share = size / run.sharing_ranks
    time = moved("all_reduce", share, across, links)
    if run.zero_stage < 3:
        time += moved("all_gather", size, inside, links)
    return time * (1.0 / run.local_steps)


def extra_pass_bytes(run: TrainingRun, stack: Framework) -> float:
    """Memory traffic per step of compression and of local steps' outer optimizer, in bytes."""
    if run.local_workers < 2 and not run.compression:
        return 0.0
    moved = outer_pass_bytes(run, sum(rank_parameters(run, stack)))
    if run.compression and run.zero_stage < 3 and not run.lora:
        moved += sum(message.pass_bytes for message, _ in _compressed(run, stack))
    return moved
