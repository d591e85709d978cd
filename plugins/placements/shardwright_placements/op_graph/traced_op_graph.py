"""The op graph of a model, cached on disk: reading is faster than tracing, which takes seconds.

A cached graph is for one configuration, micro-batch, sequence length, type, and version of the
tracing code and of torch. Models of a factory are not cached, since their code has no hash.
"""

from __future__ import annotations

from pathlib import Path

from profiles.model.loaders import ModelSpec
from profiles.model.tracing.traced import kept
from shardwright_placements.op_graph.op_graph import OpGraph

OP_GRAPH_SCHEMA = "shardwright/op-graph@1"


def traced_op_graph(
    spec: ModelSpec,
    *,
    micro_batch: int,
    sequence_length: int,
    dtype: str,
    cache: Path | None = None,
) -> OpGraph:
    """The op graph of `spec`, including the loss; torch is imported only if it is not cached.

    Raises TraceError, with the module, if the forward pass does not run on shapes.
    """

    def make() -> OpGraph:
        from profiles.model.building.build import build_model
        from shardwright_placements.op_graph.trace_op_graph import trace_op_graph

        built = build_model(
            spec, micro_batch=micro_batch, sequence_length=sequence_length, dtype=dtype
        )
        return trace_op_graph(built, name=spec.name)

    settings = (micro_batch, sequence_length, dtype)
    return kept(make, OpGraph, OP_GRAPH_SCHEMA, spec, settings, cache)
