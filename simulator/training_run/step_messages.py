"""What data parallelism sends: gradients and weights, compressed or not, and workers' averages."""

from __future__ import annotations

from simulator.training_run.framework import Framework
from simulator.training_run.gradient_exchange import (
    GradientMessage,
    compressed,
    expert_sides,
    gradient_bytes,
    outer_pass_bytes,
    shared_sides,
)
from simulator.training_run.layer_work import element_bytes, padded_vocabulary
from simulator.training_run.message_seconds import Links, Messages
from simulator.training_run.rank_group import RankGroup, data_group, expert_replicas, worker_group
from simulator.training_run.rank_parameters import expert_ranks, layer_parameters, rank_parameters
from simulator.training_run.run_links import moved_messages
from simulator.training_run.stage_layers import stage_layers
from simulator.training_run.training_run import TrainingRun


def data_messages(run: TrainingRun, stack: Framework, links: Links) -> tuple[Messages, Messages]:
    """Of ZeRO-3 per layer and micro-batch (gathered twice, reduced once), and once per step."""
    group, stride = data_group(run), run.tp
    if group.ranks < 2 or run.lora:
        return Messages(), Messages()
    weight = element_bytes(run) if run.precision == "fp32" else stack.sent_weight_bytes
    gradient = gradient_bytes(run, stack.summed_gradient_bytes)
    if run.zero_stage == 3:
        layer = layer_parameters(run)
        gather = moved_messages(run, links, "all_gather", layer * weight, group, stride)
        reduce = moved_messages(run, links, "reduce_scatter", layer * gradient, group, stride)
        return gather * 2.0 + reduce, Messages()
    shared, experts = rank_parameters(run, stack)
    reduce = Messages()
    replicas = expert_replicas(run)
    if run.compression:
        for message, ranks in _compressed(run, stack):
            reduce += moved_messages(
                run, links, message.operation, message.size_bytes, ranks, stride
            )
    for count, ranks in ((shared, group), (experts, replicas)):
        weights = count * weight
        if run.zero_stage >= 1:
            if not run.compression:
                reduce += moved_messages(
                    run, links, "reduce_scatter", count * gradient, ranks, stride
                )
            reduce += moved_messages(run, links, "all_gather", weights, ranks, stride)
        elif not run.compression:
            reduce += moved_messages(run, links, "all_reduce", count * gradient, ranks, stride)
    return Messages(), reduce


def _compressed(run: TrainingRun, stack: Framework) -> list[tuple[GradientMessage, RankGroup]]:
    """The compressed gradients' messages: of what all replicas have alike, and of experts."""
    shared, experts = rank_parameters(run, stack)
    full, _ = stage_layers(run)
    tables = padded_vocabulary(run, stack) / run.tp + run.model.hidden_size
    found = []
    for count, sides, ranks in (
        (shared, full * shared_sides(run) + tables, data_group(run)),
        (experts, full * expert_sides(run, expert_ranks(run)), expert_replicas(run)),
    ):
        if count and ranks.ranks > 1:
            found.append((compressed(run, count, sides, ranks.ranks), ranks))
    return found


def worker_messages(run: TrainingRun, stack: Framework, links: Links) -> Messages:
    """Averaging the workers' weights in fp32 every `local_steps` steps, per step: every rank of a
    worker averages its share with the other workers' and the worker gathers them."""
    if run.local_workers < 2 or run.lora:
        return Messages()
    size = 4.0 * sum(rank_parameters(run, stack))
    across, inside = worker_group(run), data_group(run)
    share = size / run.sharing_ranks
    found = moved_messages(run, links, "all_reduce", share, across, across.axes[0][1])
    if run.zero_stage < 3:
        found += moved_messages(run, links, "all_gather", size, inside, run.tp)
    return found * (1.0 / run.local_steps)


def extra_pass_bytes(run: TrainingRun, stack: Framework) -> float:
    """Bytes that compression and the outer optimizer of local steps stream, per step."""
    if run.local_workers < 2 and not run.compression:
        return 0.0
    moved = outer_pass_bytes(run, sum(rank_parameters(run, stack)))
    if run.compression and run.zero_stage < 3 and not run.lora:
        moved += sum(message.pass_bytes for message, _ in _compressed(run, stack))
    return moved
