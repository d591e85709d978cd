"""The op graph of a model, kept on disk between uses: tracing one takes seconds, reading it a part.

A cached graph is for one configuration, micro-batch, sequence length, type, and version of the
tracing code and of torch. Models of a factory are traced anew: their code is not known by a hash.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

from profiles.document import content_hash, read_document, write_document
from profiles.errors import ShardwrightError
from profiles.model.loaders import ModelSpec
from profiles.model.op_graphs.op_graph import OpGraph
from profiles.model.tracing.traced import tracer_version

OP_GRAPH_SCHEMA = "shardwright/op-graph@1"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpGraphFile:
    """What the cache keeps."""

    key: str
    graph: OpGraph


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
    settings = (micro_batch, sequence_length, dtype)
    key = content_hash(
        {"model": spec.content_hash, "settings": settings, "tracer": tracer_version()}
    )
    path = cache / f"{spec.name}-ops-{key}.json" if cache is not None and not spec.factory else None
    if path is not None and path.is_file():
        try:
            return read_document(path, OpGraphFile, schema=OP_GRAPH_SCHEMA).graph
        except ShardwrightError as error:
            warnings.warn(f"traced again, the cached trace is unusable: {error}", stacklevel=2)
    # Here, since torch is needed only now.
    from profiles.model.building.build import build_model
    from profiles.model.op_graphs.trace_op_graph import trace_op_graph

    built = build_model(spec, micro_batch=micro_batch, sequence_length=sequence_length, dtype=dtype)
    graph = trace_op_graph(built, name=spec.name)
    if path is not None:
        write_document(path, OpGraphFile(key=key, graph=graph), schema=OP_GRAPH_SCHEMA)
    return graph
