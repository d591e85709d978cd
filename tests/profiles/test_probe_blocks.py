"""Whole blocks measured in real processes: CPU time only, never wall time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from profiles.errors import InputError, ModelError, RunError
from profiles.hardware.probe.probe_blocks import measure_graph, training_bytes
from profiles.model.graph import (
    Block,
    BlockRef,
    ModelGraph,
    Parameter,
    SavedTensor,
    TensorSpec,
)
from profiles.model.loaders import ModelSpec
from profiles.model.tracing.trace import trace_graph

FACTORY = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(32, width), nn.Linear(width, 32)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))

def build():
    return nn.Sequential(Layer(32), Layer(2048), Layer(32)), (torch.randn(64, 32),)
"""


def block(kind: str, *, weights: int = 10, saved: int = 100, peak: int = 7) -> Block:
    """A block that holds only what measuring looks at."""
    spec = TensorSpec(shape=(weights,), dtype="float32")
    return Block(
        kind=kind,
        label=f"Layer{kind}",
        inputs=(),
        outputs=(),
        forward_ops=(),
        backward_ops=(),
        parameters=(Parameter(name="w", spec=spec, full_shape=(weights,)),),
        saved=(SavedTensor(module="", memory_bytes=saved),),
        attention_module="",
        attention_input_bytes=0,
        forward_peak_bytes=peak,
        backward_peak_bytes=2 * peak,
    )


def graph(micro_batch: int, *kinds: Block, last: str = "2") -> ModelGraph:
    return ModelGraph(
        name="tiny",
        source="test",
        micro_batch=micro_batch,
        sequence_length=1,
        dtype="float32",
        tp=1,
        kinds=kinds,
        chain=(
            BlockRef(entry="", kind=0),
            BlockRef(entry="1", kind=1),
            BlockRef(entry=last, kind=0),
        ),
    )


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSpec:
    (tmp_path / "tiny_factory.py").write_text(FACTORY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return ModelSpec(name="tiny", source="test", factory="tiny_factory:build")


def test_points_per_kind_and_micro_batch(spec: ModelSpec) -> None:
    lines: list[tuple[int, int, str]] = []
    graphs = [graph(64, block("a64"), block("b64")), graph(512, block("a512"), block("b512"))]
    points = [
        point
        for each in graphs
        for point in measure_graph(
            spec,
            each,
            num_processes=2,
            num_samples=12,
            progress=lambda *line: lines.append(line),
        )
    ]
    by_kind = {p.kind: p for p in points}
    assert [p.kind for p in points] == ["a64", "b64", "a512", "b512"]
    assert by_kind["a64"].label == "Layera64"
    # two processes x 12 samples, x 2 positions of kind a; disturbed ones are left out
    assert 1 <= by_kind["b512"].sample_count <= 24
    assert 1 <= by_kind["a512"].sample_count <= 48
    # Kind b does 64 times the work of a, and micro-batch 512 eight times that of 64: CPU times
    # differ by far more than any load on the machine changes them.
    for time_s in ("forward_s", "backward_s"):
        assert getattr(by_kind["b512"], time_s) > 2 * getattr(by_kind["a512"], time_s)
        assert getattr(by_kind["b512"], time_s) > 2 * getattr(by_kind["b64"], time_s)
    assert {total for _, total, _ in lines} == {3 + 12}
    assert lines[-1][:2] == (15, 15)


def test_memory_of_training_a_model() -> None:
    tied = Parameter(
        name="head",
        spec=TensorSpec(shape=(10,), dtype="float32"),
        full_shape=(10,),
        tied_to="w",
    )
    last = replace(block("b"), parameters=(tied,), forward_peak_bytes=99)
    # a twice and b once: weights 2 x 40 bytes (b's is tied), with gradients 160; saved 3 x 100
    # bytes for each of two micro-batches: 600; working set 99
    assert training_bytes(graph(1, block("a"), last)) == 160 + 600 + 99


def test_a_model_that_cannot_fit_is_refused_with_its_bytes(spec: ModelSpec) -> None:
    huge = graph(4, block("a", weights=2**50), block("b"))
    # two copies of 2^50 x 4 bytes with gradients: 16 PiB per process
    with pytest.raises(ModelError, match=r"tiny at micro-batch 4 needs 32.0 PiB \(2 processes of"):
        measure_graph(spec, huge, num_processes=2)


def test_a_chain_that_the_model_does_not_have(spec: ModelSpec) -> None:
    with pytest.raises(RunError, match=r"rank 0 of 1 failed .* no module 'layers\.9'"):
        measure_graph(spec, graph(4, block("a"), block("b"), last="layers.9"), num_processes=1)


def test_nothing_to_measure(spec: ModelSpec) -> None:
    with pytest.raises(InputError, match="at least one sample, got 0"):
        measure_graph(spec, graph(4, block("a"), block("b")), num_processes=2, num_samples=0)


@pytest.mark.slow  # the demo and README's commands profile a model of a configuration too
def test_a_llama_from_its_config(tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="building from a configuration needs transformers")
    llama = ModelSpec(
        name="tiny-llama",
        source="test",
        config={
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 160,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 4096,
            "max_position_embeddings": 256,
        },
    )
    # the kinds are those that a plan for a CPU cluster looks up
    graphs = [
        trace_graph(llama, micro_batch=size, sequence_length=128, dtype="float32", target="cpu")
        for size in (1, 2)
    ]
    measured = {
        point.kind: point
        for each in graphs
        for point in measure_graph(llama, each, num_processes=2, num_samples=8)
    }
    assert set(measured) == {block.kind for graph_ in graphs for block in graph_.kinds}
    one, two = (measured[graph_.blocks[-2].kind] for graph_ in graphs)
    assert one.label == two.label == "LlamaDecoderLayer"
    # How long each takes is for tests/measuring: beside other work a larger one may look faster.
    assert all(x > 0 for point in (one, two) for x in (point.forward_s, point.backward_s))
    # two processes x 8 samples for each of at most 4 equal layers
    assert 3 <= two.sample_count <= 64
