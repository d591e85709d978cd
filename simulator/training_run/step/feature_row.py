"""The features of one run: what a layer makes from its seconds, and what its mesh makes."""

from __future__ import annotations

from profiles.hardware.catalogue.catalog import get_device
from simulator.memory.footprint import footprint
from simulator.memory.host_offload import activation_host_s, optimizer_host_s
from simulator.schedules.schedule import schedule_kind
from simulator.training_run.framework.blocked_host import stalls, waiting_ranks
from simulator.training_run.framework.framework import Framework
from simulator.training_run.framework.graph_compiler import compiles_graphs
from simulator.training_run.framework.run_conditions import BLOCK_SCALED
from simulator.training_run.messages.gradient_buckets import copied_slices, waiting_buckets
from simulator.training_run.messages.message_row import layer_messages_row, mesh_messages_row
from simulator.training_run.messages.run_links import links_of
from simulator.training_run.messages.step_messages import extra_pass_bytes
from simulator.training_run.run.low_bits import saved_in_matrices_bytes, saved_moments_bytes
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.work.adapter_work import adapter_work
from simulator.training_run.work.layer_work import LayerWork, vocabulary_share
from simulator.training_run.work.muon_work import rank_matrices
from simulator.training_run.work.rank_parameters import (
    layer_parameters,
    updated_parameters,
)
from simulator.training_run.work.stage_layers import (
    predicting_layers,
    recomputed_shares,
    stage_layers,
)
from simulator.training_run.work.wide_layers import wide_stages_row
from simulator.training_run.work.work_seconds import WorkSeconds

# Features and the seconds that they are made of, averaged over dense layers and those with experts.
_AVERAGED = tuple(
    (f"{name}_{way}", f"{name}_{way}_s")
    for name in ("matmul", "peak", "grouped")
    for way in ("forward", "backward")
)
# Those that are alike in both.
_OF_DENSE = tuple(
    (f"{name}_{way}", f"{name}_{way}_s")
    for name in ("attention", "state")
    for way in ("forward", "backward")
)
# Passes with their fields of bytes and kernels, and products of each matmul in them.
_WAYS = (
    ("forward", "forward_pass_bytes", "forward_cast_bytes", "kernels_forward", 1),
    ("backward", "backward_pass_bytes", "backward_cast_bytes", "kernels_backward", 2),
)


def layer_row(
    run: TrainingRun,
    stack: Framework,
    works: tuple[LayerWork, ...],
    seconds: tuple[WorkSeconds, ...],
) -> dict[str, float]:
    """The features of a run's layers, of its head and of the sends between its stages, by name; but
    those of `wide_layers.py`.

    works, seconds  of a dense layer, of one with experts, of the head
    """
    model = run.model
    expert_share = model.num_expert_layers / model.num_layers
    bandwidth = get_device(run.device).memory_bandwidth_bytes_per_s.value

    def average(dense: float, expert: float) -> float:
        return dense * (1 - expert_share) + expert * expert_share

    dense, expert, head = seconds
    dense_work, expert_work, head_load = works
    heads = 1.0 + model.predicted_ahead
    blocks = 0.5 * model.blocks_per_layer
    adapters = adapter_work(run)
    # Where the whole graph is one program the host launches that, not its kernels.
    counts = stack.layer_counts(model)
    launched = float(counts.kernels_forward > 0 and not compiles_graphs(run))
    dispatched = launched * (stack.tensor_dispatch if run.degrees.tp > 1 else 1.0)
    row = {
        "launches": launched,
        "fitted_steps": launched if stack.step_ms == 0 else 0.0,
        "measured_step_s": 1e-3 * stack.step_ms * launched,
        "all_layers": float(model.num_layers + predicting_layers(run)),
        "score_forward": dense_work.score_bytes / bandwidth,
        "head_matmul": heads * (head.matmul_forward_s + head.matmul_backward_s),
        "head_peak": heads * (head.peak_forward_s + head.peak_backward_s),
        "head_pass": heads
        * (head_load.forward_pass_bytes + head_load.backward_pass_bytes)
        / bandwidth,
    }
    shares = recomputed_shares(run, stack)
    row |= {
        "recomputed_matmul": shares.matmul,
        "recomputed_routed": shares.routed,
        "recomputed_attention": shares.attention,
        "recomputed_pass": shares.passes,
    }
    for name, field in _AVERAGED:
        row[name] = average(getattr(dense, field), getattr(expert, field))
    for name, field in _OF_DENSE:
        row[name] = getattr(dense, field)
    for way, moved, cast, launches, products in _WAYS:
        passes = average(getattr(dense_work, moved), getattr(expert_work, moved))
        row[f"pass_{way}"] = (passes + getattr(adapters, moved)) / bandwidth
        casts = average(getattr(dense_work, cast), getattr(expert_work, cast))
        row[f"cast_{way}"] = casts / bandwidth
        kernels, added = blocks * getattr(counts, launches), getattr(adapters, launches)
        experts = _expert_kernels(run, stack, kernels, products=products)
        row[launches] = dispatched * average(kernels + added, experts + added)
    row |= layer_messages_row(run, stack, links_of(run))
    row["host_layer_s"] = activation_host_s(run, stack)
    row["overlaps_experts"] = float(schedule_kind(run.schedule).pairs)
    row["overlaps_host"] = float(stack.overlaps_host)
    table = 0.0 if run.lora else vocabulary_share(run, stack) * model.hidden_size
    row["head_accumulation"] = table * stack.accumulation_bytes / bandwidth
    return row


