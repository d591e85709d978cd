"""Loops over tokens, layers of several kinds by turns, and inputs as users nest them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from profiles.errors import ModelError, SlowTraceError
from profiles.model.building.build import build_model, parameter_count
from profiles.model.graph import SCAN, MatmulShape, Op, OpKind, Phase
from profiles.model.loaders import ModelSpec, position_count, resolve_model
from profiles.model.tracing.trace import trace_graph
from profiles.model.tracing.trace_errors import refuse_long_loop

_JAMBA = {
    "architectures": ["JambaForCausalLM"],
    "model_type": "jamba",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_experts": 2,
    "num_experts_per_tok": 1,
    "vocab_size": 64,
    "mamba_d_state": 4,
    "mamba_dt_rank": 4,
    "pad_token_id": 0,
}
_MAMBA_2 = {
    "architectures": ["Mamba2ForCausalLM"],
    "model_type": "mamba2",
    "hidden_size": 32,
    "num_heads": 4,
    "head_dim": 16,
    "num_hidden_layers": 1,
    "vocab_size": 64,
}
_RWKV = {
    "architectures": ["RwkvForCausalLM"],
    "model_type": "rwkv",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "vocab_size": 64,
    "context_length": 48,
}


def _model(config: dict[str, Any], folder: Path) -> ModelSpec:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return resolve_model(str(path))


def _trace(spec: ModelSpec, length: int, batch: int = 2, like: Any = None) -> Any:
    settings: dict[str, Any] = {"sequence_length": length, "dtype": "bfloat16", "like": like}
    return trace_graph(spec, micro_batch=batch, **settings)


@pytest.mark.parametrize(("config", "scans"), [(_JAMBA, 7), (_RWKV, 2)])
def test_a_recurrence_is_one_op_at_any_length(
    config: dict[str, Any], scans: int, tmp_path: Path
) -> None:
    spec = _model(config, tmp_path)
    short, long = (_trace(spec, length) for length in (16, 48))
    assert [len(b.forward_ops) for b in short.blocks] == [len(b.forward_ops) for b in long.blocks]
    assert sum(op.name == SCAN for b in long.blocks for op in b.forward_ops) == scans
    backward = [op for b in long.blocks for op in b.backward_ops if op.name.startswith(SCAN)]
    assert len(backward) == scans


def test_the_work_of_a_selective_scan(tmp_path: Path) -> None:
    """9 FLOPs per element, state and token (arXiv 2312.00752): 2 x 16 tokens, 64 channels, 4
    states; three times that in the backward. Bytes: x, step, gate and output of 2 bytes."""
    graph = _trace(_model(_JAMBA, tmp_path), 16)
    ops = [op for block in graph.blocks for op in (*block.forward_ops, *block.backward_ops)]
    work = {op.name: op.kernels[0].work_flop for op in ops if op.name.startswith(SCAN)}
    assert work == {SCAN: 9 * 2 * 16 * 64 * 4, f"{SCAN}_backward": 27 * 2 * 16 * 64 * 4}
    scan = next(op for op in ops if op.name == SCAN)
    assert scan.written_bytes == 2 * 16 * 64 * 2
    assert 3 * scan.written_bytes < scan.read_bytes < 4 * scan.written_bytes


def test_the_products_of_mamba_2(tmp_path: Path) -> None:
    """Chunks of 8 tokens, 4 heads of 16, states of 8, 1 group: per element 8 within a chunk, 2 x 8
    into and out of the states, 8 x 8 / (4 x 16) for the scores (arXiv 2405.21060, section 6)."""
    config = {"chunk_size": 8, "state_size": 8, "n_groups": 1}
    graph = _trace(_model({**_MAMBA_2, **config}, tmp_path), 32)
    ops = [op for block in graph.blocks for op in (*block.forward_ops, *block.backward_ops)]
    shapes = {op.name: op.matmul for op in ops if op.name.startswith(SCAN)}
    forward = MatmulShape(batch=2 * 4 * 4, m=8, n=16, k=8 + 2 * 8 + 1)
    assert shapes == {SCAN: forward, f"{SCAN}_backward": replace(forward, k=3 * 25)}
    (scan,) = (op for op in ops if op.name == SCAN)
    assert scan.work_flop == 2 * 32 * 8 * 16 * 25


def _op(name: str) -> Op:
    return Op(
        name=name,
        kind=OpKind.MEMORY,
        phase=Phase.FORWARD,
        module="mixer",
        dtype="float32",
        work_flop=0,
        read_bytes=0,
        written_bytes=0,
    )


def test_a_long_loop_is_refused_with_its_module_and_a_straight_line_is_not() -> None:
    body = [_op(name) for name in ("mul", "add", "bmm")]
    refuse_long_loop(body * 4_000, "mixer", 4_999)
    refuse_long_loop([_op(str(number)) for number in range(16_000)], "mixer", 9_999)
    with pytest.raises(SlowTraceError, match=r"module mixer repeats the same 3 ops .* 15,000 ops"):
        refuse_long_loop(body * 5_000, "mixer", 1)
    with pytest.raises(SlowTraceError, match="4,200 ops so far"):
        refuse_long_loop(body * 1_400, "mixer", 5_000)


class Layer(nn.Module):
    """A layer that counts its calls."""

    calls = 0

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wide, self.narrow = nn.Linear(8, width), nn.Linear(width, 8)

    def forward(self, x: Tensor, number: int = 0, gate: Tensor | None = None) -> Tensor:
        Layer.calls += 1
        added: Tensor = self.narrow(self.wide(x).relu())
        return x + (added if gate is None else added * gate)


class Alternating(nn.Module):
    """Layers of two structures by turns."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(8 + 8 * (number % 2)) for number in range(16))
        self.head = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x)
        return out


