"""Blocks measured in whole models on real processes: CPU time only, never wall time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from executor.probe_pipeline import BlockProbe
from profiles.errors import InputError, ModelError
from profiles.hardware.catalogue.cluster import Cluster
from profiles.hardware.catalogue.device import BlockPoint
from profiles.model.loaders import ModelSpec
from profiles.model.tracing.traced import TracedModel, trace_model
from tests.simulator.hand_made import cluster, device

FACTORY = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(32, width), nn.Linear(width, 32)
    def forward(self, x, scale=1.0):
        return x + scale * self.down(torch.relu(self.up(x)))

class Chain(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(32), Layer(2048), Layer(64)])
    def forward(self, x):
        first, middle, last = self.layers
        return last(x=middle(first(x), scale=0.5), scale=2.0)

def build():
    return Chain(), (torch.randn(64, 32),)

def frozen():
    chain = Chain()
    for layer in chain.layers[:2]:
        layer.requires_grad_(False)
    return chain, (torch.randn(64, 32),)
"""


@pytest.fixture
def factory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "whole_factory.py").write_text(FACTORY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    return "whole_factory"


def model(name: str) -> tuple[ModelSpec, TracedModel]:
    spec = ModelSpec(name="tiny", source="test", factory=name)
    return spec, trace_model(spec, sequence_length=1, dtype="float32", target="cpu")


def machine(count: int, **changes: object) -> Cluster:
    return cluster(1, count, of=replace(device(), type="cpu", **changes))  # type: ignore[arg-type] # fields by name


def measured(name: str, micro_batch: int, count: int = 1) -> dict[str, BlockPoint]:
    spec, traced = model(name)
    points = BlockProbe(spec, traced, machine(count)).in_whole(micro_batch, num_steps=6)
    graph = traced.at(micro_batch)
    assert {point.kind for point in points} == {block.kind for block in graph.kinds}
    by_kind = {point.kind: point for point in points}
    return {ref.entry: by_kind[graph.kinds[ref.kind].kind] for ref in graph.chain}


@pytest.mark.slow
def test_the_block_that_works_gets_the_time(factory: str) -> None:
    small, large = (measured(f"{factory}:build", *each) for each in ((64, 1), (512, 2)))
    wide = "layers.1"
    assert len(small) == 3
    # At most 6 steps of two micro-batches on each process.
    for processes, points in enumerate((small, large), start=1):
        assert all(2 <= point.sample_count <= 12 * processes for point in points.values())
    # The wide layer does 32 times the work of the others, and micro-batch 512 eight times that of
    # 64: CPU times differ by far more than any load on the machine changes them.
    for time_s in ("forward_s", "backward_s"):
        for entry in set(small) - {wide}:
            assert getattr(large[wide], time_s) > 2 * getattr(large[entry], time_s)
        assert getattr(large[wide], time_s) > 2 * getattr(small[wide], time_s)


def test_frozen_first_blocks_have_no_backward(factory: str) -> None:
    points = measured(f"{factory}:frozen", 64)
    *frozen, trained = points.values()
    assert trained.backward_s > 0.0
    assert all(point.backward_s == 0.0 < point.forward_s for point in frozen)


def test_a_model_that_cannot_fit_is_refused_with_its_bytes(factory: str) -> None:
    spec, traced = model(f"{factory}:build")
    # Hidden activations of 2^28 samples.
    with pytest.raises(ModelError, match=r"at micro-batch 268435456 needs .* \(2 processes of"):
        BlockProbe(spec, traced, machine(2)).in_whole(2**28)


def test_nothing_to_measure(factory: str) -> None:
    spec, traced = model(f"{factory}:build")
    with pytest.raises(InputError, match="at least one step, got 0"):
        BlockProbe(spec, traced, machine(2)).in_whole(4, num_steps=0)
