"""The plug-in's Python functions: `shardwright.shard`; reading and running its files."""

from __future__ import annotations

from pathlib import Path

from profiles.document import read_document
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.hardware.catalogue.cluster import Cluster
from profiles.model.loaders import resolve_model
from shardwright.requests.local_paths import trace_cache
from shardwright_placements.op_graph.traced_op_graph import traced_op_graph
from shardwright_placements.planning.shard_model import ShardQuestion, shard_model
from shardwright_placements.running.launch_sharding import run_sharding as launch
from shardwright_placements.sharding_file import OP_SHARDING_SCHEMA, OpShardingFile, ShardedRun
from simulator.values.workload import Workload


def shard(
    model: str,
    on: Cluster | str,
    mesh: tuple[int, ...],
    *,
    sequence_length: int,
    block: str = "",
    micro_batch: int = 1,
    micro_batches: int = 1,
    precision: str = "bf16",
    memory_limit_bytes: float | None = None,
    time_limit_s: float = 20.0,
    assumptions: tuple[str, ...] = (),
) -> OpShardingFile:
    """The best placement of every op of a model, or of one of its blocks, on a mesh of devices."""
    spec = resolve_model(model)
    work = Workload(global_batch=1, sequence_length=sequence_length, precision=precision)
    dtype = work.compute_dtype
    question = ShardQuestion(
        graph=traced_op_graph(
            spec,
            micro_batch=micro_batch,
            sequence_length=sequence_length,
            dtype=dtype,
            cache=trace_cache(),
        ),
        model=spec.source,
        model_hash=spec.content_hash,
        block=block,
        cluster=on if isinstance(on, Cluster) else get_cluster(on),
        mesh_sizes=mesh,
        sequence_length=sequence_length,
        micro_batch=micro_batch,
        dtype=dtype,
        micro_batches=micro_batches,
        memory_limit_bytes=memory_limit_bytes,
        time_limit_s=time_limit_s,
        assumptions=assumptions,
    )
    return shard_model(question)


def run_sharding(path: str | Path, *, steps: int = 3, output: str = "run.json") -> ShardedRun:
    """Run the placements in a file on this machine, and compare them with one process."""
    return launch(path, steps=steps, output=output)


def load_sharding(path: str | Path) -> OpShardingFile:
    """The file of `shard` at `path`."""
    return read_document(path, OpShardingFile, schema=OP_SHARDING_SCHEMA)