def alternating() -> tuple[nn.Module, Tensor]:
    return Alternating(), torch.zeros(2, 8)


def test_of_layers_of_two_structures_by_turns_three_of_each_are_traced() -> None:
    Layer.calls = 0
    graph = _trace(resolve_model(f"{__name__}:alternating"), 1)
    assert Layer.calls == 6
    assert [ref.kind for ref in graph.chain] == [0, *[1, 2] * 7, 1, 3]


class Scaled(Alternating):
    """Equal layers whose result the model scales before its head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(16) for _ in range(16))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.head(x * 2)
        return out


def scaled() -> tuple[nn.Module, Tensor]:
    return Scaled(), torch.zeros(2, 8)


def test_repeated_layers_are_skipped_if_ops_of_the_model_follow_the_last() -> None:
    """The last layer's block has one op more. All sixteen were traced in a third pass."""
    Layer.calls = 0
    graph = _trace(resolve_model(f"{__name__}:scaled"), 1)
    assert Layer.calls == 3 + 5
    assert [ref.kind for ref in graph.chain] == [0, *[1] * 14, 2, 3]
    assert [op.name for op in graph.kinds[2].forward_ops][-1] == "mul"


class Numbered(Alternating):
    """Layers that get their number, and a tensor without a gradient of the first module."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        gate = x.detach()
        for number, layer in enumerate(self.layers):
            x = layer(x, number, gate)
        out: Tensor = self.head(x)
        return out


def numbered() -> tuple[nn.Module, Tensor]:
    return Numbered(), torch.zeros(2, 8)


def test_skipped_layers_get_their_number_and_read_what_the_traced_ones_read() -> None:
    Layer.calls = 0
    graph = _trace(resolve_model(f"{__name__}:numbered"), 1)
    assert Layer.calls < 16
    assert [ref.entry for ref in graph.chain[1:17]] == [f"layers.{n}" for n in range(16)]
    assert tuple(range(1, 17)) in [branch.consumers for branch in graph.branches]


def test_of_a_model_traced_before_one_block_of_each_kind_is_traced() -> None:
    spec = resolve_model(f"{__name__}:alternating")
    first, whole = (_trace(spec, 1, batch) for batch in (2, 3))
    Layer.calls = 0
    assert _trace(spec, 1, 3, like=first) == whole
    assert Layer.calls == 3  # the first opens no block


class Nested(nn.Module):
    """A module that takes one dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        out: Tensor = self.second(self.first(batch["x"]) * batch["scale"])
        more: Tensor = batch["more"][0]
        return out + more


def _batch() -> dict[str, Any]:
    return {"x": torch.ones(3, 4), "scale": 2.0, "more": [torch.ones(3, 4)]}


def one_dictionary() -> tuple[nn.Module, Any]:
    return Nested(), _batch()


def dictionary_in_a_tuple() -> tuple[nn.Module, Any]:
    return Nested(), (_batch(),)


def dictionary_by_name() -> tuple[nn.Module, Any]:
    return Nested(), {"batch": _batch()}


def no_tensors() -> tuple[nn.Module, Any]:
    return Nested(), ({"x": 1.0},)


@pytest.mark.parametrize("name", ["one_dictionary", "dictionary_in_a_tuple", "dictionary_by_name"])
def test_inputs_may_be_nested(name: str) -> None:
    spec = resolve_model(f"{__name__}:{name}")
    built = build_model(spec, micro_batch=5, sequence_length=1, device="cpu")
    assert [tuple(x.shape) for x in built.args] == [(5, 4), (5, 4)]
    expected = built.module({"x": built.args[0], "scale": 2.0, "more": [built.args[1]]})
    assert torch.equal(built.call(built.module, *built.args), expected)
    assert parameter_count(spec, 1) == 4 * 8 + 8 + 8 * 4 + 4


def test_inputs_without_a_tensor_are_refused() -> None:
    with pytest.raises(ModelError, match="tensors may be nested"):
        build_model(resolve_model(f"{__name__}:no_tensors"), micro_batch=1, sequence_length=1)


def test_infinite_numbers_as_transformers_writes_them_are_read(tmp_path: Path) -> None:
    config = {**_MAMBA_2, "time_step_limit": [0.0, {"__float__": "Infinity"}]}
    built = build_model(_model(config, tmp_path), micro_batch=1, sequence_length=4)
    found: Any = built.module.config
    assert found.time_step_limit[1] == float("inf")


def test_a_length_beyond_the_positions_names_the_most_that_is_possible(tmp_path: Path) -> None:
    assert position_count(_RWKV) == 48
    config = {"max_position_embeddings": 48, "architectures": ["BertForMaskedLM"]}
    config |= {"model_type": "bert", "vocab_size": 64}
    with pytest.raises(ModelError, match="--seq 49 is above the model's 48 positions; use 48 or"):
        build_model(_model(config, tmp_path), micro_batch=1, sequence_length=49)
