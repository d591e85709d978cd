"""Pipeline stages that share a weight do not add up its gradients in their backward."""

from __future__ import annotations

from profiles.model.loaders import resolve_model
from profiles.model.tied_gradients import pipeline_kinds
from profiles.model.tracing.traced import trace_model
from tests.executor.fake_accelerator.plans import source_of

TABLE = 512 * 128 * 2  # bytes of the embeddings of `plans.CONFIGS["gpt2"]` in bf16


def graph_of(model, tmp_path, dtype="bfloat16"):
    spec = resolve_model(source_of(model, tmp_path))
    return trace_model(spec, sequence_length=64, dtype=dtype, target="gpu").at(1, 1)


def test_a_stage_has_one_gradient_of_a_tied_embedding(tmp_path):
    graph = graph_of("gpt2", tmp_path)
    first, *others = graph.kinds
    alone, *same = pipeline_kinds(graph)
    assert same == others
    lost = [op for op in first.backward_ops if op not in alone.backward_ops]
    assert [(op.name, op.written_bytes) for op in lost] == [("add", TABLE)]
    assert len(alone.backward_ops) == len(first.backward_ops) - 1
    # The gradient of the table; before, also its sum with the head's.
    assert TABLE < alone.backward_peak_bytes < first.backward_peak_bytes - 0.8 * TABLE
    assert sum(first.backward_changes) == sum(alone.backward_changes)
    assert alone.kind == first.kind  # measured once


def test_untied_blocks_stay_as_they_are(tmp_path):
    graph = graph_of("llama", tmp_path)
    assert pipeline_kinds(graph) == graph.kinds


def test_inputs_that_a_norm_copies_are_freed(tmp_path):
    hidden = 64 * 128
    halves, whole = graph_of("llama", tmp_path), graph_of("llama", tmp_path, "float32")
    assert [block.freed_input_bytes for block in halves.blocks] == [0, *[2 * hidden] * 7]
    # In fp32 the norm saves its input itself; so does a LayerNorm.
    assert not any(block.freed_input_bytes for block in whole.blocks)
    assert not any(block.freed_input_bytes for block in graph_of("gpt2", tmp_path).blocks)


def test_tables_of_positions_are_of_the_layers_that_read_them(tmp_path):
    both = 2 * 64 * 16 * 4  # cosines and sines of 64 positions and 16 elements per head
    blocks = graph_of("llama", tmp_path, "float32").blocks
    assert [block.table_bytes for block in blocks] == [0, *[both] * 6, 0]
    assert [block.lent_bytes for block in blocks] == [both, *[0] * 7]
    assert blocks[0].saved_bytes >= both
