"""The question and its file: blocks by name, messages, meshes, memory, Megatron's layout beside."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardwright_placements.op_graph.op_graph import GraphTensor, OpGraph
from shardwright_placements.op_graph.trace_op_graph import trace_program
from shardwright_placements.planning.flow import SHARED, WHOLE
from shardwright_placements.planning.megatron import megatron_kinds
from shardwright_placements.planning.mesh import Mesh
from shardwright_placements.planning.op_seconds import weight_sync_s
from shardwright_placements.planning.resharding import Resharding, forms_of, is_innermost
from shardwright_placements.planning.shard_model import ShardQuestion, shard_model
from shardwright_placements.planning.strategies import strategies_of
from shardwright_placements.sharding_file import OP_SHARDING_SCHEMA, OpShardingFile

from profiles.document import read_document, write_document
from profiles.errors import InputError, UnknownNameError
from profiles.hardware.catalogue.catalog import get_cluster
from profiles.model.building.build import build_model
from profiles.model.loaders import resolve_model

NODE = get_cluster("8xh100-sxm")


def traced(name: str, length: int, **config: object) -> OpGraph:
    spec = resolve_model(name)
    spec = replace(spec, config={**spec.config, **config})
    built = build_model(spec, micro_batch=1, sequence_length=length, dtype="bfloat16")
    return trace_program(built, name=name).graph


@pytest.fixture(scope="module")
def llama() -> OpGraph:
    return traced("llama-3.1-8b", 4096, num_hidden_layers=3)


def question(graph: OpGraph, **changes: object) -> ShardQuestion:
    asked = ShardQuestion(
        graph=graph,
        model="llama-3.1-8b",
        model_hash="",
        block="LlamaDecoderLayer",
        cluster=NODE,
        mesh_sizes=(8,),
        sequence_length=4096,
        micro_batch=1,
        dtype="bfloat16",
    )
    return replace(asked, **changes)  # type: ignore[arg-type] # a mix of fields


def test_the_file_holds_the_block_and_its_messages(llama: OpGraph, tmp_path: Path) -> None:
    """Two all-gathers and two reduce-scatters of 4096 x 4096 elements each way and layer
    (Korthikanti et al., arXiv 2205.05198, section 4.2.2), and sums of two norms' gradients."""
    answer = shard_model(question(llama))
    assert (answer.status, answer.block_repeats) == ("optimal", 3)
    assert answer.cost is not None
    assert answer.hand_plan is not None
    assert answer.cost.seconds <= answer.hand_plan.seconds * (1 + 1e-9)
    assert answer.cost.gap == 0.0
    assert len(answer.calls) == len(llama.ops)
    assert {rule.pattern for rule in answer.rules} >= {"model.layers.*.mlp.down_proj"}
    counts: dict[tuple[str, str], int] = {}
    for m in answer.messages:
        if "layers" in m.what and m.elements == 4096 * 4096:
            counts[m.phase, m.operation] = counts.get((m.phase, m.operation), 0) + m.count
    # Each of three layers; what enters and leaves them is whole outside of the block.
    assert counts["forward", "reduce_scatter"] == counts["backward", "reduce_scatter"] == 6
    assert counts["forward", "all_gather"] == 6 + 1
    assert counts["backward", "all_gather"] == 6
    weights = [m for m in answer.messages if m.phase == "weights"]
    assert sorted((m.elements, m.count) for m in weights) == [(4096, 3), (4096, 3)]
    path = tmp_path / "sharding.json"
    write_document(path, answer, schema=OP_SHARDING_SCHEMA)
    assert read_document(path, OpShardingFile, schema=OP_SHARDING_SCHEMA) == answer


def test_the_last_repeat_has_a_maker(llama: OpGraph) -> None:
    """What leaves the repeats comes from the block that is held: it costs to bring elsewhere."""
    final = next(op for op in llama.ops if op.module == "model.norm")
    entering = llama.tensors[final.inputs[0]]
    assert entering.stands_for is not None
    assert llama.tensors[entering.stands_for].producer is not None


def test_what_cannot_be_asked_is_said(llama: OpGraph) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'LlamaDecoderLayer'"):
        shard_model(question(llama, block="LlamaDecoderLaier"))
    with pytest.raises(InputError, match="an axis of 11 devices divides no dimension"):
        shard_model(question(llama, mesh_sizes=(11,)))
    with pytest.raises(InputError, match="16 devices does not fit the cluster 8xh100-sxm"):
        shard_model(question(llama, mesh_sizes=(16,)))


