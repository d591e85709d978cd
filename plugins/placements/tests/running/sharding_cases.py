"""Small models in planned and in random placements, as files for the processes to run."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path

from shardwright_placements.op_graph.op_graph import OpGraph
from shardwright_placements.op_graph.trace_op_graph import trace_op_graph
from shardwright_placements.planning.answer_file import in_whole_model, run_parts
from shardwright_placements.planning.conversions import Between
from shardwright_placements.planning.flow import forward_of
from shardwright_placements.planning.megatron import megatron_kinds, megatron_strategies
from shardwright_placements.planning.mesh import Mesh
from shardwright_placements.planning.one_block import block_graph, block_number
from shardwright_placements.planning.solve_block import shard_ops
from shardwright_placements.planning.strategies import Strategy, strategies_of
from shardwright_placements.sharding_file import OpShardingFile

from profiles.hardware.catalogue.catalog import get_cluster
from profiles.model.building.build import build_model
from profiles.model.loaders import resolve_model
from tests.executor.cases import TINY_GPT2, TINY_LLAMA

MODELS = {
    "llama": {**TINY_LLAMA, "num_hidden_layers": 3},
    "gpt2": {**TINY_GPT2, "n_layer": 3},
    "mixtral": {
        **TINY_LLAMA,
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_hidden_layers": 3,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "resnet": {
        "architectures": ["ResNetForImageClassification"],
        "model_type": "resnet",
        "num_channels": 3,
        "embedding_size": 16,
        "hidden_sizes": [16, 32],
        "depths": [2, 2],
        "layer_type": "basic",
        "image_size": 32,
        "num_labels": 8,
        "downsample_in_first_stage": False,
    },
}
SIZES = {"resnet": (1, 4)}
"""(sequence length, micro-batch)."""


def write_models(folder: Path) -> dict[str, str]:
    """Name -> path of its config."""
    paths = {}
    for name, config in MODELS.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(config))
        paths[name] = str(path)
    return paths


@cache
def graph_of(path: str, sequence_length: int, micro_batch: int, dtype: str) -> OpGraph:
    spec = resolve_model(path)
    built = build_model(spec, micro_batch=micro_batch, sequence_length=sequence_length, dtype=dtype)
    return trace_op_graph(built, name=spec.name)


def solved(
    path: str, sizes: tuple[int, ...], *, block: str = "", dtype: str = "float32"
) -> OpShardingFile:
    """Megatron's layout with the rest chosen best: models this small gain nothing from a split of
    the planner's own choice."""
    graph = graph_of(path, *SIZES.get(Path(path).stem, (16, 2)), dtype)
    number = block_number(graph, block) if block else None
    part = graph if number is None else block_graph(graph, number)
    mesh = Mesh(cluster=get_cluster("8xh100-sxm"), sizes=sizes)
    allowed = megatron_strategies(part, sizes, megatron_kinds(part))
    answer = shard_ops(part, mesh, allowed=allowed)
    chosen, between = in_whole_model(graph, mesh, answer, number)
    return as_file(path, graph, mesh, chosen, dtype, between)


def as_file(
    path: str,
    graph: OpGraph,
    mesh: Mesh,
    chosen: tuple[Strategy, ...],
    dtype: str,
    between: Between,
) -> OpShardingFile:
    """The file of these strategies."""
    length, batch = SIZES.get(Path(path).stem, (16, 2))
    calls, conversions, messages = run_parts(graph, mesh, chosen, between)
    return OpShardingFile(
        model=path,
        model_hash=resolve_model(path).content_hash,
        block="",
        sequence_length=length,
        micro_batch=batch,
        micro_batches=1,
        dtype=dtype,
        cluster="8xh100-sxm",
        mesh_names=mesh.names,
        mesh_sizes=mesh.sizes,
        status="optimal",
        reason="",
        search_time_s=0.0,
        calls=calls,
        conversions=conversions,
        messages=messages,
    )


def random_placements(
    path: str, sizes: tuple[int, ...], seed: int, *, exchange: bool = False
) -> OpShardingFile:
    """A strategy for every op at random, whole ones now and then; with `exchange` those that have
    collectives inside the op wherever there are any."""
    length, batch = SIZES.get(Path(path).stem, (16, 2))
    graph = graph_of(path, length, batch, "float32")
    mesh = Mesh(cluster=get_cluster("8xh100-sxm"), sizes=sizes)
    rng = random.Random(seed)
    held: dict[int, tuple[str, ...]] = {}
    chosen: list[Strategy] = []
    for op in graph.ops:
        own = [
            s
            for s in strategies_of(op, graph, sizes)
            if all(
                held.get(t, forward_of(layout)) == forward_of(layout)
                for t, layout in zip(op.inputs, s.inputs, strict=True)
            )
        ]
        own = [s for s in own if s.exchanged] or own if exchange else own
        strategy = own[0] if rng.random() < 0.3 else rng.choice(own)
        for t, layout in zip(op.inputs, strategy.inputs, strict=True):
            if graph.tensors[t].parameter:
                held[t] = forward_of(layout)
        chosen.append(strategy)
    return as_file(path, graph, mesh, tuple(chosen), "float32", {})
