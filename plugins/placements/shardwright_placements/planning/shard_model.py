"""`shard_model`: the best placements for a traced model, or one of its blocks, on a mesh."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from profiles.errors import InputError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.units import format_bytes, format_time
from shardwright_placements.op_graph.op_graph import OpGraph
from shardwright_placements.planning.answer_file import in_whole_model, placement_rules, run_parts
from shardwright_placements.planning.megatron import megatron_kinds, megatron_strategies
from shardwright_placements.planning.mesh import Mesh
from shardwright_placements.planning.one_block import block_graph, block_number
from shardwright_placements.planning.solve_block import OpSharding, shard_ops
from shardwright_placements.sharding_file import OpShardingFile, ShardingCost

_RELAXED_S, _HALVINGS = 1.5, 4
GIB = 2.0**30
_SOURCES = {
    "kernels": "traced/op_cost.py on the shapes that a rank holds: roofline of the device's "
    "data (shardwright catalog show DEVICE) over measured utilisation",
    "collectives": "traced/comm_cost.py on the cluster's levels: measured points, else ring "
    "and tree formulas",
    "weights": "16 bytes per element: bf16 weight and gradient, fp32 copy and two Adam states "
    "(Rajbhandari et al., ZeRO, SC 2020, section 3.1)",
    "placements": "torch.distributed.tensor (DTensor): R, S(dim), P, one per mesh axis",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardQuestion:
    """The input of `shard`.

    graph          of the whole model
    model, model_hash  source of the trace
    block          class or path of a block, "" for the whole model
    mesh_sizes     outermost first, the last axis over neighbors
    memory_limit_bytes  of a device; None: the device's memory
    micro_batches  number of micro-batches per sum of weight gradients
    """

    graph: OpGraph
    model: str
    model_hash: str
    block: str
    cluster: Cluster
    mesh_sizes: tuple[int, ...]
    sequence_length: int
    micro_batch: int
    dtype: str
    micro_batches: int = 1
    memory_limit_bytes: float | None = None
    time_limit_s: float = 20.0
    assumptions: tuple[str, ...] = field(default=())


def shard_model(question: ShardQuestion) -> OpShardingFile:
    """The answer as a file, compared with Megatron's layout; it may be that nothing fits.

    Raises UnknownNameError for an unknown block, InputError for a mesh that is larger than the
    cluster or divides no tensor.
    """
    begin = time.perf_counter()
    if not question.cluster.homogeneous:
        raise InputError(
            f"{question.cluster.name} has devices of several types; op-level sharding takes a mesh "
            "of equal ones: name one type with --on"
        )
    block = block_number(question.graph, question.block) if question.block else None
    graph = question.graph if block is None else block_graph(question.graph, block)
    blocks = question.graph.blocks if block is None else (question.graph.blocks[block],)
    all_repeats = replace(graph, blocks=blocks)
    check_divides(graph, question.mesh_sizes)
    mesh = Mesh(cluster=question.cluster, sizes=question.mesh_sizes)
    micro_batches = question.micro_batches
    limit = question.memory_limit_bytes
    limit = mesh.device.usable_bytes if limit is None else limit
    answer = shard_ops(
        graph,
        mesh,
        micro_batches=micro_batches,
        memory_limit_bytes=limit,
        time_limit_s=question.time_limit_s,
    )
    named = OpShardingFile(
        model=question.model,
        model_hash=question.model_hash,
        block=question.block,
        block_repeats=1 if block is None else question.graph.blocks[block].repeats,
        sequence_length=question.sequence_length,
        micro_batch=question.micro_batch,
        micro_batches=question.micro_batches,
        dtype=question.dtype,
        cluster=question.cluster.name,
        mesh_names=mesh.names,
        mesh_sizes=mesh.sizes,
        status=answer.status.value,
        reason=answer.reason,
        search_time_s=0.0,
        memory_limit_bytes=limit,
        assumptions=question.assumptions,
        sources=_SOURCES,
    )
    if not answer.ops:
        least = shard_ops(graph, mesh, micro_batches=micro_batches)
        found = replace(
            named,
            reason=_what_binds(least, limit),
            fits_with=tuple(
                f"{text}: {format_bytes(fitting.memory_bytes)} a device, "
                f"{format_time(fitting.seconds)} per micro-batch"
                for text, fitting in _relaxations(graph, mesh, least, limit, micro_batches)
            ),
        )
    else:
        hand, missing = hand_plan(graph, mesh, micro_batches, question.time_limit_s)
        strategies, between = in_whole_model(question.graph, mesh, answer, block)
        calls, conversions, messages = run_parts(question.graph, mesh, strategies, between)
        found = replace(
            named,
            cost=answer.cost,
            hand_plan=hand,
            hand_plan_missing=missing,
            calls=calls,
            conversions=conversions,
            messages=messages,
            rules=placement_rules(answer, all_repeats),
        )
    return replace(found, search_time_s=time.perf_counter() - begin)


def check_divides(graph: OpGraph, sizes: tuple[int, ...]) -> None:
    """Raises InputError if an axis divides no dim of any tensor."""
    lengths = {
        n for op in graph.ops for t in (*op.inputs, *op.outputs) for n in graph.tensors[t].shape
    }
    for size in sizes:
        if size < 2:
            raise InputError(f"--mesh: an axis has 2 devices or more, got {size}")
        if not any(n % size == 0 for n in lengths):
            best = [k for k in range(2, 65) if sum(n % k == 0 for n in lengths) * 2 > len(lengths)]
            listed = ", ".join(map(str, best)) or "none"
            raise InputError(
                f"--mesh: an axis of {size} devices divides no dimension of {graph.name} (they are "
                f"{', '.join(map(str, sorted(lengths - {1})))}). Sizes that divide most of them: "
                f"{listed}"
            )


def hand_plan(
    graph: OpGraph, mesh: Mesh, micro_batches: int, time_limit_s: float
) -> tuple[ShardingCost | None, str]:
    """The price of Megatron's layout with the best choice for the rest; or why there is none."""
    kinds = megatron_kinds(graph)
    if not kinds:
        return None, "it splits pairs of linear layers, and here are none"
    try:
        allowed = megatron_strategies(graph, mesh.sizes, kinds)
    except InputError as error:
        return None, str(error)
    answer = shard_ops(
        graph, mesh, micro_batches=micro_batches, allowed=allowed, time_limit_s=time_limit_s
    )
    if not answer.ops:
        return None, f"its placements do not fit together: {answer.reason}"
    return answer.cost, ""


