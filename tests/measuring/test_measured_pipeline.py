"""A short pipeline, measured on two processes of this machine: every kind of block gets a time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from executor.probe_pipeline import BlockProbe
from profiles.model.loaders import resolve_model
from profiles.model.tracing.traced import trace_model
from tests.executor.cases import write_models
from tests.simulator.hand_made import cluster, device


@pytest.mark.measuring
def test_every_kind_of_block_is_measured_where_it_runs(tmp_path: Path) -> None:
    spec = resolve_model(write_models(tmp_path)["gpt2"])
    traced = trace_model(spec, sequence_length=16, dtype="float32", target="cpu")
    machine = cluster(1, 2, of=replace(device(), type="cpu"))
    found = BlockProbe(spec, traced, machine).in_pipeline(2, num_steps=2)
    graph = traced.at(2, 1)
    assert {p.kind for p in found.blocks} == {kind.kind for kind in graph.kinds}
    for point in found.blocks:
        assert 0 < point.forward_runtime_s < point.forward_s
        assert 0 < point.backward_runtime_s < point.backward_s
        assert point.action is not None
        # Every kind has products with weights.
        assert point.weight_share is not None
        assert 0 < point.weight_share < 1
    assert {r.kernel for r in found.references} == {"matmul", "memory", "layers"}
    # Layers are alike: two steps of four micro-batches on four of them at the most.
    layer = max(found.blocks, key=lambda p: p.sample_count)
    assert 0 < layer.sample_count <= 2 * 4 * 4
