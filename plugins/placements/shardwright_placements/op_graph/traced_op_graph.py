"""The op graph of a model, kept on disk between uses: tracing one takes seconds, reading it a part.

A cached graph is for one configuration, micro-batch, sequence length, type, and version of the
tracing code and of torch. Models of a factory are traced anew: their code is not known by a hash.
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
    """The op graph of `spec`, loss included; torch is imported only where `cache` lacks it.

    Raises TraceError, naming the module, where the forward pass does not run on shapes alone.
    """

    def make() -> OpGraph:
        # Here, since torch is needed only now.
        from profiles.model.building.build import build_model
        from shardwright_placements.op_graph.trace_op_graph import trace_op_graph

        built = build_model(
            spec, micro_batch=micro_batch, sequence_length=sequence_length, dtype=dtype
        )
        return trace_op_graph(built, name=spec.name)

    settings = (micro_batch, sequence_length, dtype)
    return kept(make, OpGraph, OP_GRAPH_SCHEMA, spec, settings, cache)