def _what_binds(free: OpSharding, limit: float) -> str:
    weights = sum(p.repeats * p.price.weight_bytes for p in free.ops)
    return (
        f"without a limit the fastest placements need {format_bytes(free.memory_bytes)} on a "
        f"device, {format_bytes(weights)} of it weights with gradients and optimizer states; the "
        f"limit is {format_bytes(limit)}"
    )


def _relaxations(
    graph: OpGraph, mesh: Mesh, free: OpSharding, limit: float, micro_batches: int
) -> Iterator[tuple[str, OpSharding]]:
    """Changes that make a solution possible: the smallest sufficient memory (by bisection), and the
    smallest number of devices on the last axis."""

    def within(bytes_: float, on: Mesh) -> OpSharding:
        return shard_ops(
            graph,
            on,
            micro_batches=micro_batches,
            memory_limit_bytes=bytes_,
            time_limit_s=_RELAXED_S,
        )

    low, high, fitting = limit, free.memory_bytes, free
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        answer = within(middle, mesh)
        if answer.ops:
            high, fitting = answer.memory_bytes, answer
        else:
            low = middle
    wanted = math.ceil(fitting.memory_bytes / GIB * 10) / 10
    yield f"--memory {wanted:.1f}GiB", fitting
    for times in (2, 4, 8):
        try:
            sizes = (*mesh.sizes[:-1], mesh.sizes[-1] * times)
            check_divides(graph, sizes)
            answer = within(limit, Mesh(cluster=mesh.cluster, sizes=sizes))
        except InputError:  # divides nothing, or more devices than in the cluster
            continue
        if answer.ops:
            yield f"--mesh {'x'.join(map(str, sizes))}", answer
            break
