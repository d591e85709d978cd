"""The features of one run: `layer_row` for its layers, head and sends; `mesh_row` for placement,
exchange of gradients and optimizer."""

from __future__ import annotations

from dataclasses import replace

from profiles.hardware.catalogue.catalog import get_device
from simulator.memory.footprint import footprint
from simulator.memory.host_offload import (
    activation_host_s,
    gradient_sums_s,
    optimizer_host_s,
    shard_copies_s,
)
from simulator.schedules.schedule import schedule_kind
from simulator.training_run.framework.blocked_host import stalls, waiting_ranks
from simulator.training_run.framework.framework import Framework, load_framework
from simulator.training_run.framework.run_conditions import (
    BLOCK_SCALED,
    LOW_PRECISIONS,
    compiles_graphs,
)
from simulator.training_run.messages.gradient_exchange import copied_slices, waiting_buckets
from simulator.training_run.messages.message_row import layer_messages_row, mesh_messages_row
from simulator.training_run.messages.run_links import links_of
from simulator.training_run.messages.step_messages import extra_pass_bytes
from simulator.training_run.run.low_bits import saved_in_matrices_bytes, saved_moments_bytes
from simulator.training_run.run.training_run import TrainingRun
from simulator.training_run.step.idle_share import paired_share
from simulator.training_run.work.adapter_work import adapter_work
from simulator.training_run.work.layer_work import LayerWork, vocabulary_share
from simulator.training_run.work.muon_work import rank_matrices
from simulator.training_run.work.rank_parameters import layer_parameters, updated_parameters
from simulator.training_run.work.stage_layers import (
    predicting_layers,
    recomputed_shares,
    stage_layers,
)
from simulator.training_run.work.work_seconds import WorkSeconds

# Passes of a layer, and the number of matmuls per product in each.
_WAYS = (("forward", 1), ("backward", 2))


def precisions(run: TrainingRun) -> tuple[TrainingRun, ...]:
    """The run; if some of its layers stay in bf16, also the same run in bf16."""
    return (run, replace(run, precision="bf16")) if _wide_layers(run) else (run,)


def _wide_layers(run: TrainingRun) -> int:
    """Number of first (and of last) layers in bf16 if the others run at a lower precision."""
    return run.wide_layers if run.precision in LOW_PRECISIONS else 0


def layer_row(
    run: TrainingRun,
    works: tuple[LayerWork, LayerWork, LayerWork],
    seconds: tuple[WorkSeconds, WorkSeconds, WorkSeconds],
    wide: tuple[WorkSeconds, WorkSeconds, WorkSeconds],
) -> dict[str, float]:
    """The features of a run's layers, of its head and of the sends between its stages, by name.

    works, seconds  of a dense layer, a layer with experts, and the head
    wide            seconds in bf16 if some layers are in bf16; otherwise `seconds` again
    """
    model, stack = run.model, load_framework(run.stack)
    expert_share = model.num_expert_layers / model.num_layers
    bandwidth = get_device(run.device).memory_bandwidth_bytes_per_s.value

    def average(dense: float, expert: float) -> float:
        return dense * (1 - expert_share) + expert * expert_share

    dense, expert, head = seconds
    dense_work, expert_work, head_load = works
    heads = 1.0 + model.predicted_ahead
    blocks = 0.5 * model.blocks_per_layer
    adapters = adapter_work(run)
    # If the whole graph is one program, the host launches that program, not its kernels.
    counts = stack.layer_counts(model)
    launched = float(counts.kernels_forward > 0 and not compiles_graphs(run))
    dispatched = launched * stack.dispatch * (stack.tensor_dispatch if run.degrees.tp > 1 else 1.0)
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
    for way, products in _WAYS:
        for name in ("matmul", "peak", "grouped"):
            field = f"{name}_{way}_s"
            each, other = getattr(dense, field), getattr(expert, field)
            row[f"{name}_{way}"] = average(each, other)
            if name != "peak":
                more = getattr(wide[0], field) - each, getattr(wide[1], field) - other
                row[f"wide_{name}_{way}"] = average(*more)
        for name in ("attention", "state"):
            row[f"{name}_{way}"] = getattr(dense, f"{name}_{way}_s")
        moved, cast, launches = f"{way}_pass_bytes", f"{way}_cast_bytes", f"kernels_{way}"
        passes = average(getattr(dense_work, moved), getattr(expert_work, moved))
        row[f"pass_{way}"] = (passes + getattr(adapters, moved)) / bandwidth
        casts = average(getattr(dense_work, cast), getattr(expert_work, cast))
        row[f"cast_{way}"] = casts / bandwidth
        kernels, added = blocks * getattr(counts, launches), getattr(adapters, launches)
        experts = _expert_kernels(run, stack, kernels, products=products)
        row[launches] = dispatched * average(kernels + added, experts + added)
    row |= layer_messages_row(run, stack, links_of(run))
    row["host_layer_s"] = activation_host_s(run, stack)
    share = paired_share(run.degrees.pp, run.num_microbatches)
    row["overlaps_experts"] = float(share * schedule_kind(run.schedule).pairs)
    row["overlaps_host"] = float(stack.overlaps_host)
    table = 0.0 if run.lora else vocabulary_share(run, stack) * model.hidden_size
    row["head_accumulation"] = table * stack.accumulation_bytes / bandwidth
    return row


def mesh_row(run: TrainingRun, stack: Framework) -> dict[str, float]:
    """The features of a run other than its layers' kernels: placement of layers on ranks, exchange
    of data parallelism, and the optimizer's traffic."""
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
    # Low-bit states are read and written in their low-bit type.
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
    row["host_sum_s"] = gradient_sums_s(run, stack, updated)
    row["gather_host_s"] = shard_copies_s(run, stack)
    row["extra_pass_s"] = extra_pass_bytes(run, stack) / bandwidth
    layer_gradients = 0.0 if run.lora else layer_parameters(run)
    row["accumulation_s"] = layer_gradients * stack.accumulation_bytes / bandwidth
    row["waiting_ranks"] = waiting_ranks(run, stack)
    row["waiting_buckets"] = waiting_buckets(run, stack)
    row["copied_slices"] = copied_slices(run, stack)
    row["stalls"] = float(stalls(run, stack))
    # Without a pipeline, both ends of the model are in one stage.
    ends = float(_wide_layers(run) if run.degrees.pp > 1 else 2 * _wide_layers(run))
    row["wide_first"], row["wide_last"] = min(ends, full), min(ends, last)
    return row


def thrashes(run: TrainingRun, stack: Framework) -> bool:
    """Whether a run with blocking messages needs more memory than the device has. If it runs at
    all, its allocator frees and allocates blocks, which waits for the device (CUDA, `cudaFree`):
    all such jobs of the Ultra-Scale sweep except one stall."""
    if not stack.blocking_messages or run.degrees.pp == 1:
        return False
    return footprint(run).needed_bytes > get_device(run.device).usable_bytes


def _expert_kernels(run: TrainingRun, stack: Framework, dense: float, *, products: int) -> float:
    """Number of kernels of a layer with experts. Routing, sorting and exchange about double
    those of a dense layer. Both matmuls of every local expert are launched `products` times
    (`Framework.expert_kernels`); with block scales, two operands are cast and reordered each
    time."""
    each = stack.expert_kernels
    if run.precision in BLOCK_SCALED:
        each += 2 * stack.block_scale_kernels
    return 2 * dense + 2 * products * each * run.model.num_experts / max(1, run.degrees.ep)
