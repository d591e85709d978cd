"""The layers that an op graph finds Megatron to split are those that `plan` splits."""

from __future__ import annotations

from shardwright_placements.op_graph.trace_op_graph import trace_op_graph
from shardwright_placements.planning.megatron import megatron_kinds

from profiles.model.building.build import build_model
from profiles.model.loaders import resolve_model
from tests.profiles.test_derive_tensor_parallel import layers


def test_a_plain_llama_is_split_as_the_op_graph_says_that_megatron_does() -> None:
    spec = resolve_model("tests.profiles.plain_models:llama")
    built = build_model(spec, micro_batch=3, sequence_length=16)
    graph = trace_op_graph(built, name="llama")
    block = {op.module.rpartition(".")[2] for op in graph.ops if ".0." in op.module}
    kinds = {name: kind for name, kind in megatron_kinds(graph).items() if name in block}
    assert dict(layers("llama")) == kinds
