"""Run a sharded model and the unsplit model, and compare values, gradients and collectives.

torchrun starts `python -m shardwright_placements.running.shard_check FILE` as every rank.
"""

from __future__ import annotations

import argparse
import datetime
import os
import time
from collections import Counter
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.utils._pytree import tree_leaves

from executor.check import TOLERANCE, relative_error
from executor.rank_errors import run_rank
from profiles.document import read_document, write_document
from profiles.errors import MismatchError
from profiles.model.building.build import BuiltModel, build_model
from profiles.model.graph import DTYPE_BYTES
from profiles.model.loaders import ModelSpec, resolve_model
from shardwright_placements.op_graph.op_calls import Program
from shardwright_placements.op_graph.trace_op_graph import trace_program
from shardwright_placements.running.collective_count import CollectiveCount, Key
from shardwright_placements.running.op_replay import Replay
from shardwright_placements.running.shard_position import make_position
from shardwright_placements.sharding_file import (
    OP_SHARDING_SCHEMA,
    SHARDED_RUN_SCHEMA,
    CountedMessages,
    OpShardingFile,
    ShardedRun,
)


def main() -> None:
    """Run the rank; the exit status reports failure to torchrun."""
    parser = argparse.ArgumentParser(prog="python -m shardwright_placements.running.shard_check")
    parser.add_argument("file", help="a file of `shardwright shard`")
    parser.add_argument("--model", default="")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--output", default="sharded-run.json")
    parser.add_argument("--errors", default="", help="folder for one error file per rank")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds a rank may wait")
    options = parser.parse_args()
    run_rank(lambda: _run(options), options.errors)


def _run(options: argparse.Namespace) -> None:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=options.timeout))
    answer = read_document(options.file, OpShardingFile, schema=OP_SHARDING_SCHEMA)
    spec = resolve_model(options.model or answer.model)
    if spec.content_hash != answer.model_hash:
        raise MismatchError(
            f"{options.file} was made for another model: its hash is {answer.model_hash}, that "
            f"of {spec.source} is {spec.content_hash}; make it again, or pass the right --model"
        )
    mesh = init_device_mesh("cpu", answer.mesh_sizes, mesh_dim_names=answer.mesh_names)
    run = run_sharded(answer, spec, mesh, steps=options.steps)
    if dist.get_rank() == 0:
        write_document(options.output, run, schema=SHARDED_RUN_SCHEMA)
    dist.barrier()


def traced_for(answer: OpShardingFile, spec: ModelSpec) -> Program:
    """The program that the file was made for, traced again on shapes."""
    built = build_model(
        spec,
        micro_batch=answer.micro_batch,
        sequence_length=answer.sequence_length,
        dtype=answer.dtype,
    )
    return trace_program(built, name=spec.name)


def run_sharded(
    answer: OpShardingFile,
    spec: ModelSpec,
    mesh: DeviceMesh,
    *,
    steps: int = 0,
    program: Program | None = None,
) -> ShardedRun:
    """Run one micro-batch in fp32 on the mesh and compare it with one process; a collective.

    steps  additional passes for the wall time
    Raises MismatchError if the file is for another model.
    """
    built = build_model(
        spec,
        micro_batch=answer.micro_batch,
        sequence_length=answer.sequence_length,
        dtype="float32",
        device="cpu",
    )
    count = CollectiveCount(mesh, answer.mesh_names)
    replay = Replay(
        program or traced_for(answer, spec), answer, built, make_position(mesh), count.unplanned
    )
    with count:
        loss = replay.forward()
        count.phase = "backward"
        loss.backward(replay.seed())
        count.phase = "weights"
        gradients = replay.gradients()
    if count.torch_total() != sum(count.counts.values()) + sum(count.unplanned_counts.values()):
        raise MismatchError(
            f"CommDebugMode counts {count.torch_total()} collectives, but only "
            f"{dict(count.counts)} are known; this release of torch has others"
        )
    whole_loss = float(replay.whole(replay.last))
    outputs = _outputs(replay)
    found = {name: g.full_tensor() for name, g in gradients.items()}
    times = [_timed(replay) for _ in range(steps)]
    reference_loss, wanted_outputs, wanted = _reference(built)
    worst, name = _worst(found, wanted)
    return ShardedRun(
        model=spec.name,
        world_size=dist.get_world_size(),
        backend=str(dist.get_backend()),
        torch_version=str(torch.__version__),
        loss=whole_loss,
        reference_loss=reference_loss,
        output_relative_error=max(
            (
                relative_error(x, y)
                for x, y in zip(outputs, wanted_outputs, strict=True)
                if x is not None
            ),
            default=0.0,
        ),
        worst_relative_error=worst,
        worst_parameter=name,
        parameters_checked=len(wanted),
        tolerance=TOLERANCE,
        messages=_compared(answer, count),
        beside=dict(count.unplanned_counts),
        step_s=median(times) if times else 0.0,
        steps=steps,
    )