def mesh_row(run: TrainingRun, stack: Framework) -> dict[str, float]:
    """The features of a run that no kernel of a layer makes: how its layers lie on ranks, what data
    parallelism exchanges, what the optimizer moves."""
    bandwidth = get_device(run.device).memory_bandwidth_bytes_per_s.value
    full, last = stage_layers(run)
    row = {
        "microbatches": float(run.num_microbatches),
        "pp": float(run.degrees.pp),
        "vpp": float(run.degrees.vpp),
        "nodes": float(run.num_nodes),
        "layers": full,
        "last_layers": last,
    }
    row |= mesh_messages_row(run, stack, links_of(run))
    updated = updated_parameters(run, stack)
    # States in fewer bits are read and written in them.
    traffic = stack.optimizer_traffic_bytes - 2.0 * saved_moments_bytes(run.optimizer)
    matrices = rank_matrices(run)
    fewer = sum(each.elements / each.shards for each in matrices)
    fewer *= 2.0 * saved_in_matrices_bytes(run.optimizer)
    row["optimizer_s"] = (updated * traffic - fewer) / bandwidth
    row["orthogonal_s"] = sum(each.handled * each.seconds for each in matrices)
    row["overlapped_exchange"] = stack.overlapped_exchange
    row["host_step_s"] = 0.0
    if run.optimizer_offload and not run.lora:
        row["optimizer_s"] = 0.0
        row["host_step_s"] = optimizer_host_s(run, stack, updated)
    row["extra_pass_s"] = extra_pass_bytes(run, stack) / bandwidth
    layer_gradients = 0.0 if run.lora else layer_parameters(run)
    row["accumulation_s"] = layer_gradients * stack.accumulation_bytes / bandwidth
    row["waiting_ranks"] = waiting_ranks(run, stack)
    row["waiting_buckets"] = waiting_buckets(run, stack)
    row["copied_slices"] = copied_slices(run, stack)
    row["stalls"] = float(stalls(run, stack))
    return row | wide_stages_row(run)


def thrashes(run: TrainingRun, stack: Framework) -> bool:
    """Whether a run with blocking messages needs more memory than there is. If it runs at all, its
    allocator gives blocks back and takes new ones, which waits for the device (CUDA, `cudaFree`):
    all but one of such jobs of the Ultra-Scale sweep stall."""
    if not stack.blocking_messages or run.degrees.pp == 1:
        return False
    return footprint(run).needed_bytes > get_device(run.device).usable_bytes


def _expert_kernels(run: TrainingRun, stack: Framework, dense: float, *, products: int) -> float:
    """Kernels of a layer with experts: routing, sorting and exchange about double a dense layer's,
    both of an expert's matmuls are launched for every local expert (`Framework.expert_kernels`),
    `products` times each; those with a scale per block cast and reorder two operands."""
    each = stack.expert_kernels
    if run.precision in BLOCK_SCALED:
        each += 2 * stack.block_scale_kernels
    return 2 * dense + 2 * products * each * run.model.num_experts / max(1, run.degrees.ep)