def test_too_little_memory_says_what_binds_and_what_fits(llama: OpGraph) -> None:
    free = shard_model(question(llama, mesh_sizes=(2,)))
    assert free.cost is not None
    # Weights alone: 218 M parameters of a layer at 16 bytes, over two devices.
    tight = shard_model(question(llama, mesh_sizes=(2,), memory_limit_bytes=1.2e9))
    assert (tight.status, tight.calls, tight.cost) == ("infeasible", (), None)
    assert "weights with gradients and optimizer states; the limit is 1.12 GiB" in tight.reason
    (wider,) = (text for text in tight.fits_with if text.startswith("--mesh"))
    assert wider.startswith(("--mesh 4:", "--mesh 8:"))
    (more,) = (text for text in tight.fits_with if text.startswith("--memory"))
    gib = float(more.removeprefix("--memory ").partition("GiB")[0])
    again = shard_model(question(llama, mesh_sizes=(2,), memory_limit_bytes=gib * 2**30))
    assert again.cost is not None
    assert again.cost.memory_bytes <= gib * 2**30


def test_megatrons_kinds_are_told_from_the_graph(llama: OpGraph) -> None:
    kinds = megatron_kinds(llama)
    columns = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "lm_head")
    assert {name: kinds[name] for name in columns} == dict.fromkeys(columns, "column")
    assert (kinds["o_proj"], kinds["down_proj"]) == ("row", "row")
    assert kinds["embed_tokens"] == "vocabulary"
    gpt2 = megatron_kinds(traced("gpt2", 64, n_layer=2))
    assert (gpt2["c_attn"], gpt2["c_fc"], gpt2["c_proj"]) == ("column", "column", "row")
    assert (gpt2["wte"], gpt2["wpe"]) == ("vocabulary", "replicated")


def test_a_bias_of_a_row_layer_needs_no_sum() -> None:
    """It is added once, and its gradient is that of the sum, which every rank has."""
    graph = traced("gpt2", 64, n_layer=2)
    row = next(op for op in graph.ops if op.module.endswith("mlp.c_proj") and op.name == "addmm")
    (split,) = (s for s in strategies_of(row, graph, (4,)) if s.cuts == (("k", 4),))
    assert split.label == "R S(1) S(0) -> P/R"


def test_cuts_of_one_dim_nest(llama: OpGraph) -> None:
    """Queries cut on both axes want their own heads of keys: whole on the inner axis, cut on the
    outer one, never the other way round."""
    attention = next(op for op in llama.ops if op.name == "scaled_dot_product_attention")
    labels = {s.label for s in strategies_of(attention, llama, (2, 4))}
    q = "S(1),S(1)"
    assert f"{q} S(1),R/P S(1),R/P -> {q}" in labels
    assert f"{q} R/P,S(1) R/P,S(1) -> {q}" not in labels


shapes = st.sampled_from([(8,), (8, 4), (4, 8), (16, 6)])


@settings(max_examples=10, deadline=None)
@given(shapes, st.sampled_from([(2, 2), (2, 4), (4, 2)]))
def test_ways_between_placements_are_steps_that_can_be_made(
    shape: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    """Every step changes one axis, the innermost of those that split its dim, and the prices of
    the steps add up to that of the way; no triangle is cheaper."""
    tensor = GraphTensor(shape=shape, dtype="bfloat16", needs_gradient=True, storage=0)
    resharding = Resharding(Mesh(cluster=NODE, sizes=sizes))
    table = resharding._table(tensor)
    forms = forms_of(tensor, sizes)
    for before, after in itertools.product(forms, repeat=2):
        total, at = 0.0, before
        for form in table.way(table.index[before], table.index[after]):
            (axis,) = (i for i in range(2) if form[i] != at[i])
            assert is_innermost(at, form, axis)
            total += resharding._change(tensor.memory_bytes, at, form)
            at = form
        assert at == after
        assert total == pytest.approx(table.seconds[table.index[before], table.index[after]])
    for a, b, c in itertools.product(range(min(6, len(forms))), repeat=3):
        way = table.seconds[a, b] + table.seconds[b, c]
        assert table.seconds[a, c] <= way * (1 + 1e-12) + 1e-18


def test_a_tied_weight_is_summed_once() -> None:
    tensor = GraphTensor(shape=(64, 8), dtype="bfloat16", parameter="w", storage=0)
    mesh = Mesh(cluster=NODE, sizes=(4,))
    whole, partial = (WHOLE,), (SHARED,)
    one = weight_sync_s(tensor, (partial,), mesh, 1)
    assert one > 0
    assert weight_sync_s(tensor, (whole,), mesh, 1) == 0
    assert weight_sync_s(tensor, (whole, partial), mesh, 1) == one
    assert weight_sync_s(tensor, (partial, partial), mesh, 1) == one