def _outputs(replay: Replay) -> list[Tensor | None]:
    """The model's outputs, gathered; None for outputs made by no op."""
    return [
        replay.whole(t) if t >= 0 and replay.program.graph.tensors[t].needs_gradient else None
        for t in replay.program.outputs
    ]


def _timed(replay: Replay) -> float:
    replay.clear()
    dist.barrier()
    begin = time.perf_counter()
    loss = replay.forward()
    loss.backward(replay.seed())
    replay.gradients()
    dist.barrier()
    return time.perf_counter() - begin


def _reference(built: BuiltModel) -> tuple[float, list[Tensor], dict[str, Tensor]]:
    """Outputs, loss and gradients of the unsplit model in this process."""
    output = built.call(built.module, *built.args)
    loss = built.loss_fn(output, built.targets)
    loss.backward()
    outputs = [x.detach() for x in tree_leaves(output) if isinstance(x, Tensor)]
    named = built.module.named_parameters()
    return float(loss.detach()), outputs, {n: p.grad for n, p in named if p.grad is not None}


def _worst(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> tuple[float, str]:
    """Largest relative error of a gradient, and its name. The error is relative to the gradient's
    norm or, if that is zero except for rounding, to a millionth of the norm of all gradients (as in
    executor/check.py)."""
    whole = sum(float(g.double().norm()) ** 2 for g in wanted.values()) ** 0.5
    worst, worst_name = 0.0, ""
    for name, right in wanted.items():
        mine = found.get(name, torch.zeros_like(right))
        error = relative_error(mine, right, least=1e-6 * whole)
        if error > worst or not worst_name or error != error:
            worst, worst_name = error, name
    return worst, worst_name


def _compared(answer: OpShardingFile, count: CollectiveCount) -> tuple[CountedMessages, ...]:
    planned: Counter[Key] = Counter()
    planned_bytes: Counter[Key] = Counter()
    for message in answer.messages:
        key = (message.phase, message.operation, answer.mesh_names[message.axis])
        planned[key] += message.count
        # The run is in fp32, regardless of the plan.
        width = 4 if "float" in message.dtype else int(DTYPE_BYTES[message.dtype])
        planned_bytes[key] += message.count * message.elements * width
    sizes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, dict(count.sizes_bytes))
    # Ranks send different amounts in an exchange of rows; together they send the whole buffer.
    mean = {key: sum(s.get(key, 0) for s in sizes) / len(sizes) for key in count.sizes_bytes}
    return tuple(
        CountedMessages(
            phase=key[0],
            operation=key[1],
            axis=key[2],
            planned=planned[key],
            counted=count.counts[key],
            planned_bytes=planned_bytes[key],
            counted_bytes=round(mean.get(key, 0)),
        )
        for key in sorted({*planned, *count.counts})
    )


if __name__ == "__main__":
    main()
