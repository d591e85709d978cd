"""The Python twins of the commands: the same words, values in and out, nothing printed."""

from __future__ import annotations

from pathlib import Path

from planner.layout.layout_answer import LAYOUT_SCHEMA
from planner.mixed_answer import MIXED_SCHEMA
from profiles.document import read_document, read_mapping
from profiles.errors import DocumentError
from profiles.hardware.catalog import get_cluster
from profiles.hardware.cluster import Cluster
from profiles.hardware.prices import price_of
from profiles.model.loaders import resolve_model
from profiles.model.traced import TracedModel, trace_model
from profiles.sourced import Sourced
from shardwright.compare import Comparison, compare_run
from shardwright.places import local_profile, trace_cache
from simulator.measurement import MEASUREMENT_SCHEMA, Measurement
from simulator.op_sharding_file import OP_SHARDING_SCHEMA, OpShardingFile, ShardedRun
from simulator.plan import PLAN_SCHEMA, Plan
from simulator.plan_file import PlanFile
from simulator.predict import predict as _predict
from simulator.prediction import Prediction
from simulator.stack import load_stack
from simulator.workload import Workload

TP_DEGREES = (1, 2, 4, 8)


def target_of(cluster: Cluster) -> str:
    """What a model is traced for: `cpu` or `gpu`."""
    return "cpu" if cluster.groups[0].device.type == "cpu" else "gpu"


def tp_degrees_for(cluster: Cluster) -> tuple[int, ...]:
    """The tensor-parallel degrees worth tracing: powers of two within the innermost level."""
    inner = cluster.levels[0].domain_size if cluster.levels else 1
    return tuple(tp for tp in TP_DEGREES if tp <= max(1, inner))


def cluster(text: str) -> Cluster:
    """A cluster string, a cluster file, or `local`."""
    return get_cluster(text, local=local_profile())


def trace(
    model: str,
    *,
    sequence_length: int,
    precision: str = "bf16",
    tp_degrees: tuple[int, ...] = TP_DEGREES,
    target: str = "gpu",
) -> TracedModel:
    """The traced model of a shipped name, a config.json or `package.module:factory`."""
    dtype = Workload(
        global_batch=1, sequence_length=sequence_length, precision=precision
    ).compute_dtype
    return trace_model(
        resolve_model(model),
        sequence_length=sequence_length,
        dtype=dtype,
        tp_degrees=tp_degrees,
        target=target,
        cache=trace_cache(),
    )


def price_for(on: Cluster, kind: str = "on-demand") -> Sourced | None:
    """The price of a device-hour of a cluster of one device type, or None."""
    return price_of(on.groups[0].device.name, kind) if on.homogeneous else None


def plan(model: TracedModel, on: Cluster, work: Workload, **options: object) -> PlanFile:
    """The best plan; options are those of planner.search.search (space, solver, seed, ...)."""
    from planner.search import search
    from planner.space import Space

    given: dict[str, object] = {"space": Space(), "price": price_for(on), **options}
    return search(model, on, work, stack=load_stack(), **given)  # type: ignore[arg-type] # options of search


def shard(
    model: str,
    on: Cluster,
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
    """One strategy per op of a model, or of one of its blocks, on a mesh of devices."""
    from planner.op_sharding.shard_model import ShardQuestion, shard_model
    from profiles.model.traced_op_graph import traced_op_graph

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
        cluster=on,
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


def predict(chosen: Plan, model: TracedModel, on: Cluster) -> Prediction:
    """What a plan would do."""
    return _predict(chosen, model, on, stack=load_stack(), price=price_for(on))


def load_plan(path: str | Path) -> PlanFile:
    """The plan file at `path`; raises DocumentError where its replicas differ, and for
    a layout of a described model."""
    found = read_mapping(path)
    if found.get("schema") == MIXED_SCHEMA:
        raise DocumentError(
            f"{path} holds a plan for mixed devices with replicas that differ; `run`, `predict` "
            "and `compare` take plans whose replicas are alike. Plan on one device type, or give "
            "the file to a runtime that has uneven stages and shares"
        )
    if found.get("schema") == LAYOUT_SCHEMA:
        raise DocumentError(
            f"{path} is a layout of the described model {found.get('model')} for "
            f"{found.get('stack')} (plan --stack), and this takes plans of traced models; ask its "
            "plan command again with --explain for what it rests on, without --stack for a plan"
        )
    return read_document(path, PlanFile, schema=PLAN_SCHEMA)


def run(
    path: str | Path, *, steps: int = 10, check: bool = False, output: str = "run.json"
) -> Measurement:
    """Run the plan in a file on this machine."""
    from executor.launch import run_plan

    return run_plan(path, steps=steps, check=check, output=output)


def run_sharding(path: str | Path, *, steps: int = 3, output: str = "run.json") -> ShardedRun:
    """Run the placements in a file on this machine, beside one process."""
    from executor.launch_sharding import run_sharding as _run

    return _run(path, steps=steps, output=output)


def load_sharding(path: str | Path) -> OpShardingFile:
    """The file of `shard` at `path`."""
    return read_document(path, OpShardingFile, schema=OP_SHARDING_SCHEMA)


def compare(plan_path: str | Path, run_path: str | Path) -> Comparison:
    """A plan's prediction beside its run."""
    measured = read_document(run_path, Measurement, schema=MEASUREMENT_SCHEMA)
    return compare_run(load_plan(plan_path), measured)
