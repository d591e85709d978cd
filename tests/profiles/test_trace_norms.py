"""RMS norms traced for an accelerator: one op, its bytes, and what it keeps."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from profiles.model.building.build_given import spec_of_module
from profiles.model.graph import RMS_NORM, Block
from profiles.model.tracing.trace import trace_graph

ROWS, WIDTH = 2 * 8, 64


class Layer(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm, self.out = norm, nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.out(self.norm(x)))


class Bare(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.rms_norm(x, [WIDTH])


def block_of(norm: nn.Module, *, target: str = "gpu", dtype: str = "bfloat16") -> Block:
    layers = nn.Sequential(*(Layer(copy.deepcopy(norm)) for _ in range(3)))
    spec = spec_of_module(layers, torch.zeros(2, 8, WIDTH))
    graph = trace_graph(spec, micro_batch=2, sequence_length=1, dtype=dtype, target=target)
    assert len(graph.chain) == 3
    return graph.blocks[1]


@pytest.mark.parametrize(("norm", "weight"), [(nn.RMSNorm(WIDTH), WIDTH), (Bare(), 0)])
def test_an_rms_norm_is_one_op_on_an_accelerator(norm: nn.Module, weight: int) -> None:
    """It was the eight ops that a CPU runs, in fp32, of which four tensors were kept."""
    block = block_of(norm)
    (forward,) = [op for op in block.forward_ops if "norm" in op.name]
    (backward,) = [op for op in block.backward_ops if "norm" in op.name]
    x = 2 * ROWS * WIDTH  # bytes in bf16
    assert forward.name == RMS_NORM
    assert (forward.read_bytes, forward.written_bytes) == (x + 2 * weight, x + 4 * ROWS)
    assert (backward.read_bytes, backward.written_bytes) == (
        x + x + 4 * ROWS + 2 * weight,
        x + 2 * weight,
    )
    assert not any(op.name in ("rsqrt", "pow", "mean") for op in block.forward_ops)
    # A number per row, its output, which the product behind it reads, and that of the ReLU. The
    # input of the norm, which is that of the block, is kept too.
    assert sorted(each.memory_bytes for each in block.saved) == [4 * ROWS, x, x]
    assert block.freed_input_bytes == 0


def test_a_cpu_runs_an_rms_norm_as_several_ops() -> None:
    names = [op.name for op in block_of(nn.RMSNorm(WIDTH), target="cpu").forward_ops]
    assert "rsqrt" in names
    assert RMS_NORM not in names


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_a_norm_with_a_weight_of_another_type_is_several_ops() -> None:
    """torch has a kernel for inputs and weights of one type only, and warns."""

    class Mixed(nn.RMSNorm):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.rms_norm(x, self.normalized_shape, self.weight.double())

    names = [op.name for op in block_of(Mixed(WIDTH), dtype="float32").forward_ops]
    assert "rsqrt" in names
    assert RMS_NORM not in names
